"""Verbs on data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import work
from fpl_tune.cli.frame import Format, Formats, Overrides, app

data_app = typer.Typer(
    no_args_is_help=True, help="Data sets: where they are expected, whether they are whole, what a split holds."
)
app.add_typer(
    data_app,
    name="data",
    epilog="Example: fpl-tune data check data=folder data.root=~/photos",
    rich_help_panel="Set up",
)


@data_app.command("ls", epilog="Example: fpl-tune data ls --root ~/data")
def data_ls(
    root: Annotated[str | None, typer.Option(help="Look which of them are there.")] = None,
    format: Formats = Format.table,
) -> None:
    """Data sets, and where their files are expected."""
    work.data.ls(root, format.value)


@data_app.command("check", epilog="Example: fpl-tune data check data=folder data.root=~/photos")
def data_check(overrides: Overrides = None, format: Formats = Format.table) -> None:
    """Read every image: counts against the published sizes, duplicates, unreadable files."""
    work.data.check(overrides or [], format.value)


@data_app.command("prepare", epilog="Example: fpl-tune data prepare data=folder data.root=~/photos")
def data_prepare(overrides: Overrides = None, format: Formats = Format.table) -> None:
    """Fill the feature cache before a study does."""
    work.data.prepare(overrides or [], format.value)


@data_app.command(
    "show", epilog="Example: fpl-tune data show partition=dirichlet partition.n_clients=10 --figure split.png"
)
def data_show(
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Seed of the run whose split is shown.")] = 1,
    figure: Annotated[Path | None, typer.Option(help="Draw clients by classes to this file (png, pdf, svg).")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the split to this file, for partition=file.")] = None,
    format: Formats = Format.table,
) -> None:
    """What every client of a split holds, and the split's hash."""
    work.data.show(overrides or [], seed, figure, export, format.value)
