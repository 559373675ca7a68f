"""`fpl-tune plan`: the work that a study has left, and whether this machine can do it."""

from __future__ import annotations

import sys

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, StudyName, app
from fpl_tune.core.paths import output_root


@app.command(epilog="Example: fpl-tune plan lambda_sweep seeds=10 --format json", rich_help_panel="Run")
def plan(
    name: StudyName,
    overrides: Overrides = None,
    format: FormatOption = "table",
) -> None:
    """Show the work of a study before it starts: new, stale and finished cells, time, memory and bytes.

    Exit code 2 if the study cannot run on this machine.
    """
    from fpl_tune.execute.plan.plan import make_plan
    from fpl_tune.search.compose import compose

    study = compose(name, overrides or [])
    planned = make_plan(study, root=output_root())
    rows = planned.rows()
    output.emit(
        {**planned.totals(), "plan": rows} if format == "json" else rows, format, title=f"Plan of {study.spec.name}"
    )
    if format == "table":
        print(planned.sentence())
    if not planned.feasible:
        sys.exit(2)
