"""`fpl-tune show`: a study's results, or its best cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import Format, FormatOption, RuleOption, StoredStudy, app, stored
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import titles
from fpl_tune.study.cells import axes_label, axes_of, field_text

if TYPE_CHECKING:
    from fpl_tune.config import ReportSpec
    from fpl_tune.report.panels import PageTable
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store
    from fpl_tune.study.table import StudyTable

_TRIALS = 10  # of a search that are printed


@app.command(epilog="Example: fpl-tune show lambda_sweep --rule best_val", rich_help_panel="Results")
def show(
    name: StoredStudy,
    best: Annotated[bool, typer.Option("--best", help="Only the cell that validation selects.")] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Which of the study's claims hold, and why.")] = False,
    rule: RuleOption = None,
    format: FormatOption = "table",
) -> None:
    """Show the results of a study: mean and deviation over seeds, the best cell, the reporting rule by name."""
    from fpl_tune.core.metrics import check_rule

    store = stored(name)
    table = store.table()
    if best:
        _print_best(table, rule, format)
        return
    chosen = rule or table.study.report.rule
    check_rule(chosen)
    store.refresh_tables()
    if claims:
        _print_claims(store.spec().report, table, chosen, format)
    else:
        print_results(store, chosen, format)


def print_results(store: Store, rule: str, format: Format) -> None:
    """Prints a study's cells under a reporting rule; the best one, or the front of several objectives, in bold.

    A study with searches in the cells of its axes has the table of tuned methods by settings and their chosen values;
    other searches have their trials, with as many searched fields as fit in the terminal's width.
    """
    from fpl_tune.core.formatting import counted, figure, plus_minus, quantity
    from fpl_tune.core.metrics import metric as known_metric
    from fpl_tune.findings import edited, limits
    from fpl_tune.findings.choice import BY_VALIDATION, choose, objectives_of
    from fpl_tune.findings.unasked import Unasked
    from fpl_tune.study.results import TEST, VAL
    from fpl_tune.study.standing import CellState

    table = store.table()
    study, cells = table.study, {key: row.cell for key, row in table.rows.items()}
    metric, objectives = study.report.metric, objectives_of(study)
    sets = output.other_sets(table.metrics if rule != "mean_last5" else ())
    records = table.summary(rule, metric, *objectives, *sets)
    if format != "table":
        output.emit(records, format)
        return
    choice = choose(table.rows.values(), rule, study)
    chosen = {cell.id for cell in choice.cells} if choice else set[str]()
    outside = {row.cell.id for row in limits.candidates(table.rows.values()) if not row.within(rule)}
    marked = "on the front" if choice and choice.front else "best"
    title = study.title or study.name

    def reached(record: Mapping[str, Any], validation: str) -> dict[str, str]:
        status = [marked] * (record["cell"] in chosen) + [record["status"]] * (record["status"] != CellState.DONE)
        status += ["outside limits"] * (record["cell"] in outside)
        row = {"status": ", ".join(status), validation: output.percent(record[VAL])}
        row |= {quantity(n, over=""): figure(record[n], n) for n in objectives if n not in (VAL, metric)}
        measured = "test" if metric == TEST else quantity(metric, over="")
        row[measured] = plus_minus(record["mean"], record["std"], metric, 1)
        row |= {title: output.percent(record[name]) for name, title in sets.items() if name != metric}
        wanted = len(table.design.first_seeds_of(cells[record["cell"]]))
        return row | {"seeds": str(record["n"]) if record["n"] >= wanted else f"{record['n']} of {wanted}"}

    def bold(of: Sequence[Mapping[str, Any]]) -> list[int]:
        return [i for i, record in enumerate(of) if record["cell"] in chosen]

    def searched(record: Mapping[str, Any]) -> str:
        name = axes_label(cells[record["cell"]], axes)
        return name if name in by_setting else ""

    axes, by_setting = axes_of(study.axes), dict[str, list[dict[str, Any]]]()
    for record in records:
        if record["role"] == "trial":
            by_setting.setdefault(axes_label(cells[record["cell"]], axes), []).append(record)
    others = [record for record in records if record["role"] != "trial"]
    if by_setting:
        order = [*by_setting, ""]
        others.sort(key=lambda record: (record["role"] == "reference", order.index(searched(record))))
    notes = [f"{metric} by the rule '{rule}'{' (selects on test figures)' if rule == 'best_test' else ''}"]
    notes += ["accuracies in %", *(["± is the deviation over seeds"] if known_metric(metric).sampled else [])]
    if len(by_setting) > 1 and _print_tuned(store, table, rule, title):
        notes.append(f"{counted(sum(map(len, by_setting.values())), 'trial')} with --format csv and on the report page")
        by_setting, others = {}, []
    elif text := limits.nothing(table.rows.values(), rule, study):
        notes.append(text.rstrip("."))
    elif choice is not None and choice.front:
        notes.append(f"{choice.by}: no cell is best")
    elif choice is not None:
        notes.append("best on validation in bold" if choice.by == BY_VALIDATION else f"bold: {choice.by}")
    if others and by_setting:
        rows = [{"cell": cells[record["cell"]].title, **reached(record, "validation")} for record in others]
        output.emit(rows, format, title=title, best=bold(others), narrow=True)
        title = "trials"
    for setting, trials in by_setting.items():
        trials.sort(key=lambda record: (record["cell"] in outside, _rank(record, objectives[0])))
        most = max(_TRIALS // len(by_setting), 3)
        leading = [record for i, record in enumerate(trials) if i < most or record["cell"] in chosen]
        rows, spare, more = _rows(
            [(cells[record["cell"]], reached(record, "val")) for record in leading],
            [cells[record["cell"]] for record in trials],
        )
        if any(record["status"] == CellState.PRUNED for record in leading):
            more.append("values of pruned trials are of fewer rounds or seeds")
        if left := len(trials) - len(leading):
            early = sum(record["status"] == CellState.PRUNED for record in trials if record not in leading)
            more.append(f"{counted(left, 'more trial')} with --format csv, {early} of them stopped early")
        named = ": ".join(filter(None, [title if setting == next(iter(by_setting)) else "", setting]))
        output.emit(rows, format, named, bold(leading), "; ".join(more), narrow=True, spare=spare)
    if others and not by_setting:
        rows = [{"cell": cells[record["cell"]].title, **reached(record, "validation")} for record in others]
        output.emit(rows, format, title=title, best=bold(others))
    output.console().print("; ".join(notes))
    if left_out := Unasked(store, store.node(), [*cells.values()]).note():
        output.console().print(left_out)
    if stale := edited.note(table):
        output.warn(stale)


def _print_tuned(store: Store, table: StudyTable, rule: str, title: str) -> bool:
    """Prints the table of tuned methods by settings, the chosen method in bold, and the chosen values.

    Returns:
        False if the study has no such table, or not yet.
    """
    from fpl_tune.findings.findings import Findings
    from fpl_tune.report import tuned

    findings = Findings(store.spec(), table, rule=rule)
    if findings.tuned_table is None:
        return False
    methods, chosen = [*findings.tuned_table.rows], findings.tuned_table.rows_of(findings.chosen)

    def rows(of: PageTable) -> list[dict[str, str]]:
        return [dict(zip(of.header, (f"{td.text}{'*' * td.bold}" for td in row.cells), strict=True)) for row in of.rows]

    best, note = [methods.index(method) for method in chosen], tuned.note(findings, bold="*")
    output.emit(rows(tuned.table(findings)), "table", title=title, best=best, caption=note, narrow=True)
    chosen = tuned.values(findings)
    output.emit(rows(chosen), "table", title="chosen values", caption=tuned.marked(chosen), narrow=True)
    return True


def _rank(record: Mapping[str, Any], objective: str) -> tuple[bool, bool, float]:
    """Sort key of trials: completed ones first, by the objective."""
    from fpl_tune.core.metrics import comparable
    from fpl_tune.findings.choice import sign
    from fpl_tune.study.standing import CellState

    value = record[objective]
    return record["status"] == CellState.PRUNED, math.isnan(value), -sign(objective) * comparable(value)


def _rows(
    leading: Sequence[tuple[Cell, dict[str, str]]], trials: Sequence[Cell]
) -> tuple[list[dict[str, str]], list[str], list[str]]:
    """The rows of a search's table, the columns of searched fields, and notes on fields that are the same in all rows.

    The columns are ranked: those with the most different values among the shown trials come first.

    Args:
        leading: the trials that are shown, with their metrics by column.
        trials: all trials of the search.
    """
    names = dict.fromkeys(name for cell in trials for name in cell.varied)
    fields = titles(name for name in names if len({repr(cell.varied.get(name)) for cell in trials}) > 1)
    values = {fields[name]: [field_text(cell, name) for cell, _ in leading] for name in fields}
    same = [name for name in values if len({*values[name]}) == 1 < len(leading)]
    ranked = sorted((name for name in values if name not in same), key=lambda name: -len({*values[name]}))
    rows = [
        {"trial": f"{cell.trial_number}{cell.reference_note}"}
        | {name: values[name][i] for name in values if name in ranked}
        | figures
        for i, (cell, figures) in enumerate(leading)
    ]
    return rows, ranked, [f"in all of them: {', '.join(f'{n}={values[n][0]}' for n in same)}"] if same else []


def _print_claims(report: ReportSpec, table: StudyTable, rule: str, format: Format) -> None:
    """Prints the verdict on every claim of a study."""
    from fpl_tune.findings import claims

    judged = claims.evaluate(table, report, rule)
    if not judged:
        raise ConfigError(
            f"{table.study.name} checks no claims. A study names them in report.claims, as `claims` does."
        )
    rows = [vars(claim) for claim in judged]
    if format == "table":
        rows = [{"": c.status, "claim": c.says, "shown in": c.source, "figures": c.reason} for c in judged]
    output.emit(rows, format, title="Claims", caption=claims.counts_sentence(judged))


def _print_best(table: StudyTable, rule: str | None, format: Format) -> None:
    """Prints the cell that validation selects by a rule, or the cells of the front."""
    from fpl_tune.core.formatting import figure, quantity
    from fpl_tune.findings.choice import choose_finished, selecting_rule
    from fpl_tune.study.results import TEST, VAL

    rule = rule or selecting_rule(table.study.report.rule)
    choice, worded = choose_finished(table, rule), format == "table"
    if choice.front:
        tested = {row["cell"]: row for row in table.summary(rule)}
        records = []
        for cell, values in zip(choice.cells, choice.values, strict=True):
            test, named = tested[cell.id], dict(zip(choice.objectives, values, strict=True))
            record = {"cell": cell.label, "id": cell.id, "rule": rule, "compared on seeds": choice.seeds}
            if worded:
                named = {quantity(name, over=""): figure(value, name) for name, value in named.items()}
                records.append({**record, **named, "test %": output.percent(test["mean"], test["std"])})
            else:
                records.append({**record, **named, TEST: test["mean"], "test_std": test["std"], "seeds": test["n"]})
        output.emit(records, format, caption=f"{choice.by}: no cell is best", title=table.study.name)
        return
    ids, name = " ".join(cell.id for cell in choice.cells), choice.objectives[0]
    chosen = {"cell": choice.label, "id": ids, "chosen by": choice.by, "rule": rule}
    chosen |= {"compared on seeds": choice.seeds, "tested on seeds": choice.tested}
    if worded:
        value = output.percent(choice.value) if name == VAL else figure(choice.value, name)
        chosen |= {
            "validation %" if name == VAL else quantity(name, over=""): value,
            "test %": output.percent(choice.test, choice.test_std),
        }
    else:
        chosen |= {name: choice.value, TEST: choice.test, "test_std": choice.test_std}
    output.emit(chosen, format)
