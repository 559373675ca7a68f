"""Which hyper-parameters matter within a method.

For one field at a time: the share of the variance of the metric over cells that the field alone explains (omega
squared, one-way; Hays 1963), in the cells in which the field exists. Conditional fields are therefore judged only
where they are active, and no model of the whole space is fitted, which a few dozen cells would not carry. A field
whose effect shows only together with another one is not seen; the heat map shows pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import methods
from fpl_tune.report.facts import Facts
from fpl_tune.report.words import numeric
from fpl_tune.study.cells import Cell, shown

_GROUPS = 4


def explained(values: Sequence[Any], metric: Sequence[float]) -> float:
    """Omega squared in [0, 1] of a metric by the groups of a field's values; nan where it cannot be told.

    More than six numbers are put into four groups of equal size; other values are groups themselves.
    """
    figures = np.asarray(metric, float)
    groups = _grouped(values)
    k, n = len(set(groups)), len(figures)
    total = float(((figures - figures.mean()) ** 2).sum()) if n else 0.0
    if k < 2 or n <= k or total == 0:
        return float("nan")
    means = pd.Series(figures).groupby(groups).agg(["mean", "size"])
    between = float((means["size"] * (means["mean"] - figures.mean()) ** 2).sum())
    within = (total - between) / (n - k)
    return float(np.clip((between - (k - 1) * within) / (total + within), 0.0, 1.0))


def _grouped(values: Sequence[Any]) -> list[Any]:
    if numeric(values) and len(set(values)) > 6:
        ranks = pd.Series(list(values), dtype=float).rank(method="average", pct=True)
        return np.ceil(ranks * _GROUPS).clip(1, _GROUPS).tolist()
    return [repr(v) for v in values]


def importance(facts: Facts) -> pd.DataFrame:
    """Per method and varied field, best first: `explained`, the number of `cells` in which the field exists, and the
    standard deviation (`spread`) over them of what is explained.

    The metric is the validation accuracy averaged over seeds, the one that choices are made by.
    """
    rows: list[dict[str, Any]] = []
    own = [cell for cell in facts.own if not np.isnan(facts.table.loc[cell.id, "val"])]
    for method in dict.fromkeys(map(_method, own)):
        cells = [cell for cell in own if _method(cell) == method]
        for axis in dict.fromkeys(name for cell in cells for name in cell.varied if name != "method"):
            active = [cell for cell in cells if axis in cell.varied]
            values = [facts.scalar(cell, axis) for cell in active]
            share = explained(values, [facts.table.loc[cell.id, "val"] for cell in active])
            if not np.isnan(share):
                spread = facts.table.loc[[cell.id for cell in active], "val"].std(ddof=1)
                rows.append(
                    {"method": method, "field": axis, "explained": share, "cells": len(active), "spread": spread}
                )
    found = pd.DataFrame(rows, columns=["method", "field", "explained", "cells", "spread"])
    return found.sort_values(["method", "explained"], ascending=[True, False], ignore_index=True)


def _method(cell: Cell) -> str:
    """The method as the study names it: `fedprox`, though that is a wrapper around another one."""
    named = cell.varied.get("method")
    return shown(named) if named is not None else _written(methods.as_dict(cell.run.method))


def _written(node: Mapping[str, Any]) -> str:
    inner = node.get("inner")
    return f"{node['name']}({_written(inner)})" if isinstance(inner, Mapping) else str(node["name"])
