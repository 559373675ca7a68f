"""The result table of a study: metrics, costs, reporting rules, and the summary over seeds.

Every reader of results uses these definitions: the store's tables, the report, MLflow, searches and the command line.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.core.metrics import TEST, VAL, report_rules, shown_beside
from fpl_tune.simulation.simulation import Record
from fpl_tune.study import earlier
from fpl_tune.study.status import COUNTED, cell_status

if TYPE_CHECKING:
    import pandas as pd

    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store

METRICS = (VAL, TEST)
"""Metrics that every result holds, by rule."""
LEARNED = "train/parameters"
"""Scalars that one client learns in the last stage; only the last record holds it."""
COSTS = ("comm/up_bytes", "comm/down_bytes", "time/seconds")
"""Running totals of a seed."""
TOTAL_BYTES = "comm/total_bytes"


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
    for rule in rules.values():
        record = seen[int(rule["round"]) - 1]
        rule |= {"round": int(record["round"])} | {name: record[name] for name in shown_beside(record)}
    return rules


def make_result(status: str, history: Sequence[Record], *, error: str | None = None, **extra: Any) -> dict[str, Any]:
    """Builds the stored result of one seed.

    Args:
        status: the seed's status.
        history: its records by round.
        error: why it failed.
        extra: `split_hash`, `peak_memory_bytes`.
    """
    last: Mapping[str, Any] = history[-1] if history else {}
    return {
        "status": status,
        "error": error,
        "rounds": int(last.get("round", 0)),
        "rules": rules_of(history) if status in COUNTED else {},
        **{name: last.get(name, 0) for name in COSTS},
        "split_hash": extra.pop("split_hash", ""),
        **extra,
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
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
    if metric in COSTS or metric == LEARNED:
        return float(last.get(metric, math.nan))
    rules = rules_of(history)
    chosen = rules.get(rule, rules.get("final", {}))
    if metric in chosen:
        return float(chosen[metric])
    at = chosen.get("round", last["round"])
    return float(next(r for r in history if r["round"] == at).get(metric, math.nan))


def frame(store: Store, metric: str = TEST) -> pd.DataFrame:
    """Builds the result table: one row per cell, seed and reporting rule.

    Args:
        store: the study's store.
        metric: gets a column of its own, read from the histories if results do not hold it.

    Returns:
        Columns: cell, seed, status, rule, rounds, the fields that vary, metrics, costs, label, role. A seed without
        metrics has one row, of the rule `final`. Where cells or seeds of earlier runs stay that the study no longer
        names, last_run is False for them.
    """
    import pandas as pd

    cells, wanted = store.cells(), set(store.spec().seed_list())
    names = list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))
    more = [metric] if metric not in (*METRICS, *COSTS) else []
    if more:
        store.check()  # leaves out seeds whose history is damaged
    rows = []
    for cell in cells:
        shown = _fields(cell, names)
        stored = store.seed_results(cell)
        for seed in earlier.seeds(store, cell):
            result = stored[seed]
            history = store.history(cell, seed) if more else []
            for rule, found in (result["rules"] or {"final": {}}).items():
                rows.append(
                    {
                        "cell": cell.id,
                        "seed": seed,
                        "status": str(result["status"]),
                        "rule": rule,
                        "rounds": result["rounds"],
                        **shown,
                        **{name: found.get(name) for name in METRICS},
                        **{name: figure(history, name, rule) for name in more},
                        **{name: result[name] for name in COSTS},
                        "label": cell.label,
                        "role": cell.role,
                    }
                )
    columns = ["cell", "seed", "status", "rule", "rounds", *names, *METRICS, *more, *COSTS, "label", "role"]
    table = pd.DataFrame(rows, columns=pd.Index(columns))
    last = table["seed"].isin(wanted) & ~table["cell"].isin(earlier.marked(store))
    if not last.all():
        table["last_run"] = last
    return table


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
    """Rows of the result table whose metrics enter means: those of seeds that are done or pruned."""
    return found.loc[found["status"].isin([str(status) for status in COUNTED])]


def values(found: pd.DataFrame, rule: str, metric: str = VAL) -> pd.DataFrame:
    """A metric of the result table under a rule as `fpl_tune.analysis` reads it: columns `cell`, `seed`, `value`."""
    rows = counted(found)
    rows = rows.loc[rows["rule"] == rule, ["cell", "seed", metric]]
    return rows.rename(columns={metric: "value"}).astype({"value": float})


def summary(
    found: pd.DataFrame, cells: Sequence[Cell], seeds: Sequence[int], rule: str = "final", metric: str = TEST
) -> pd.DataFrame:
    """Summarises the result table over seeds: one row per cell.

    Args:
        found: the result table, with a column of the metric.
        cells: the cells, in the order of the rows.
        seeds: the study's seeds, which decide the status; others of earlier runs enter the means.
        rule: the reporting rule.
        metric: the metric that is summarised.

    Returns:
        Columns: cell, label, role, status, the fields that vary; mean, std, sem, n, min, max of the metric; the means
        of the validation accuracy and of the costs, over the same seeds.
    """
    import pandas as pd

    names = list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))
    seen = found.loc[found["seed"].isin(seeds)].drop_duplicates(["cell", "seed"])
    states = seen.groupby("cell")["status"].agg(list)
    chosen = counted(found)
    by_cell = {str(key): rows for key, rows in chosen[chosen["rule"] == rule].groupby("cell")}
    rows = []
    for cell in cells:
        mine = by_cell.get(cell.id, chosen.iloc[:0])
        rows.append(
            {
                "cell": cell.id,
                "label": cell.label,
                "role": cell.role,
                "status": str(cell_status(states.get(cell.id, []), len(seeds))),
                **_fields(cell, names),
                **aggregate(mine[metric].astype(float).tolist()),
                **{name: aggregate(mine[name].astype(float).tolist())["mean"] for name in (VAL, *COSTS)},
            }
        )
    columns = ["cell", "label", "role", "status", *names, "mean", "std", "sem", "n", "min", "max", VAL, *COSTS]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _fields(cell: Cell, names: Sequence[str]) -> dict[str, Any]:
    """The fields that vary in a study, of one cell; a group is shown by its name."""
    node = config.as_dict(cell.run) if any(name not in cell.varied for name in names) else {}
    shown: dict[str, Any] = {}
    for name in names:
        value = cell.varied[name] if name in cell.varied else config.get_field(node, name)
        if isinstance(value, Mapping):
            value = value.get("label", json.dumps(value)) if name in cell.varied else value.get("name")
        shown[name] = json.dumps(value) if isinstance(value, list) else value
    return shown
