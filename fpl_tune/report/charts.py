"""Charts as Vega-Lite specifications: plain dicts, made from rows.

Every chart has tooltips. A chart with a legend shows the series that are clicked there. Charts of cells have a
parameter `kept`: numbers of the cells that the page's filter leaves, or null for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fpl_tune.core.formatting import axis_name, numeric, percent, quantity
from fpl_tune.study.cells import shown
from fpl_tune.study.results import VAL

if TYPE_CHECKING:
    from fpl_tune.report.facts import Facts

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
CELLS: Spec = {"name": "cells"}
"""The page's data set of cells."""
BESIDE = 8
"""Names that stand beside each other; more are rows."""
_KEPT = "kept === null || indexof(kept, datum.number) >= 0"
COLOURS = ["#1f77b4", "#d1582a", "#1a936f", "#b5649b", "#b58900", "#4f9fcf", "#8c6d4f", "#7a7a7a"]
"""Distinct for colour-blind readers, on light and on dark ground."""
_SHOWN: Spec = {"name": "shown", "select": {"type": "point", "fields": ["series"], "toggle": "true"}, "bind": "legend"}


def colours(ranks: Mapping[str, int]) -> Spec:
    """The colour channel of series. Ranks say which came first: those that come later take the colours that are left,
    so that a series keeps its colour when others join it."""
    taken: dict[str, int] = {}
    for name in sorted(ranks, key=lambda name: ranks[name]):
        free = [i for i in range(len(COLOURS)) if i not in taken.values()] or [*range(len(COLOURS))]
        taken[name] = min(free, key=lambda i: (i - ranks[name]) % len(COLOURS))
    scale = {"domain": list(ranks), "range": [COLOURS[taken[name]] for name in ranks]}
    return {**names("series", None), "scale": scale, **({} if len(ranks) > 1 else {"legend": None})}


def measured(metric: str, field: str = "mean", over: str = "") -> Spec:
    """The channel of a metric."""
    return number(field, quantity(metric, over=over, unit=False), form(metric))


def place(facts: Facts, axis: str, field: str) -> Spec:
    """The channel of a field that varies: numbers, on a log scale where they are searched so, or names."""
    values = [v for v in dict.fromkeys(facts.table[axis]) if v is not None and v == v]
    if numeric(values):
        whole = all(isinstance(cell.varied.get(axis, 0), int) for cell in facts.own)
        return number(field, axis_name(axis), "d" if whole else ".4~g", log=facts.logarithmic(axis))
    return names(field, axis_name(axis), [shown(v) for v in values])


def cell_tips(facts: Facts, *axes: str) -> list[Spec]:
    """Tooltip of a cell: its name, some fields, validation, test and seeds."""
    kinds = [place(facts, axis, facts.column(axis)) for axis in axes]
    return tips(
        names("label", "cell"), *kinds, measured(VAL, "validation"), measured(facts.metric),
        {**measured(facts.metric, "std"), "title": "std over seeds"}, number("seeds", "seeds"), number("MB", "MB"),
    )  # fmt: skip


def form(metric: str) -> str:
    """d3's format of a metric's values."""
    return ".2~%" if percent(metric) else ".4~g"


def number(field: str, title: str, format: str = ".4~g", *, log: bool = False, zero: bool = False) -> Spec:
    """A quantitative channel."""
    scale: Spec = {"type": "log"} if log else {"zero": zero, "nice": True}
    axis: Spec = {"format": format, **(_WHOLE if format == "d" else {}), **(_LOG if log else {})}
    return {"field": field, "type": "quantitative", "title": title, "axis": axis, "scale": scale}


_WHOLE: Spec = {"tickMinStep": 1, "labelExpr": "datum.value % 1 ? '' : datum.label"}
"""Vega puts ticks between two whole numbers, and would label them as the nearest one."""
_LOG: Spec = {"tickCount": 5, "labelSeparation": 6}
"""The labels of a log axis between powers of ten would overlap."""


def names(field: str, title: str | None, order: Sequence[str] | None = None) -> Spec:
    """A nominal channel; `order`: its values as they follow each other."""
    return {"field": field, "type": "nominal", "title": title, "sort": order and list(order)}


def tips(*channels: Mapping[str, Any]) -> list[Spec]:
    """Tooltip entries of channels."""
    return [
        {"field": c["field"], "type": c["type"], "title": c["title"] or c["field"],
         **({"format": c["axis"]["format"]} if "axis" in c else {})}
        for c in channels
    ]  # fmt: skip


def visible(value: float = 1.0, legend: bool = True) -> Spec:
    """Opacity: full for the series of the legend and the cells that are kept."""
    test: Any = {"and": [{"param": "shown"}, _KEPT]} if legend else _KEPT
    return {"condition": {"test": test, "value": value}, "value": 0.08 * value}


def layer(mark: str, encoding: Mapping[str, Any], rows: Rows | None = None, **style: Any) -> Spec:
    """A mark with its style and channels, over rows of its own if they are given."""
    own = {} if rows is None else {"data": {"values": list(rows)}}
    return {**own, "mark": {"type": mark, **style}, "encoding": dict(encoding)}


def chart(rows: Rows, *layers: Spec, height: Any, **more: Any) -> Spec:
    """Layers over rows; `height` in pixels, or {"step": pixels of a name}."""
    return {"data": {"values": list(rows)}, "layer": list(layers), "height": height, **more}


KEPT: Spec = {"params": [{"name": "kept", "value": None}]}
"""What a chart of cells holds besides, for the page's filter."""
RING: Spec = {"filled": False, "size": 260, "stroke": "currentColor"}
"""The style of the mark around the best cell."""


def _across(channels: Mapping[str, Any], flip: bool) -> Spec:
    """Channels with x and y exchanged if `flip`."""
    swap = {"x": "y", "y": "x", "x2": "y2", "y2": "x2", "xOffset": "yOffset"}
    return {swap.get(name, name) if flip else name: channel for name, channel in channels.items()}


def lines(rows: Rows, x: Spec, y: Spec, colour: Spec, levels: Rows = (), *, height: int = 300) -> Spec:
    """Means over seeds along an axis, a series for each colour.

    Args:
        rows: `series`, the fields of x and y, `low` and `high` (ends of the band), `best` (whether it is ringed),
            `label`, `seeds` and `number`. Numbers along x are joined by lines with bands, names have bars.
        x, y: channels.
        colour: see `colours`.
        levels: rows without x, drawn as dashed lines across the chart.
        height: in pixels, where x is horizontal; names that are many lie on the vertical axis.
    """
    nominal = x["type"] == "nominal"
    across = nominal and len({row[x["field"]] for row in rows}) > BESIDE
    series = list(dict.fromkeys(row["series"] for row in rows))
    several = len(series) > 1
    ends = [{"field": f, "type": "quantitative", "title": t, "axis": y["axis"]}
            for f, t in (("low", "from"), ("high", "to"))]  # fmt: skip
    said = [names("label", "cell"), names("seeds", "seeds")]
    where = {"x": x, "y": y, **({"xOffset": names("series", None, series)} if nominal and several else {})}
    point = {**where, "color": colour, "tooltip": tips(*said, x, y, *ends), "opacity": visible()}
    band = {**point, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    if nominal:
        drawn = [layer("rule", _across(band, across), strokeWidth=2)]
    else:
        drawn = [layer("area", {**band, "opacity": visible(0.18)}), layer("line", point)]
    drawn += [
        layer("point", _across(point, across), size=55),
        {"transform": [{"filter": "datum.best"}], **layer("point", _across(where, across), **RING)},
    ]
    if levels:
        rule = {"y": y, "color": colour, "opacity": visible(), "tooltip": tips(*said, y, *ends)}
        drawn.append(layer("rule", _across(rule, across), levels, strokeDash=[6, 3], strokeWidth=2))
    drawn[0]["params"] = [_SHOWN]
    row = {"step": max(24, 11 * len(series)), "for": "position"} if several else {"step": 24}
    return chart(rows, *drawn, height=row if across else height, **KEPT)


def dots(
    x: Spec, y: Spec, tooltip: Sequence[Spec], more: Sequence[Spec] = (), *,
    colour: Spec | None = None, keep: str = "true", height: int = 260,
) -> Spec:  # fmt: skip
    """A point per cell of the page's data set, the best ringed, and more layers of the same place.

    `keep` is an expression that cells must fulfil.
    """
    where = {"x": x, "y": y}
    exists = f"isValid(datum['{x['field']}']) && isValid(datum['{y['field']}']) && {keep}"
    point = {**where, "tooltip": list(tooltip), "opacity": visible(legend=colour is not None),
             "shape": {"field": "role", "type": "nominal", "legend": None}}  # fmt: skip
    if colour is not None:
        point["color"] = colour
    drawn: list[Spec] = [
        {"transform": [{"filter": exists}], **layer("point", point, size=60)}, *more,
        {"transform": [{"filter": f"datum.best && {exists}"}], **layer("point", where, **RING)},
    ]  # fmt: skip
    if colour is not None:
        drawn[0]["params"] = [_SHOWN]
    return {"data": CELLS, "layer": drawn, "height": height, **KEPT}


def bars(rows: Rows, title: str, *, equal: float = 0.0) -> Spec:
    """Horizontal bars of `value` by `name`, the first on top, with whiskers from `low` to `high` where rows have them;
    a dashed line where all are `equal`."""
    y, x = names("name", None, [str(row["name"]) for row in rows]), number("value", title, ".3~g", zero=True)
    whiskers = "low" in rows[0]
    end = {**x, "field": "high" if whiskers else "value"}
    layers = [
        layer("bar", {"x": x, "y": y, "tooltip": tips(y, x)}, height={"band": 0.7}),
        layer("text", {"x": end, "y": y, "text": {"field": "value", "format": ".1f"}}, align="left", dx=4),
    ]
    if whiskers:
        layers.append(layer("rule", {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}))
    if equal:
        layers.append(layer("rule", {"x": {"datum": equal}}, strokeDash=[4, 3]))
    return chart(rows, *layers, height={"step": 24})


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
    x, y = measured(metric, "value"), names("name", None, list(dict.fromkeys(row["name"] for row in rows)))
    said = tips(names("name", "name"), names("seed", "seed"), names("client", "client"), x)
    jitter = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-1.6, 1.6]}, "axis": None}
    return chart(
        rows,
        layer("boxplot", {"x": x, "y": y}, extent="min-max", opacity=0.45, size=16, median={"color": "currentColor"}),
        layer("point", {"x": x, "y": y, "yOffset": jitter, "tooltip": said}, size=14, opacity=0.55),
        height={"step": 28},
    )


def pareto_front(cost: Sequence[float], gain: Sequence[float]) -> list[int]:
    """Indices of the points that no other point equals or exceeds in both respects, from the cheapest up."""
    front: list[int] = []
    for i in sorted(range(len(cost)), key=lambda i: (cost[i], -gain[i])):
        if not front or gain[i] > gain[front[-1]]:
            front.append(i)
    return front
