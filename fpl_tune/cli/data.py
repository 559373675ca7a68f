"""`fpl-tune data`: check a data set, fill its feature cache, show a split."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, app
from fpl_tune.core.paths import usable_cache

data_app = typer.Typer(no_args_is_help=True, help="Data sets: check their files, fill the feature cache, show splits.")
app.add_typer(
    data_app,
    name="data",
    epilog="Example: fpl-tune data check data=folder data.root=~/photos",
    rich_help_panel="Set up",
)


@data_app.command("check", epilog="Example: fpl-tune data check data=folder data.root=~/photos")
def data_check(overrides: Overrides = None, format: FormatOption = "table") -> None:
    """Read every image: how folders were read, counts against the published sizes, duplicates, unreadable files.

    Exit code 3 if the data differ from what was published or cannot be read; 1 if copies of training images are test
    images of a split that is not an official one.
    """
    from fpl_tune import config
    from fpl_tune.data.inspection import check

    run = config.compose_run(overrides or [])
    with output.progress("reading") as progress:
        report = check(run.data, progress=progress)
    if format == "table":
        title = f"{report['dataset']}, {report['fingerprint']}"
        output.emit(report["sizes"], format, title=title, caption="\n".join(report["notes"]))
        if report["findings"]:
            output.emit(report["findings"], format)
    else:
        output.emit(report, format)
    if not report["sound"]:
        sys.exit(1 if report["whole"] else 3)


@data_app.command("prepare", epilog="Example: fpl-tune data prepare data=folder data.root=~/photos")
def data_prepare(overrides: Overrides = None, format: FormatOption = "table") -> None:
    """Fill the feature cache before a study does: on its device, in its arithmetic, with its views."""
    from fpl_tune import config
    from fpl_tune.core.device import resolve
    from fpl_tune.simulation.worlds import world_of

    run = config.compose_run(overrides or [])
    with output.progress("") as progress:
        world = world_of(run, cache_dir=usable_cache(), device=resolve("auto"), progress=progress)
    tables = {"train": world.train_images, "test": world.test_images}
    tables |= {f"view {number}": table for number, table in enumerate((*world.views, *world.second))}
    tables |= {f"{name}, patched": table for name, table in zip(("train", "test"), world.patched, strict=False)}
    rows = [{"images": name, "shape": list(table.shape), "bytes": table.nbytes} for name, table in tables.items()]
    output.emit(rows, format)


@data_app.command("show", epilog="Example: fpl-tune data show partition=dirichlet partition.n_clients=10")
def data_show(
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run whose split is shown.")] = 1,
    export: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the split to this file, for partition=file.")
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Show the images of every client of a split, and the split's hash."""
    from fpl_tune import config
    from fpl_tune.data import export_split, load, split
    from fpl_tune.data.inspection import overview

    run = config.compose_run(overrides or [])
    dataset = load(run.data, run.partition.file)
    drawn = split(dataset, run.data, run.partition, seed)
    summary = overview(drawn, dataset)
    if format == "table":
        constant = summary["constant_prediction"]
        caption = f"A constant prediction reaches {100 * constant:.1f} % on the clients' own test images."
        title = f"{summary['dataset']}, content {summary['content']}, split {summary['hash']}"
        output.emit(summary["clients"], format, title=title, caption=caption)
    else:
        output.emit(summary, format)
    if export is not None:
        export_split(drawn, dataset, export)
