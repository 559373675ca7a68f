"""Verbs that read what studies left."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import complete, work
from fpl_tune.cli.frame import Format, Formats, Stored, app


class Kind(str, Enum):
    """What `ls` lists."""

    methods = "methods"
    data = "data"
    studies = "studies"
    towers = "towers"
    results = "results"


@app.command(epilog="Example: fpl-tune ls methods", rich_help_panel="Look at results")
def ls(kind: Annotated[Kind, typer.Argument(help="What to list.")], format: Formats = Format.table) -> None:
    """List methods, data sets, studies, towers, or the studies that have results."""
    work.look.ls(kind.value, format.value)


@app.command(epilog="Example: fpl-tune show lambda_sweep --rule best_val", rich_help_panel="Look at results")
def show(
    name: Stored,
    rule: Annotated[str | None, typer.Option(help="Reporting rule: final, best_val, best_test or mean_last5.")] = None,
    format: Formats = Format.table,
) -> None:
    """The results of a study: mean and deviation over seeds, the best cell, the reporting rule by name."""
    work.look.show(name, rule, format.value)


@app.command(epilog="Example: fpl-tune report lambda_sweep", rich_help_panel="Look at results")
def report(
    name: Stored,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: the study's own.")] = None,
    metric: Annotated[str | None, typer.Option(help="Figure to show, such as test/acc_worst10.")] = None,
    rule: Annotated[str | None, typer.Option(help="Reporting rule: final, best_val, best_test, mean_last5.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="What cells are tested against: a reference, a cell, or a value such as lam=0.")
    ] = None,
) -> None:
    """Write the report page, tables (Markdown, LaTeX, CSV) and figures of a study again."""
    work.look.report(name, out, metric=metric, rule=rule, reference=reference)


@app.command(epilog="Example: fpl-tune ui --port 5001", rich_help_panel="Look at results")
def ui(port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000) -> None:
    """Open MLflow's page on the store that the studies of this folder write to."""
    work.look.ui(port)


@app.command(epilog="Example: fpl-tune status lambda_sweep --watch", rich_help_panel="Look at results")
def status(
    name: Stored,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the study until nobody runs it.")] = False,
    format: Formats = Format.table,
) -> None:
    """Cells by state, finished seeds, and which process runs the study."""
    work.manage.status(name, watch, format.value)


@app.command(epilog="Example: fpl-tune compare lambda_sweep lambda_sweep_rn50", rich_help_panel="Look at results")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A study that has results.", autocompletion=complete.results)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=complete.results)],
    rule: Annotated[str, typer.Option(help="Reporting rule.")] = "final",
    anyway: Annotated[bool, typer.Option("--anyway", help="Also where partitions differ.")] = False,
    format: Formats = Format.table,
) -> None:
    """Differences of two studies, cell by cell, paired by seed."""
    work.manage.compare(a, b, rule, anyway, format.value)


@app.command(epilog="Example: fpl-tune best lambda_sweep --export best/", rich_help_panel="Look at results")
def best(
    name: Stored,
    rule: Annotated[str, typer.Option(help="Rule that chooses: final or best_val.")] = "final",
    export: Annotated[
        Path | None, typer.Option(help="Write configuration, prompts, nearest words and a script here.")
    ] = None,
    format: Formats = Format.table,
) -> None:
    """The cell that validation chooses, and what it takes to repeat it."""
    work.manage.best(name, rule, export, format.value)


@app.command(epilog="Example: fpl-tune verify lambda_sweep --rounds 3", rich_help_panel="Look at results")
def verify(
    name: Stored,
    cell: Annotated[str | None, typer.Option(help="Id or label of a cell; default: the best one.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to run again.")] = 2,
    format: Formats = Format.table,
) -> None:
    """Run the first rounds of a cell again and compare figures; exit code 1 where they differ."""
    work.manage.verify(name, cell, rounds, format.value)


@app.command(epilog="Example: fpl-tune replay lambda_sweep confidence=0.5", rich_help_panel="Look at results")
def replay(
    name: Stored,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Fields of prune.", autocompletion=complete.prune),
    ] = None,
    format: Formats = Format.table,
) -> None:
    """What pruning, or a random or TPE search of fewer cells, would have saved and lost on a finished study."""
    work.manage.replay(name, overrides or [], format.value)
