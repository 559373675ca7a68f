"""`fpl-tune show`: a study's results, or its best cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli.answers import kept
from fpl_tune.cli.common import Format, FormatOption, StoredStudy, app

if TYPE_CHECKING:
    from fpl_tune.study.store import Store


@app.command(epilog="Example: fpl-tune show lambda_sweep --rule best_val", rich_help_panel="Results")
@kept
def show(
    name: StoredStudy,
    best: Annotated[bool, typer.Option("--best", help="Only the cell that validation selects.")] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Which of the study's claims hold, and why.")] = False,
    rule: Annotated[str | None, typer.Option(help="Reporting rule: final, best_val, best_test or mean_last5.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """The results of a study: mean and deviation over seeds, the best cell, the reporting rule by name."""
    from fpl_tune.api import stored
    from fpl_tune.cli.results_table import results_table
    from fpl_tune.evaluate import check_rule

    store = stored(name)
    if best:
        show_best(store, rule or "final", format)
        return
    chosen = rule or store.spec().report.rule
    check_rule(chosen)
    if claims:
        show_claims(store, chosen, format)
        return
    results_table(store, chosen, format)


def show_claims(store: Store, rule: str, format: Format) -> None:
    """Prints the verdict on every claim of a study."""
    from fpl_tune.cli import output
    from fpl_tune.errors import ConfigError
    from fpl_tune.study import claims

    judged = claims.evaluate(store, rule)
    if not judged:
        raise ConfigError(f"{store.name} checks no claims. A study names them in report.claims, as `claims` does.")
    rows = [vars(claim) for claim in judged]
    if format is Format.table:
        rows = [{"": c.status, "claim": c.says, "shown in": c.source, "figures": c.reason} for c in judged]
    output.emit(rows, format, title="Claims", caption=claims.counts(judged))


def show_best(store: Store, rule: str, format: Format) -> None:
    """Prints the cell that validation selects by a rule."""
    from fpl_tune.cli import output
    from fpl_tune.study import selection

    found = selection.best(store, rule)
    row: dict[str, Any] = {
        "cell": found.label,
        "id": " ".join(cell.id for cell in found.cells),
        "chosen by": found.by,
        "rule": found.rule,
        "val/acc_mean": found.val,
        "test/acc_mean": found.test,
        "test_std": found.test_std,
        "seeds": found.seeds,
    }
    if format is Format.table:
        shown = {"val/acc_mean": output.percent(found.val), "test/acc_mean": output.percent(found.test, found.test_std)}
        names = {"val/acc_mean": "validation %", "test/acc_mean": "test %"}
        row = {names.get(k, k): shown.get(k, v) for k, v in row.items() if k != "test_std"}
    output.emit_object(row, format)
