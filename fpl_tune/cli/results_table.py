"""The table of a study's cells, which `show` and `study` print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.cli import output
from fpl_tune.cli.common import Format
from fpl_tune.core.formatting import counted, percent, plus_minus
from fpl_tune.study import results, selection
from fpl_tune.study.cells import axes_of
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

_TRIALS = 20  # of a search that are printed


def results_table(store: Store, rule: str, format: Format) -> None:
    """Prints a study's cells under a reporting rule; the best one, selected on validation, in bold."""
    spec, cells = store.spec(), store.cells()
    metric, wanted, room = spec.report.metric, len(spec.seed_list()), output.room()
    found = store.frame(metric)
    frame = results.summary(found, cells, spec.seed_list(), rule, metric)
    records = [{str(name): value for name, value in record.items()} for record in frame.to_dict("records")]
    if format != "table":
        judged = _comparisons(store, rule) if format == "json" else {}
        output.emit([{**record, **judged.get(record["cell"], {})} for record in records], format)
        return
    choice, before = selection.choose(found, cells, spec, rule), store.earlier_ids()
    chosen = {cell.id for cell in choice.cells} if choice else set[str]()
    name = "test %" if percent(metric) else metric
    rows: list[dict[str, Any]] = []
    for cell, record in zip(cells, records, strict=True):
        status = "" if record["status"] == Status.DONE else record["status"]
        if status in (Status.PENDING, Status.PARTIAL) and (rounds := store.checkpointed(cell)):
            status = f"{rounds}/{cell.run.rounds}"
        if cell.id in chosen:
            status = "best"
        elif not status and cell.id in before:
            status = "earlier"
        val = output.percent(record[results.VAL])
        if not room:  # three columns, and the status behind the name
            label = f"{cell.label} ({status})" if status else cell.label
            rows.append({"cell": label, "val %": val, name: plus_minus(record["mean"], None, metric, 1)})
            continue
        row = {"cell": cell.label, "": status, "validation %": val}
        row[name] = plus_minus(record["mean"], record["std"], metric, 1)
        row["seeds"] = str(record["n"]) if record["n"] >= wanted else f"{record['n']} of {wanted}"
        rows.append({**row, "id": cell.id} if room > 1 else row)
    notes = [f"{metric} by the rule '{rule}'{' (selects on test figures)' if rule == 'best_test' else ''}"]
    if room and frame["n"].max() > 1:
        notes.append("± is the deviation over seeds")
    shown = list(range(len(rows)))
    if choice is not None:
        notes.append("best on validation in bold" + (f": {choice.by}" if len(choice.cells) > 1 else ""))
        if spec.search.sampler is not None:
            shown = _leading(records, [axis for axis in axes_of(spec.axes) if axis in frame])
            if len(shown) < len(rows):
                notes.append(f"{counted(len(rows) - len(shown), 'more trial')}: --format csv")
    notes += filter(None, [store.earlier_note()])
    best = [at for at, i in enumerate(shown) if cells[i].id in chosen]
    title = spec.title or spec.name
    output.emit([rows[i] for i in shown], format, title=title, best=best, caption="; ".join(notes))


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
    trials = [i for i, record in enumerate(records) if record["role"] == "trial"]
    trials.sort(key=lambda i: (math.isnan(records[i][results.VAL]), -records[i][results.VAL]))
    firsts: dict[str, int] = {}
    for i in trials:
        firsts.setdefault(repr([records[i][axis] for axis in axes]), i)
    shown = {*trials[:_TRIALS], *firsts.values()}
    return [*sorted({*range(len(records))} - {*trials}), *(i for i in trials if i in shown)]
