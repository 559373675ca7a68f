"""`fpl-tune show`: a study's results, or its best cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import RuleOption, StoredStudy, app, stored
from fpl_tune.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from fpl_tune.study.store import Store

Format = Literal["table", "json", "csv", "latex"]
_TRIALS = 20  # of a search that are printed


@app.command(epilog="Example: fpl-tune show lambda_sweep --rule best_val", rich_help_panel="Results")
def show(
    name: StoredStudy,
    best: Annotated[bool, typer.Option("--best", help="Only the cell that validation selects.")] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Which of the study's claims hold, and why.")] = False,
    rule: RuleOption = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the table, e.g. cell,test,seeds; an unknown name lists all.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
) -> None:
    """The results of a study: mean and deviation over seeds, the best cell, the reporting rule by name."""
    from fpl_tune.core.metrics import check_rule

    store = stored(name)
    if (best or claims) and (format == "latex" or columns):
        raise ConfigError("--columns and --format latex are of the table of all cells. Leave out --best and --claims.")
    if best:
        output.emit(_best(store, rule or "final", format == "table"), format)
        return
    chosen = rule or store.study().report.rule
    check_rule(chosen)
    if claims:
        _print_claims(store, chosen, format)
    else:
        print_results(store, chosen, format, columns.split(",") if columns else None)


def print_results(store: Store, rule: str, format: Format, columns: Sequence[str] | None = None) -> None:
    """Prints a study's cells under a reporting rule; the best one, selected on validation, in bold."""
    from fpl_tune.core.formatting import counted, percent, plus_minus
    from fpl_tune.study import results, selection
    from fpl_tune.study.records import axes_of
    from fpl_tune.study.status import Status

    study, cells = store.study(), store.cells()
    metric, seeds = study.report.metric, study.seed_list()
    table = store.rows(metric)
    records = results.summarise(table, cells, seeds, rule, metric)
    others = _other_sets(store, rule)
    if format in ("json", "csv") and columns is None:
        judged = _comparisons(store, rule) if format == "json" else {}
        output.emit([{**r, **others.get(r["cell"], {}), **judged.get(r["cell"], {})} for r in records], format)
        return
    titles = output.other_sets(name for found in others.values() for name in found)
    choice = selection.choose(table, cells, study, rule)
    chosen = {cell.id for cell in choice.cells} if choice else set[str]()
    name = "test %" if percent(metric) else metric
    rows: list[dict[str, Any]] = []
    for cell, record in zip(cells, records, strict=True):
        status = "" if record["status"] == Status.DONE else record["status"]
        if status in (Status.PENDING, Status.PARTIAL) and (rounds := store.checkpointed(cell)):
            status = f"{rounds}/{cell.node['protocol']['rounds']}"
        if cell.id in chosen:
            status = "best"
        row = {"cell": cell.label, "status": status, "validation": output.percent(record[results.VAL])}
        row["test"] = plus_minus(record["mean"], record["std"], metric, 1)
        row |= {title.removesuffix(" %"): output.percent(others[cell.id].get(key)) for key, title in titles.items()}
        row["seeds"] = str(record["n"]) if record["n"] >= len(seeds) else f"{record['n']} of {len(seeds)}"
        rows.append({**row, "id": cell.id})
    notes = [f"{metric} by the rule '{rule}'{' (selects on test figures)' if rule == 'best_test' else ''}"]
    if max((record["n"] for record in records), default=0) > 1:
        notes.append("± is the deviation over seeds")
    notes += [output.HARMONIC] if "HM" in rows[0] else []
    shown = list(range(len(rows)))
    if choice is not None:
        notes.append(
            "best on validation in bold" + (f": {choice.by}" if len(choice.cells) > 1 or choice.uneven else "")
        )
        if study.search.sampler is not None:
            shown = _leading(records, [axis for axis in axes_of(study.axes) if axis in records[0]])
            if len(shown) < len(rows):
                notes.append(f"{counted(len(rows) - len(shown), 'more trial')}: --format csv")
    best = [at for at, i in enumerate(shown) if cells[i].id in chosen]
    rows = [rows[i] for i in shown]
    if columns is not None:
        for column in columns:
            if rows and column not in rows[0]:
                raise unknown("column", column, rows[0])
        rows = [{column: row[column] for column in columns} for row in rows]
    elif format == "table" and not output.room():  # three columns, and the status behind the name
        rows = [
            {
                "cell": f"{row['cell']} ({row['status']})" if row["status"] else row["cell"],
                "val %": row["validation"],
                "test": row["test"].partition(" ±")[0],
            }
            for row in rows
        ]
    else:
        left_out = {"status", "id"} if format == "latex" else {"id"} if output.room() == 1 else set[str]()
        rows = [{column: text for column, text in row.items() if column not in left_out} for row in rows]
    title, headed = study.title or study.name, {"status": "", "validation": "validation %", "test": name}
    headed |= {title.removesuffix(" %"): title for title in titles.values()}
    rows = [{headed.get(column, column): text for column, text in row.items()} for row in rows]
    if format == "latex":
        from fpl_tune.report.table import latex

        header = list(rows[0]) if rows else ["cell"]
        print(latex(header, [list(row.values()) for row in rows], best, f"{title}: {'; '.join(notes)}"), end="")
    else:
        output.emit(rows, format, title=title, best=best, caption="; ".join(notes))


def _other_sets(store: Store, rule: str) -> dict[str, dict[str, float]]:
    """Means over seeds of what is measured on other test sets, by cell id; the mean over rounds stands for none."""
    from fpl_tune.study.results import aggregate
    from fpl_tune.study.status import COUNTED

    found: dict[str, dict[str, float]] = {}
    cells = [cell for cell in store.cells() if cell.node["partition"]["evaluation"] != "personal"]
    if cells and rule != "mean_last5":
        store.check()  # leaves out seeds whose history is damaged
    for cell in cells if rule != "mean_last5" else []:
        records: list[Mapping[str, Any]] = []
        for seed, result in store.shown_results(cell).items():
            if result["status"] in COUNTED and rule in result["rules"]:
                at = result["rules"][rule]["round"]
                records += [record for record in store.history(cell, seed) if record["round"] == at]
        names = output.other_sets(name for record in records for name in record)
        found[cell.id] = {n: aggregate([r.get(n, math.nan) for r in records])["mean"] for n in names}
    return found


def _comparisons(store: Store, rule: str) -> dict[str, dict[str, Any]]:
    """What is decided of each cell against its reference: by cell id, fields named as in `analysis.compare`."""
    from fpl_tune.report.facts import Facts  # takes its time to load
    from fpl_tune.report.reference import against

    facts = Facts(store, rule=rule)
    names = {cell.id: cell.label for cell in facts.cells}
    found = against(facts).rename(
        columns={"low": "difference_low", "high": "difference_high", "seeds": "paired_seeds",
                 "clients": "paired_clients"}
    )  # fmt: skip
    rows = found.assign(reference=found["reference"].map(names)).to_dict("index")
    return {str(cell): {str(name): value for name, value in row.items()} for cell, row in rows.items()}


def _leading(records: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[int]:
    """Indices of a search's rows that are printed: references, then the best of each part and the best of all."""
    from fpl_tune.study.results import VAL

    trials = [i for i, record in enumerate(records) if record["role"] == "trial"]
    trials.sort(key=lambda i: (math.isnan(records[i][VAL]), -records[i][VAL]))
    firsts: dict[str, int] = {}
    for i in trials:
        firsts.setdefault(repr([records[i][axis] for axis in axes]), i)
    shown = {*trials[:_TRIALS], *firsts.values()}
    return [*sorted({*range(len(records))} - {*trials}), *(i for i in trials if i in shown)]


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
