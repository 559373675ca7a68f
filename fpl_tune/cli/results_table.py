"""The table of a study's cells, which `show` and `study` print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.cli import output
from fpl_tune.cli.common import Format
from fpl_tune.formatting import counted, percent
from fpl_tune.study import earlier, results, selection
from fpl_tune.study.cells import axes_of
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

_TRIALS = 20  # of a search that are printed


def results_table(store: Store, rule: str, format: Format) -> None:
    """Prints a study's cells under a reporting rule; the best one, selected on validation, in bold."""
    spec, cells = store.spec(), store.cells()
    metric = spec.report.metric
    share = percent(metric)
    found = store.frame(metric)
    frame = results.summary(found, cells, spec.seed_list(), rule, metric)
    choice = selection.choose(found, cells, spec, rule)
    chosen = {cell.id for cell in choice.cells} if choice else set[str]()
    room = output.room()
    judged = _comparisons(store, rule) if format is Format.json else {}
    rows, ranks, wanted, before = [], [], len(spec.seed_list()), earlier.marked(store)
    for cell, record in zip(cells, frame.to_dict("records"), strict=True):
        if format is not Format.table:
            rows.append({**record, **judged.get(record["cell"], {})})
            continue
        ranks.append(_rank(record, record[results.VAL], [name for name in axes_of(spec.axes) if name in record]))
        done = "earlier" if record["cell"] in before else ""
        status = "best" if record["cell"] in chosen else done if record["status"] == "done" else record["status"]
        if status in (Status.PENDING, Status.PARTIAL) and (rounds := store.checkpointed(cell)):
            status = f"{rounds}/{cell.run.rounds}"
        val, mean, std = record[results.VAL], record["mean"], record["std"]
        figure = output.percent if share else output.measured
        if not room:  # three columns, and the status behind the name
            mark = f" ({status})" if status else ""
            name = "test %" if share else metric
            rows.append({"cell": f"{record['label']}{mark}", "val %": output.percent(val), name: figure(mean)})
            continue
        row = {"cell": record["label"], "": status, "validation %": output.percent(val)}
        row["test %" if share else metric] = figure(mean, std)
        row["seeds"] = str(record["n"]) if record["n"] >= wanted else f"{record['n']} of {wanted}"
        rows.append({**row, "id": record["cell"]} if room > 1 else row)
    on_test = " (selects on test figures)" if rule == "best_test" else ""
    notes = [f"{metric} by the rule '{rule}'{on_test}"]
    if room and frame["n"].max() > 1:
        notes.append("± is the deviation over seeds")
    if format is Format.table and choice is not None:
        notes.append("best on validation in bold" + (f": {choice.by}" if len(choice.cells) > 1 else ""))
        if spec.search.sampler is not None:
            kept = _leading(ranks)
            if len(kept) < len(rows):
                notes.append(f"{counted(len(rows) - len(kept), 'more trial')}: --format csv")
            rows = [rows[i] for i in kept]
    notes += filter(None, [earlier.note(store)])
    best = [i for i, row in enumerate(rows) if row.get("") == "best" or str(row.get("cell")).endswith(" (best)")]
    output.emit(rows, format, title=spec.title or spec.name, best=best, caption="; ".join(notes))


def _comparisons(store: Store, rule: str) -> dict[str, dict[str, Any]]:
    """What is decided of each cell against its reference: by cell id, fields named as in `analysis.compare`."""
    from fpl_tune.report.facts import Facts  # takes its time to load
    from fpl_tune.report.significance import against_reference

    facts = Facts(store, rule=rule)
    names = {cell.id: cell.label for cell in facts.cells}
    found = against_reference(facts).drop(columns=["interval"]).rename(
        columns={"low": "difference_low", "high": "difference_high", "seeds": "paired_seeds",
                 "clients": "paired_clients"}
    )  # fmt: skip
    rows = found.assign(reference=found["reference"].map(names)).to_dict("index")
    return {str(cell): {str(name): value for name, value in row.items()} for cell, row in rows.items()}


_Rank = tuple[str, str, float]


def _rank(record: Mapping[str, Any], val: float, axes: Sequence[str]) -> _Rank:
    """Role, values of the axes and validation accuracy of a cell, -1 where it has none."""
    return record["role"], repr([record[name] for name in axes]), -1.0 if math.isnan(val) else val


def _leading(ranks: Sequence[_Rank]) -> list[int]:
    """Indices of a search's rows that are printed: references, then the best of each part and the best of all."""
    trials = sorted((i for i, rank in enumerate(ranks) if rank[0] == "trial"), key=lambda i: -ranks[i][2])
    firsts = {ranks[i][1]: i for i in reversed(trials)}.values()
    return [*(i for i, rank in enumerate(ranks) if rank[0] != "trial"),
            *(i for n, i in enumerate(trials) if n < _TRIALS or i in firsts)]  # fmt: skip
