"""`fpl-tune plan`: the work that a study has left, and whether this machine can do it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, StudyName, app
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import output_root

_SPARE = "up MB", "client GFLOP", "down MB", "memory MB", "client MB"
"""Columns that a narrow terminal may lack, the first of them last."""


@app.command(epilog="Example: fpl-tune plan lambda_sweep seeds=10 --format json", rich_help_panel="Run")
def plan(
    name: StudyName,
    overrides: Overrides = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Plan for another machine, by its GPU: h200, h100, a100, a100-40gb, l40s, a10g or l4."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="With --gpu: GPUs of a node.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="With --gpu: nodes.")] = None,
    format: FormatOption = "table",
) -> None:
    """Show the work of a study before it starts: new, stale and finished cells, time, memory and bytes.

    Exit code 2 if the study cannot run on this machine.
    """
    from fpl_tune.execute.plan.machine import Machine
    from fpl_tune.execute.plan.plan import make_plan
    from fpl_tune.search.compose import compose

    if gpu is None and (gpus or nodes):
        raise ConfigError("--gpus and --nodes describe a machine with GPUs. Name their kind: --gpu h100.")
    machine = Machine(gpu.lower(), gpus or 1, nodes or 1) if gpu else None
    study = compose(name, overrides or [])
    with output.progress(f"{study.spec.name}: planning cells") as follow:
        planned = make_plan(study, root=output_root(), machine=machine, follow=follow)
    rows = planned.rows()
    shown = {**planned.totals(), "plan": rows} if format == "json" else rows
    output.emit(shown, format, title=f"Plan of {study.spec.name}", narrow=True, spare=_SPARE)
    if format == "table":
        print(planned.sentence())
    if not planned.feasible:
        sys.exit(2)
