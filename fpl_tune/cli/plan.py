"""`fpl-tune plan`: what a study would run, and whether it can."""

from __future__ import annotations

import sys

from fpl_tune.cli import answers
from fpl_tune.cli.common import (
    BudgetOption,
    ConfigOption,
    Format,
    FormatOption,
    Overrides,
    SeedsOption,
    StudyName,
    app,
    with_options,
)


@app.command(epilog="Example: fpl-tune plan lambda_sweep seeds=10 --format json", rich_help_panel="Run")
@answers.kept
def plan(
    name: StudyName,
    overrides: Overrides = None,
    budget: BudgetOption = None,
    seeds: SeedsOption = None,
    format: FormatOption = Format.table,
    cfg: ConfigOption = False,
) -> None:
    """What a study would run and why: new, stale and finished cells, time, memory, exact bytes, what a budget drops.

    Exit code 2 if the study cannot run on this machine.
    """
    from fpl_tune.cli import output
    from fpl_tune.paths import output_folder
    from fpl_tune.plan.overrides import compose

    spec, node = compose(name, with_options(overrides, budget=budget, seeds=seeds), output_folder())
    if cfg:
        output.emit_config(node)
        return
    from fpl_tune.paths import output_root
    from fpl_tune.plan.plan import make_plan

    with output.progress("measuring") as progress:
        found = make_plan(spec, node, root=output_root(), progress=progress)
    if not answers.lasting(node):
        output.once()
    outside = [{"cell": cell.label, "status": state, "why": why} for cell, state, why in found.outside]
    if format is Format.json:
        output.emit_object({**found.totals(), "plan": [*found.rows(), *outside]}, format)
    elif format is Format.csv:
        output.emit([*found.rows(), *outside], format)
    else:
        rows = found.rows()
        if not output.room():  # no column that would be folded
            rows = [{name: row[name] for name in ("cell", "status", "seconds")} for row in rows]
        output.emit(rows, format, title=f"Plan of {spec.name}")
        output.say(found.sentence())
    if not found.feasible:
        sys.exit(2)
