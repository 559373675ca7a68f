"""The result table of a study: metrics, costs, reporting rules, and the summary over seeds.

Every reader of results uses these definitions: the store's tables, the report, MLflow, searches and the command line.
Tables are lists of rows, plain dicts; pandas is imported only where a data frame is handed in.
"""

from __future__ import annotations

import datetime
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpl_tune.core.metrics import TEST, TOTAL_BYTES, VAL, report_rules, shown_beside
from fpl_tune.core.metrics import metric as known_metric
from fpl_tune.core.nested import get_field
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import FAILURES, Status

if TYPE_CHECKING:
    import pandas as pd

    from fpl_tune.simulation.simulation import Record

Row = dict[str, Any]
"""A row of a table: column -> value."""

METRICS = (VAL, TEST)
"""Metrics that every result holds, by rule."""
COSTS = ("comm/up_bytes", "comm/down_bytes", "time/seconds")
"""Running totals of a seed."""


def rules_of(history: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Applies every reporting rule to one seed's evaluated rounds.

    Returns:
        Rule -> round, validation accuracy, test accuracy, and what tables show beside them at that round. Without
        validation images, only the rules that do not need them.
    """
    seen = [record for record in history if TEST in record]
    if not seen:
        return {}
    rules = report_rules([{VAL: math.nan, **record} for record in seen], TEST)
    if any(VAL not in record for record in seen):
        rules.pop("best_val")
    for name, rule in rules.items():
        record = seen[int(rule["round"]) - 1]
        rule |= {"round": int(record["round"])}
        for beside in shown_beside(record):
            meant = name == "mean_last5" and known_metric(beside).source == "round"
            rule[beside] = _mean(seen[-5:], beside) if meant else record[beside]
    return rules


def _mean(records: Sequence[Record], metric: str) -> float:
    """The mean of a metric over records; NaN where one lacks it."""
    return math.fsum(float(record.get(metric, math.nan)) for record in records) / len(records)


def make_result(status: str, history: Sequence[Record], *, error: str | None = None, **extra: Any) -> dict[str, Any]:
    """Builds the stored result of one seed.

    Args:
        status: the seed's status.
        history: its records by round.
        error: why it failed.
        extra: `split_hash`, `fingerprints`.
    """
    last: Mapping[str, Any] = history[-1] if history else {}
    return {
        "status": status,
        "error": error,
        "rounds": int(last.get("round", 0)),
        "rules": {} if status in FAILURES else rules_of(history),
        **{name: last.get(name, 0) for name in COSTS},
        "split_hash": extra.pop("split_hash", ""),
        **extra,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def figure(history: Sequence[Record], metric: str, rule: str = "final") -> float:
    """Reads one metric of one seed under a reporting rule.

    Returns:
        The metric at the round that the rule chooses; for costs the total at the end of the run; NaN if no record
        holds it.
    """
    if not history:
        return math.nan
    last = history[-1]
    if metric == TOTAL_BYTES:
        return float(last["comm/up_bytes"] + last["comm/down_bytes"])
    if known_metric(metric).source != "round":
        return float(last.get(metric, math.nan))
    rules = rules_of(history)
    chosen = rules.get(rule, rules.get("final", {}))
    if metric in chosen:
        return float(chosen[metric])
    if rule == "mean_last5" and chosen:
        return _mean([record for record in history if TEST in record][-5:], metric)
    at = chosen.get("round", last["round"])
    return float(next(r for r in history if r["round"] == at).get(metric, math.nan))


def table(
    cells: Sequence[Cell],
    results: Mapping[str, Mapping[int, Mapping[str, Any]]],
    metric: str,
    history: Callable[[Cell, int], Sequence[Record]],
    earlier: Collection[str] = (),
) -> list[Row]:
    """Builds the result table: one row per cell, seed and reporting rule.

    Args:
        cells: the cells in order.
        results: cell id -> seed -> result; see `Store.shown_results`.
        metric: gets a column of its own.
        history: reads the records of a seed, for a metric that results do not hold.
        earlier: ids of the cells of earlier runs.

    Returns:
        Rows with the columns cell, seed, status, rule, rounds, the fields that vary, metrics, those that results hold
        beside them, costs, label, role, seeds, the number of the cell's seeds that count, and whether the cell is of an
        earlier run. A seed without metrics has one row, of the rule `final`.
    """
    rules = (rule for stored in results.values() for result in stored.values() for rule in result["rules"].values())
    shown = [*METRICS, *dict.fromkeys(name for rule in rules for name in rule if name not in ("round", *METRICS))]
    more = [] if metric in (*shown, *COSTS) else [metric]
    names, rows = varied_names(cells), []
    for cell in cells:
        place, stored = fields_of(cell, names), results[cell.id]
        last = {
            "label": cell.label,
            "role": cell.role,
            "seeds": sum(result["status"] == Status.DONE for result in stored.values()),
            "earlier": cell.id in earlier,
        }
        for seed, result in stored.items():
            first = {"cell": cell.id, "seed": seed, "status": str(result["status"])}
            records = history(cell, seed) if more else []
            for rule, found in (result["rules"] or {"final": {}}).items():
                values = {name: found.get(name) for name in shown} | {n: figure(records, n, rule) for n in more}
                costs = {name: result[name] for name in COSTS}
                rows.append({**first, "rule": rule, "rounds": result["rounds"], **place, **values, **costs, **last})
    return rows


def aggregate(values: Sequence[float]) -> dict[str, float]:
    """Returns mean, std (n - 1), sem, n, min and max over seeds; NaN where undefined. NaN values count as missing."""
    seen = [v for v in values if not math.isnan(v)]
    n = len(seen)
    if n == 0:
        return {"mean": math.nan, "std": math.nan, "sem": math.nan, "n": 0, "min": math.nan, "max": math.nan}
    mean = math.fsum(seen) / n
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in seen) / (n - 1)) if n > 1 else math.nan
    return {"mean": mean, "std": std, "sem": std / math.sqrt(n), "n": n, "min": min(seen), "max": max(seen)}


def counted(found: pd.DataFrame) -> pd.DataFrame:
    """Rows of the result table that comparisons and claims read: those of trials that are done."""
    failed = set(found.loc[found["status"].isin([*map(str, FAILURES)]), "cell"])
    return found.loc[(found["status"] == Status.DONE.value) & ~found["cell"].isin(failed)]


def values(found: pd.DataFrame, rule: str, metric: str = VAL) -> pd.DataFrame:
    """A metric of the result table under a rule as `fpl_tune.analysis` reads it: columns `cell`, `seed`, `value`."""
    rows = counted(found)
    rows = rows.loc[rows["rule"] == rule, ["cell", "seed", metric]]
    return rows.rename(columns={metric: "value"}).astype({"value": float})


def meant(rows: Sequence[Row]) -> list[Row]:
    """The rows of one cell under one rule over which a mean may be taken.

    They are the rows of seeds that count. A cell without any, such as one that was pruned, is shown by the seeds that
    it has, if all of them ran the same number of rounds.
    """
    done = [row for row in rows if row["status"] == Status.DONE]
    return done or (list(rows) if len({row["rounds"] for row in rows}) == 1 else [])


def summarise(
    rows: Sequence[Row], cells: Sequence[Cell], states: Mapping[str, str], rule: str = "final", metric: str = TEST
) -> list[Row]:
    """Summarises the result table over seeds: one row per cell.

    Args:
        rows: the result table, with a column of the metric.
        cells: the cells, in the order of the rows.
        states: what to call each cell by its id; see `Store.states`.
        rule: the reporting rule.
        metric: the metric that is summarised.

    Returns:
        Columns: cell, label, role, status, the fields that vary; mean, std, sem, n, min, max of the
        metric; the means of the validation accuracy and of the costs, over the same seeds; see `meant`.
    """
    names, chosen = varied_names(cells), dict[str, list[Row]]()
    for cell, found in _by_cell(rows, rule).items():
        chosen[cell] = meant(found)
    return [
        {
            "cell": cell.id,
            "label": cell.label,
            "role": cell.role,
            "status": str(states[cell.id]),
            **fields_of(cell, names),
            **over_seeds(chosen.get(cell.id, ()), metric),
            **{name: over_seeds(chosen.get(cell.id, ()), name)["mean"] for name in (VAL, *COSTS)},
        }
        for cell in cells
    ]


def _by_cell(rows: Sequence[Row], rule: str) -> dict[str, list[Row]]:
    """Rows with metrics under a rule, by cell."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["rule"] == rule and row["status"] not in FAILURES:
            found[row["cell"]].append(row)
    return found


def over_seeds(rows: Sequence[Row], metric: str) -> dict[str, float]:
    """Aggregates a metric of rows of the result table, a row per seed; see `aggregate`."""
    found = (row[metric] for row in rows)
    return aggregate([math.nan if value is None else float(value) for value in found])


def varied_names(cells: Sequence[Cell]) -> list[str]:
    """Dotted fields (or groups) in which cells vary, in the study's order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))


def fields_of(cell: Cell, names: Sequence[str]) -> Row:
    """The fields that vary in a study, of one cell; a group is shown by its name."""
    place: Row = {}
    for name in names:
        value = cell.varied[name] if name in cell.varied else get_field(cell.node, name)
        if isinstance(value, Mapping):
            value = value.get("label", json.dumps(value)) if name in cell.varied else value.get("name")
        place[name] = json.dumps(value) if isinstance(value, list) else value
    return place
