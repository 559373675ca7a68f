"""A study's results as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.study.results import COSTS, METRICS, figure
from fpl_tune.study.statistics import aggregate

if TYPE_CHECKING:
    import pandas as pd

    from fpl_tune.study.store import Store


def frame(store: Store) -> pd.DataFrame:
    """One row per cell, seed and reporting rule; a seed without figures has one row, rule `final`."""
    import pandas as pd

    cells = store.cells()
    names = list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))
    wanted = set(store.spec().seed_list())
    rows = []
    for cell in cells:
        node = config.as_dict(cell.run)
        shown = {name: _shown(cell.varied.get(name, _field(node, name))) for name in names}
        for seed in sorted(wanted & set(store.seeds(cell))):
            result = store.result(cell, seed)
            assert result is not None
            for rule, figures in (result["rules"] or {"final": {}}).items():
                rows.append(
                    {
                        "cell": cell.id,
                        "seed": seed,
                        "status": result["status"],
                        "rule": rule,
                        "rounds": result["rounds"],
                        **shown,
                        **{name: figures.get(name) for name in METRICS},
                        **{name: result[name] for name in COSTS},
                        "label": cell.label,
                        "role": cell.role,
                    }
                )
    fixed = ["cell", "seed", "status", "rule", "rounds", *names, *METRICS, *COSTS, "label", "role"]
    return pd.DataFrame(rows, columns=pd.Index(fixed))


def summary(store: Store, rule: str = "final", metric: str = "test/acc_mean") -> pd.DataFrame:
    """One row per cell in the study's order: mean, std, sem, n, min, max of a metric over finished seeds."""
    import pandas as pd

    found = frame(store)
    names = list(found.columns[5 : list(found.columns).index(METRICS[0])])
    wanted = store.spec().seed_list()
    chosen = found[(found["rule"] == rule) & found["status"].isin(["done", "pruned"])]
    rows = []
    for cell in store.cells():
        mine = chosen[chosen["cell"] == cell.id]
        states = [r["status"] for s in store.seeds(cell) if s in wanted and (r := store.result(cell, s))]
        if metric in found.columns:
            values = mine[metric].astype(float).tolist()
        else:  # in the records alone
            values = [figure(store.history(cell, int(seed)), metric, rule) for seed in mine["seed"]]
        node = config.as_dict(cell.run)
        shown = {name: _shown(cell.varied.get(name, _field(node, name))) for name in names}
        rows.append(
            {
                "cell": cell.id,
                "label": cell.label,
                "role": cell.role,
                "status": state_of(states, len(wanted)),
                **shown,
                **aggregate(values),
            }
        )
    fixed = ["cell", "label", "role", "status", *names, "mean", "std", "sem", "n", "min", "max"]
    return pd.DataFrame(rows, columns=pd.Index(fixed))


def state_of(states: Sequence[str], seeds: int) -> str:
    """Of a cell from its seeds': the worst of them, `partly` where some are missing, `pending` where all are."""
    for status in ("failed", "diverged", "pruned", "raced"):
        if status in states:
            return status
    return "done" if len(states) >= seeds else "partly" if states else "pending"


def _field(node: Mapping[str, Any], name: str) -> Any:
    """What a cell holds where another one varies; a group is shown by its name."""
    found = config.get_field(node, name)
    return found.get("name") if isinstance(found, Mapping) else found


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("label", json.dumps(value))
    return json.dumps(value) if isinstance(value, list) else value
