"""Which hyper-parameters matter within a method, by validation accuracy averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis, methods
from fpl_tune.analysis.explain import constant
from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import Cell, shown

MODEL_FROM = 30
"""Trials from which on Optuna's models of the whole space are fitted."""


def cells_of(facts: Facts) -> dict[str, tuple[pd.DataFrame, list[str]]]:
    """Per method, a row per finished cell (columns `value` and the fields that vary) and these fields."""
    found: dict[str, tuple[pd.DataFrame, list[str]]] = {}
    own = [cell for cell in facts.own if not np.isnan(facts.table.loc[cell.id, "val"])]
    for method in dict.fromkeys(map(_method, own)):
        cells = [cell for cell in own if _method(cell) == method]
        fields = list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "method"))
        rows = [
            {"cell": c.id, "value": facts.table.loc[c.id, "val"], **{f: facts.scalar(c, f) for f in fields}}
            for c in cells
        ]
        found[method] = pd.DataFrame(rows), fields
    return found


def importance(facts: Facts) -> pd.DataFrame:
    """Explains the validation accuracy by single fields; see `analysis.one_way`.

    Returns:
        Its rows with a column `method`. Where at least `MODEL_FROM` trials have all fields, also Optuna's `fanova` and
        `ped_anova`.
    """
    parts = []
    for method, (cells, fields) in cells_of(facts).items():
        one = analysis.one_way(cells, fields, noise=_noise(facts, cells))
        one.insert(0, "method", method)
        drawn = facts.searched and len(cells) >= MODEL_FROM and not cells[fields].isna().to_numpy().any()
        if drawn and not constant(cells["value"].tolist()):
            from fpl_tune.search.importance import optuna_importance  # imports scikit-learn

            one = one.merge(optuna_importance(cells, fields), on="field", how="left")
        parts.append(one)
    columns = ["method", "field", "share", "cells", "spread", "kind", "note"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=pd.Index(columns))


def pairs(facts: Facts) -> pd.DataFrame:
    """Explains the validation accuracy by pairs of fields beyond single ones; see `analysis.interactions`."""
    parts = []
    for method, (cells, fields) in cells_of(facts).items():
        both = analysis.interactions(cells, fields, noise=_noise(facts, cells))
        both.insert(0, "method", method)
        parts.append(both)
    columns = ["method", "a", "b", "share", "cells", "kind", "note"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=pd.Index(columns))


def dependences(facts: Facts, found: pd.DataFrame, most: int = 4) -> dict[tuple[str, str], pd.DataFrame]:
    """Partial dependence of the validation accuracy on the fields that explain most of it, in searches.

    Args:
        facts: the study.
        found: what `importance` returned.
        most: number of fields.

    Returns:
        Method and field -> `analysis.partial_dependence`; methods with fewer than `MODEL_FROM` trials are left out.
    """
    parts = {m: part for m, part in cells_of(facts).items() if facts.searched and len(part[0]) >= MODEL_FROM}
    curves: dict[tuple[str, str], pd.DataFrame] = {}
    known = found.loc[found["method"].isin(list(parts)) & found["share"].notna()]
    for row in known.sort_values("share", ascending=False, kind="stable").head(most).to_dict("records"):
        method, field = str(row["method"]), str(row["field"])
        rows = facts.validation().merge(parts[method][0][["cell", field]], on="cell")
        curves[method, field] = analysis.partial_dependence(rows, field)
    return curves


def _noise(facts: Facts, cells: pd.DataFrame) -> float:
    """Mean squared standard error of the cells' validation accuracies; 0 where one seed ran."""
    frame = facts.validation()
    errors = analysis.scores(frame.loc[frame["cell"].isin(cells["cell"])])["error"]
    return float((errors**2).mean()) if errors.notna().any() else 0.0


def _method(cell: Cell) -> str:
    """The method as the study names it: `fedprox`, though that is a wrapper around another one."""
    named = cell.varied.get("method")
    return shown(named) if named is not None else _written(methods.as_dict(cell.run.method))


def _written(node: Mapping[str, Any]) -> str:
    inner = node.get("inner")
    return f"{node['name']}({_written(inner)})" if isinstance(inner, Mapping) else str(node["name"])
