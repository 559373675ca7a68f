"""The charts of a report: one function each, from facts to a Vega-Lite specification."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune.analysis import Ranks
from fpl_tune.core.formatting import axis_name, counted, numeric, quantity, short
from fpl_tune.report import charts
from fpl_tune.report.charts import Spec, form, layer, number
from fpl_tune.report.charts import names as named
from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.partition import Shares
from fpl_tune.study.results import VAL

_SERIES = 20
"""Series that a chart draws; of more, evenly spread ones."""


def measured(metric: str, field: str = "mean", over: str = "") -> Spec:
    """The channel of a metric."""
    return number(field, quantity(metric, over=over, unit=False), form(metric))


def place(facts: Facts, axis: str, field: str) -> Spec:
    """The channel of a field that varies: numbers, on a log scale where they are searched so, or names."""
    values = [v for v in dict.fromkeys(facts.table[axis]) if v is not None and v == v]
    if numeric(values):
        whole = all(isinstance(cell.varied.get(axis, 0), int) for cell in facts.own)
        return number(field, axis_name(axis), "d" if whole else ".4~g", log=facts.logarithmic(axis))
    return named(field, axis_name(axis), [shown(v) for v in values])


def _seeds(facts: Facts, cell: Cell) -> str:
    return ", ".join(map(str, facts.seeds(cell)))


def sweep(facts: Facts, axis: str, metric: str) -> Spec:
    """A metric along one axis, a series for each combination of the other axes; references are dashed."""
    x = place(facts, axis, "x")
    others = [a for a in facts.axes if a != axis]
    cells = [cell for cell in facts.cells if facts.table.loc[cell.id, "n"] > 0]
    values = {cell.id: facts.table.loc[cell.id, axis] for cell in cells}
    families = {cell.id: facts.family(cell) for cell in cells if cell.role == "reference"}
    places = {(name, shown(values[key])) for key, name in families.items() if values[key] is not None}
    moving = {name for name in families.values() if sum(of == name for of, _ in places) > 1}
    rows: list[dict[str, Any]] = []
    level: dict[str, dict[str, Any]] = {}
    for cell in cells:
        mean, std = facts.spread(cell, metric)
        half = 0.0 if std != std else std
        row = {
            "mean": mean, "low": mean - half, "high": mean + half, "label": facts.name(cell),
            "number": facts.keys[cell.id],
            "seeds": _seeds(facts, cell), "best": cell.id in facts.chosen,
        }  # fmt: skip
        name = families.get(cell.id)
        if name is not None and name not in moving:
            level.setdefault(name, {**row, "series": name})
        elif values[cell.id] is not None and values[cell.id] == values[cell.id]:
            own = ", ".join(f"{short(a)}={shown(facts.table.loc[cell.id, a])}" for a in others)
            value = values[cell.id] if x["type"] == "quantitative" else shown(values[cell.id])
            rows.append({**row, "x": value, "series": name or own or "cells"})
    if x["type"] == "nominal" and len(x["sort"]) > charts.BESIDE:  # rows, the best on top
        means = {name: np.mean([row["mean"] for row in rows if row["x"] == name]) for name in {r["x"] for r in rows}}
        x["sort"] = sorted(means, key=lambda name: -means[name])
    return charts.lines(_some(rows), x, measured(metric), list(level.values()), height=340)


def _some(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of at most `_SERIES` series, evenly spread, that of the best cell among them."""
    series = list(dict.fromkeys(row["series"] for row in rows))
    if len(series) <= _SERIES:
        return rows
    kept = {series[int(i)] for i in np.linspace(0, len(series) - 1, _SERIES - 1)}
    kept |= {row["series"] for row in rows if row["best"]}
    return [row for row in rows if row["series"] in kept]


def slices(facts: Facts, axis: str) -> Spec:
    """Every cell's validation accuracy by one field: a choice reads it; the tooltip has the test metric."""
    x, y = place(facts, axis, facts.column(axis)), measured(VAL, "validation")
    return charts.dots(x, y, cell_tips(facts, axis), series=bool(facts.part(facts.own[0])))


def cell_tips(facts: Facts, *axes: str) -> list[Spec]:
    """Tooltip of a cell: its name, some fields, validation, test and seeds."""
    kinds = [place(facts, axis, facts.column(axis)) for axis in axes]
    return charts.tips(
        named("label", "cell"), *kinds, measured(VAL, "validation"), measured(facts.metric),
        {**measured(facts.metric, "std"), "title": "std over seeds"}, number("seeds", "seeds"), number("MB", "MB"),
    )  # fmt: skip


def pareto(facts: Facts, fronts: Sequence[Sequence[str]]) -> Spec:
    """Validation accuracy against bytes, with the fronts of the cells that nothing cheaper reaches."""
    sent = facts.table["bytes"].dropna() / 1e6
    least = sent[sent > 0].min()
    x = number("MB", "sent and received in the whole run, MB per seed", ".4~g")
    if sent.max() > 50 * least:
        x["scale"] = {"type": "symlog", "constant": least}  # some send nothing
        powers = range(math.floor(math.log10(least)), math.ceil(math.log10(sent.max())) + 1)
        x["axis"]["values"] = [0.0, *(10.0**power for power in powers)]
    steps = [{"setting": i, "MB": sent[key], "validation": facts.table.loc[key, "val"]}
             for i, front in enumerate(fronts) for key in front]  # fmt: skip
    y = measured(VAL, "validation")
    line = layer("line", {"x": x, "y": y, "detail": {"field": "setting"}}, steps, interpolate="step-after",
                 color="currentColor", strokeWidth=1)  # fmt: skip
    few = len({row["series"] for row in facts.rows}) <= _SERIES
    return charts.dots(x, y, cell_tips(facts), [line], series=few, height=340)


def history(facts: Facts) -> Spec:
    """Validation accuracy of the trials in the order of their numbers, and the best one so far."""
    rows, best = [], dict[str, float]()
    for cell in sorted(facts.own, key=lambda cell: cell.number):
        val = float(facts.table.loc[cell.id, "val"])
        if not math.isnan(val):
            part = facts.part(cell) or "best so far"
            best[part] = max(best.get(part, val), val)
            rows.append({"trial": cell.number, "validation": best[part], "series": part})
    x, y, several = number("trial", "trial", "d"), measured(VAL, "validation"), len(best) > 1
    line = layer("line", {"x": x, "y": y, **({"color": named("series", None)} if several else {})}, rows,
                 interpolate="step-after")  # fmt: skip
    return charts.dots(x, y, cell_tips(facts, *facts.axes[:6]), [line], series=several)


def parallel(facts: Facts) -> Spec:
    """Parallel coordinates: every cell as a line over the fields that vary, validation accuracy and the metric.

    A rectangle drawn with the pointer is the parameter `brush`, by which the page filters.
    """
    columns = {short(axis): (facts.table[axis], facts.logarithmic(axis)) for axis in facts.axes}
    columns |= {quantity(VAL, unit=False): (facts.table["val"], False)}
    columns |= {quantity(facts.metric, unit=False): (facts.table["mean"], False)}
    labels, lines = list[dict[str, Any]](), list[dict[str, Any]]()
    cells = [cell for cell in facts.own if not math.isnan(facts.table.loc[cell.id, "val"])]
    for order, (axis, (column, log)) in enumerate(columns.items()):
        own = column.loc[[cell.id for cell in cells]]
        known = [v for v in dict.fromkeys(own) if v is not None and v == v]
        if numeric(known):
            ends = np.array([min(known), max(known)], float)
            low, high = np.log(ends) if log else ends
            at = {v: ((np.log(v) if log else v) - low) / ((high - low) or 1.0) for v in known}
            labelled = dict.fromkeys((min(known), max(known)))
        else:
            at = {v: i / max(len(known) - 1, 1) for i, v in enumerate(known)}
            labelled = dict.fromkeys(known[int(i)] for i in np.linspace(0, len(known) - 1, min(len(known), 12)))
        metric = axis.endswith("accuracy")
        text = {v: f"{100 * v:.1f} %" if metric else f"{v:.3g}" if isinstance(v, float) else shown(v) for v in known}
        labels += [{"axis": axis, "place": at[v], "text": text[v]} for v in labelled]
        lines += [
            {"axis": axis, "order": order, "place": at[own[cell.id]], "number": facts.keys[cell.id],
             "label": facts.name(cell), "text": text[own[cell.id]], "validation": facts.table.loc[cell.id, "val"]}
            for cell in cells if own[cell.id] in at
        ]  # fmt: skip
    colour = measured(VAL, "validation")
    x: Spec = {"field": "axis", "type": "nominal", "sort": list(columns), "title": None,
               "axis": {"labelAngle": 0, "orient": "top", "grid": True, "domain": False, "labelLimit": 130},
               "scale": {"type": "point", "padding": 0.4}}  # fmt: skip
    y: Spec = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.04, 1.04]}}
    shade = {**colour, "legend": {"type": "gradient", "format": colour["axis"]["format"], "title": colour["title"],
                                   "gradientLength": 160}}  # fmt: skip
    seen = {"x": x, "y": y, "color": shade, "opacity": charts.visible(0.8, legend=False)}
    said = charts.tips(named("label", "cell"), named("axis", "axis"), named("text", "value"), colour)
    points = layer("point", {**seen, "tooltip": said}, size=26)
    points["params"] = [{"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}]
    return charts.chart(
        lines,
        layer("line", {**seen, "detail": {"field": "number"}, "order": {"field": "order"}}, strokeWidth=1.4),
        points,
        layer("text", {"x": x, "y": y, "text": {"field": "text"}}, labels, align="left", dx=5, fontSize=11),
        height=320,
        **charts.KEPT,
    )


def by_round(curves: Sequence[tuple[str, int, pd.DataFrame]], metric: str) -> Spec:
    """A metric by round, mean over seeds with their standard deviation: a series for each name, cell number, curve."""
    rows: list[dict[str, Any]] = []
    for name, key, curve in curves:
        seeds = ", ".join(map(str, curve.columns))
        spread = curve.std(axis=1, ddof=1).fillna(0.0)
        rows += [
            {"round": at, "mean": mean, "low": mean - spread[at], "high": mean + spread[at], "series": name,
             "label": name, "number": key, "seeds": seeds, "best": False}
            for at, mean in curve.mean(axis=1).items()
        ]  # fmt: skip
    return charts.lines(rows, number("round", "communication round", "d"), measured(metric))


def clients(facts: Facts, cells: Sequence[Cell]) -> Spec | None:
    """Accuracies of clients, a box per cell; None where the store holds none."""
    values = {facts.name(cell): {seed: facts.clients(cell, seed) for seed in facts.seeds(cell)} for cell in cells}
    return boxes(values, facts.metric)


def boxes(values: Mapping[str, Mapping[int, np.ndarray]], metric: str) -> Spec | None:
    """A box (quartiles, median, extremes) of the clients of all seeds for each name; None without values."""
    rows = [
        {"name": name, "seed": seed, "client": client + 1, "value": value, "jitter": float(np.sin(2.4 * client))}
        for name, by_seed in values.items()
        for seed, found in by_seed.items()
        for client, value in enumerate(found)
        if np.isfinite(value)
    ]
    if not rows:
        return None
    x, y = measured(metric, "value"), named("name", None, list(dict.fromkeys(row["name"] for row in rows)))
    said = charts.tips(named("name", "name"), named("seed", "seed"), named("client", "client"), x)
    jitter = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-1.6, 1.6]}, "axis": None}
    return charts.chart(
        rows,
        layer("boxplot", {"x": x, "y": y}, extent="min-max", opacity=0.45, size=16, median={"color": "currentColor"}),
        layer("point", {"x": x, "y": y, "yOffset": jitter, "tooltip": said}, size=14, opacity=0.55),
        height={"step": 28},
    )


def heat_map(facts: Facts, rows: str, columns: str, cells: Sequence[Cell]) -> Spec:
    """Validation accuracy of some cells over two axes; where others vary too, the mean over them."""
    every = facts.table.loc[[cell.id for cell in facts.own], "val"]
    table = facts.table.loc[[cell.id for cell in cells]].dropna(subset=["val"])
    keys = {axis: [shown(v) for v in _ordered(table[axis])] for axis in (rows, columns)}
    if len(keys[columns]) > max(len(keys[rows]), 12):
        rows, columns = columns, rows
    grouped = table.assign(r=table[rows].map(shown), c=table[columns].map(shown)).groupby(["r", "c"], sort=False)
    means = grouped[["val", "mean"]].mean().reset_index().rename(columns={"val": "validation"})
    up = list(reversed(keys[rows])) if numeric(_ordered(table[rows])) else keys[rows]
    x, y = named("c", axis_name(columns), keys[columns]), named("r", axis_name(rows), up)
    value, (low, high) = measured(VAL, "validation"), (every.min(), every.max())
    place = {"x": {**x, "axis": {"labelAngle": -45 if means["c"].nunique() > charts.BESIDE else 0}}, "y": y}
    colour = {**value, "scale": {"domain": [low, high]}, "legend": {"format": value["axis"]["format"]}}
    layers = [layer("rect", {**place, "color": colour, "tooltip": charts.tips(x, y, value)})]
    if len(means) <= 400:
        middle = f"datum['validation'] < {(low + high) / 2}"
        ink = {"condition": {"test": middle, "value": "white"}, "value": "black"}
        text = {"field": "validation", "format": ".1~%"}
        layers.append(layer("text", {**place, "text": text, "color": ink}, fontSize=11))
    return charts.chart(means.to_dict("records"), *layers, height={"step": 26})


def _ordered(values: pd.Series) -> list[Any]:
    unique = [v for v in dict.fromkeys(values) if v is not None and v == v]
    return sorted(unique) if numeric(unique) else unique


def dependence(found: pd.DataFrame, axis: str, facts: Facts) -> Spec:
    """Mean validation accuracy by the values of a field with a band over seeds; see `analysis.partial_dependence`."""
    rows = [
        {"x": row["place"] if numeric(found["place"]) else shown(row["place"]), "mean": row["mean"],
         "low": row["low"], "high": row["high"], "series": "", "label": counted(row["cells"], "trial"),
         "seeds": row["seeds"], "best": False, "number": -1}
        for row in found.to_dict("records")
    ]  # fmt: skip
    return charts.lines(rows, place(facts, axis, "x"), measured(VAL), height=240)


def partition(shares: Shares) -> Spec:
    """A disc for every client and class, its area the number of training images."""
    rows = [
        {"client": int(n) + 1, "class": shares.classes[k], "images": int(shares.counts[n, k]),
         "domain": shares.domains[n]}
        for n, k in zip(*np.nonzero(shares.counts), strict=True)
    ]  # fmt: skip
    x, y = named("class", "class", shares.classes), {**named("client", "client"), "sort": "ascending"}
    y["type"] = "ordinal"
    size = {"field": "images", "type": "quantitative", "title": "images", "legend": None}
    domain = named("domain", "domain")
    colour = {**domain, "legend": {"title": None} if len({row["domain"] for row in rows}) > 1 else None}
    place = {"x": {**x, "axis": {"labelAngle": -90}}, "y": y, "size": size, "color": colour}
    disc = layer("circle", {**place, "tooltip": charts.tips(y, x, size, domain)}, rows, opacity=0.8)
    return {**disc, "height": {"step": max(8, min(22, 600 // len(shares.counts)))}}


def critical_difference(found: Ranks) -> Spec:
    """Mean ranks over data sets, the best on top; bars join the cells whose ranks do not differ (Demsar 2006)."""
    rows = [{"name": str(name), "rank": float(rank)} for name, rank in found.ranks.items()]
    rank = {row["name"]: row["rank"] for row in rows}
    groups = [
        {"first": rank[group[0]], "last": rank[group[-1]], "name": name} for group in found.groups for name in group
    ]
    x = number("rank", f"mean rank over {found.datasets} data sets (1 is the best)", ".2~f")
    y = named("name", None, list(rank))
    bar = {"x": {**x, "field": "first"}, "x2": {"field": "last"}, "y": y}
    return charts.chart(
        rows,
        layer("point", {"x": x, "y": y, "tooltip": charts.tips(y, x)}, size=80),
        layer("rule", bar, groups, strokeWidth=5, color="#d1582a", opacity=0.55),
        title=f"critical difference {found.critical_difference:.2f}",
        height={"step": 24},
    )
