"""`fpl-tune data`: check a data set, fill its feature cache, show a split."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import Format, FormatOption, Overrides, app
from fpl_tune.core.paths import cache_root

data_app = typer.Typer(no_args_is_help=True, help="Data sets: check their files, fill the feature cache, show splits.")
app.add_typer(
    data_app,
    name="data",
    epilog="Example: fpl-tune data check data=folder data.root=~/photos",
    rich_help_panel="Set up",
)


@data_app.command("check", epilog="Example: fpl-tune data check data=folder data.root=~/photos")
def data_check(overrides: Overrides = None, format: FormatOption = "table") -> None:
    """Read every image: counts against the published sizes, duplicates, unreadable files.

    Exit code 3 if the data differ from what was published or cannot be read.
    """
    from fpl_tune import config
    from fpl_tune.data import check

    run = config.compose_run(overrides or [])
    with output.progress("reading") as progress:
        report = check.check(run.data, progress=progress)
    _print(report.to_dict(), report.tables(), format)
    if not report.sound:
        sys.exit(3)


@data_app.command("prepare", epilog="Example: fpl-tune data prepare data=folder data.root=~/photos")
def data_prepare(overrides: Overrides = None, format: FormatOption = "table") -> None:
    """Fill the feature cache before a study does: on its device, in its arithmetic, with its views."""
    from fpl_tune import config
    from fpl_tune.core.device import resolve
    from fpl_tune.data import load
    from fpl_tune.data.cache import prepare
    from fpl_tune.simulation.task import towers_for
    from fpl_tune.simulation.worlds import needs_of

    run = config.compose_run(overrides or [])
    towers, data, needs = towers_for(run.clip, resolve("auto")), load(run.data), needs_of(run)
    with output.progress("encoding") as progress:
        done = prepare(data, run.data.views, towers, *needs, cache_dir=cache_root(), progress=progress)
    output.emit(done, format)


@data_app.command(
    "show", epilog="Example: fpl-tune data show partition=dirichlet partition.n_clients=10 --figure split.png"
)
def data_show(
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run whose split is shown.")] = 1,
    figure: Annotated[Path | None, typer.Option(help="Draw clients by classes to this file (png, pdf, svg).")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the split to this file, for partition=file.")] = None,
    format: FormatOption = "table",
) -> None:
    """What every client of a split holds, and the split's hash."""
    from fpl_tune import config
    from fpl_tune.data import export_split, load, split
    from fpl_tune.data.show import overview

    run = config.compose_run(overrides or [])
    dataset = load(run.data)
    drawn = split(dataset, run.data, run.partition, seed)
    found = overview(drawn, dataset)
    _print(found.to_dict(), [found.table()], format)
    if figure is not None:
        found.figure().savefig(figure, dpi=150)
    if export is not None:
        export_split(drawn, dataset, export)


def _print(value: Mapping[str, Any], tables: Sequence[Any], format: Format) -> None:
    if format == "table":
        output.console().print(*tables)
    else:
        output.emit(value, format)
