"""`fpl-tune show`: a study's results, or its best cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import Format, FormatOption, RuleOption, StoredStudy, app, stored
from fpl_tune.core.errors import ConfigError

if TYPE_CHECKING:
    from fpl_tune.study.store import Store


@app.command(epilog="Example: fpl-tune show lambda_sweep --rule best_val", rich_help_panel="Results")
def show(
    name: StoredStudy,
    best: Annotated[bool, typer.Option("--best", help="Only the cell that validation selects.")] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Which of the study's claims hold, and why.")] = False,
    rule: RuleOption = None,
    format: FormatOption = "table",
) -> None:
    """The results of a study: mean and deviation over seeds, the best cell, the reporting rule by name."""
    from fpl_tune.cli.results_table import results_table
    from fpl_tune.core.metrics import check_rule

    store = stored(name)
    if best:
        output.emit(_best(store, rule or "final", format == "table"), format)
        return
    chosen = rule or store.spec().report.rule
    check_rule(chosen)
    if claims:
        _print_claims(store, chosen, format)
    else:
        results_table(store, chosen, format)


def _print_claims(store: Store, rule: str, format: Format) -> None:
    """Prints the verdict on every claim of a study."""
    from fpl_tune.study import claims

    judged = claims.evaluate(store, rule)
    if not judged:
        raise ConfigError(f"{store.name} checks no claims. A study names them in report.claims, as `claims` does.")
    rows = [vars(claim) for claim in judged]
    if format == "table":
        rows = [{"": c.status, "claim": c.says, "shown in": c.source, "figures": c.reason} for c in judged]
    output.emit(rows, format, title="Claims", caption=claims.counts(judged))


def _best(store: Store, rule: str, table: bool) -> dict[str, Any]:
    """The cell that validation selects by a rule."""
    from fpl_tune.study import selection

    found = selection.best(store, rule)
    if table:
        val, test = output.percent(found.val), output.percent(found.test, found.test_std)
        figures: dict[str, Any] = {"validation %": val, "test %": test}
    else:
        figures = {"val/acc_mean": found.val, "test/acc_mean": found.test, "test_std": found.test_std}
    ids = " ".join(cell.id for cell in found.cells)
    chosen = {"cell": found.label, "id": ids, "chosen by": found.by, "rule": found.rule}
    return {**chosen, **figures, "seeds": found.tested}
