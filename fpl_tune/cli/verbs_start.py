"""Verbs that run something, or say what running it would do."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from fpl_tune.cli import work
from fpl_tune.cli.frame import Budget, Cfg, Format, Formats, Overrides, StudyName, app


@app.command(epilog="Example: fpl-tune run method=pfedmoap method.d_gating=32 protocol=quick", rich_help_panel="Run")
def run(
    overrides: Overrides = None,
    seeds: Annotated[str, typer.Option(help="Number of seeds, or a list such as 1,2,5.")] = "1",
    format: Formats = Format.table,
    cfg: Cfg = False,
) -> None:
    """One federated simulation in the terminal; nothing is recorded."""
    work.run.run(overrides or [], seeds, format.value, cfg)


@app.command(epilog="Example: fpl-tune study lambda_sweep method.experts=5 seeds=5", rich_help_panel="Run")
def study(
    name: StudyName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only; nothing is started.")] = False,
    budget: Budget = None,
    format: Formats = Format.table,
    cfg: Cfg = False,
) -> None:
    """Run a study, or continue it: finished cells are never run again."""
    (work.study.plan if dry_run else work.study.study)(name, _with(overrides, budget), format.value, cfg)


@app.command(epilog="Example: fpl-tune plan lambda_sweep seeds=10 --format json", rich_help_panel="Run")
def plan(
    name: StudyName,
    overrides: Overrides = None,
    budget: Budget = None,
    format: Formats = Format.table,
    cfg: Cfg = False,
) -> None:
    """What a study would run: cells, time, memory, exact bytes, what a budget drops, and whether the machine can."""
    work.study.plan(name, _with(overrides, budget), format.value, cfg)


def _with(overrides: list[str] | None, budget: str | None) -> list[str]:
    return [*(overrides or []), *([f"budget={budget}"] if budget is not None else [])]


@app.command(epilog="Example: fpl-tune diff lambda_sweep seeds=5", rich_help_panel="Run")
def diff(name: StudyName, overrides: Overrides = None, format: Formats = Format.table) -> None:
    """What running a study now would do to each cell: new, stale (and why), partly done, done."""
    work.manage.diff(name, overrides or [], format.value)


class Bench(str, Enum):
    """What `bench` measures."""

    text = "text"
    round = "round"
    trial = "trial"
    study = "study"
    desk = "desk"
    record = "record"


@app.command(epilog="Example: fpl-tune bench text --format json", rich_help_panel="Run")
def bench(
    kind: Annotated[Bench, typer.Argument(help="What to measure.")] = Bench.round,
    overrides: Overrides = None,
    format: Formats = Format.table,
) -> None:
    """Measure what a step, a round or a trial costs, beside the plain path in the same run.

    `desk` measures what planning, starting and searching take, `record` what MLflow does.
    """
    work.bench.bench(kind.value, overrides or [], format.value)
