"""Charts as Vega-Lite specifications: plain dicts, made from rows.

Every chart has tooltips. A chart with a legend shows the series that are clicked there. Charts of cells have a
parameter `kept`: numbers of the cells that the page's filter leaves, or null for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.formatting import percent

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
CELLS: Spec = {"name": "cells"}
"""The page's data set of cells."""
BESIDE = 8
"""Names that stand beside each other; more are rows."""
_KEPT = "kept === null || indexof(kept, datum.number) >= 0"
_SHOWN: Spec = {"name": "shown", "select": {"type": "point", "fields": ["series"], "toggle": "true"}, "bind": "legend"}


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


def _visible(value: float = 1.0, legend: bool = True) -> Spec:
    """Opacity: full for the series of the legend and the cells that are kept."""
    test: Any = {"and": [{"param": "shown"}, _KEPT]} if legend else _KEPT
    return {"condition": {"test": test, "value": value}, "value": 0.08 * value}


def _across(channels: Mapping[str, Any], flip: bool) -> Spec:
    """Channels with x and y exchanged if `flip`."""
    swap = {"x": "y", "y": "x", "x2": "y2", "y2": "x2", "xOffset": "yOffset"}
    return {swap.get(name, name) if flip else name: channel for name, channel in channels.items()}


def lines(rows: Rows, x: Spec, y: Spec, more: Rows = (), *, step: bool = False, height: int = 300) -> Spec:
    """Means over seeds along an axis, a series for each colour.

    Args:
        rows: `series`, the fields of x and y, `low` and `high` (ends of the band), `best` (whether it is ringed),
            `label`, `seeds` and `number`. Numbers along x are joined by lines with bands, names have bars.
        x, y: channels.
        more: rows without x, drawn as dashed lines across the chart.
        step: lines as steps, without points.
        height: in pixels, where x is horizontal; names that are many lie on the vertical axis.
    """
    nominal = x["type"] == "nominal"
    across = nominal and len({row[x["field"]] for row in rows}) > BESIDE
    series = list(dict.fromkeys(row["series"] for row in [*rows, *more]))
    several = len(series) > 1
    colour: Spec = {
        "field": "series", "type": "nominal", "title": None, "sort": series,
        **({"legend": None} if not several else {}),
        **({"scale": {"scheme": "tableau20"}} if len(series) > 8 else {}),
    }  # fmt: skip
    ends = [{"field": f, "type": "quantitative", "title": t, "axis": y["axis"]}
            for f, t in (("low", "mean − std"), ("high", "mean + std"))]  # fmt: skip
    said = [{"field": f, "type": "nominal", "title": t} for f, t in (("label", "cell"), ("seeds", "seeds"))]
    point = {"x": x, "y": y, "color": colour, "tooltip": tips(*said, x, y, *ends)}
    if nominal and several:
        point["xOffset"] = names("series", None, series)
    low, high, cut = {**y, "field": "low"}, {"field": "high"}, list[Spec]()
    if y["axis"]["format"].endswith("%") and any((row["high"] or 0) > 1 for row in rows):  # no share exceeds 1
        high, cut = {"field": "top"}, [{"calculate": "min(datum.high, 1)", "as": "top"}]
    interpolate = {"interpolate": "step-after"} if step else {}
    layers: list[tuple[Spec, Spec]] = []
    if nominal:
        layers.append(({"type": "rule", "strokeWidth": 1.5}, {**point, "y": low, "y2": high, "opacity": _visible()}))
    else:
        layers.append(({"type": "area", **interpolate}, {**point, "y": low, "y2": high, "opacity": _visible(0.18)}))
        layers.append(({"type": "line", **interpolate}, {**point, "opacity": _visible()}))
    layers.append(({"type": "point", "size": 0 if step else 55}, {**point, "opacity": _visible()}))
    drawn: list[Spec] = [{"mark": mark, "encoding": _across(encoding, across)} for mark, encoding in layers]
    drawn.append({
        "transform": [{"filter": "datum.best"}],
        "mark": {"type": "point", "filled": False, "size": 260, "stroke": "currentColor"},
        "encoding": _across({"x": x, "y": y, **({"xOffset": point["xOffset"]} if "xOffset" in point else {})}, across),
    })  # fmt: skip
    if more:
        rule = {"y": y, "color": colour, "opacity": _visible(), "tooltip": tips(*said, y, *ends)}
        drawn.append({"data": {"values": list(more)}, "mark": {"type": "rule", "strokeDash": [6, 3], "strokeWidth": 2},
                      "encoding": _across(rule, across)})  # fmt: skip
    drawn[0]["params"] = [_SHOWN]
    step_of = {"step": max(24, 11 * len(series)), "for": "position"} if several else {"step": 24}
    size = {"height": step_of if across else height}
    drawing = {"transform": cut, "layer": drawn} if cut else {"layer": drawn}
    return {"params": [{"name": "kept", "value": None}], "data": {"values": list(rows)}, **drawing, **size}


def dots(
    x: Spec, y: Spec, tooltip: Sequence[Spec], *, series: bool = False, fronts: Rows = (), height: int = 260
) -> Spec:
    """A point per cell of the page's data set, the best ringed; rows of `fronts` are joined by steps, one line for
    each of their `setting`."""
    ring = {"type": "point", "filled": False, "size": 260, "stroke": "currentColor"}
    colour = {"color": {**names("series", None), "legend": {} if series else None}} if series else {}
    place = {"x": x, "y": y}
    exists = f"isValid(datum['{x['field']}']) && isValid(datum['{y['field']}'])"
    point = {**place, **colour, "tooltip": list(tooltip), "opacity": _visible(legend=series),
             "shape": {"field": "role", "type": "nominal", "legend": None}}  # fmt: skip
    layers: list[Spec] = [
        {"transform": [{"filter": exists}], "mark": {"type": "point", "size": 60}, "encoding": point},
        {"transform": [{"filter": f"datum.best && {exists}"}], "mark": ring, "encoding": place},
    ]
    if fronts:
        layers.append({"data": {"values": list(fronts)}, "mark": {"type": "line", "interpolate": "step-after",
                       "color": "currentColor", "strokeWidth": 1},
                       "encoding": {**place, "detail": {"field": "setting"}}})  # fmt: skip
    if series:
        layers[0]["params"] = [_SHOWN]
    return {"params": [{"name": "kept", "value": None}], "data": CELLS, "layer": layers, "height": height}


def bars(rows: Rows, title: str, *, equal: float = 0.0) -> Spec:
    """Horizontal bars of `value` by `name`, the first on top, with whiskers from `low` to `high` where rows have them;
    a dashed line where all are `equal`."""
    order = [str(row["name"]) for row in rows]
    y, x = names("name", None, order), number("value", title, ".3~g", zero=True)
    x["axis"]["tickCount"] = 10
    layers: list[Spec] = [
        {"mark": {"type": "bar", "height": {"band": 0.7}}, "encoding": {"x": x, "y": y, "tooltip": tips(y, x)}},
        {"mark": {"type": "text", "align": "left", "dx": 4},
         "encoding": {"x": {**x, "field": "high" if "high" in rows[0] else "value"}, "y": y,
                      "text": {"field": "value", "format": ".1f"}}},
    ]  # fmt: skip
    if "low" in rows[0]:
        layers.append({"mark": "rule", "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}})
    if equal:
        layers.append({"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": equal}}})
    return {"data": {"values": list(rows)}, "layer": layers, "height": {"step": 24}}


def boxes(rows: Rows, x: Spec) -> Spec:
    """Boxes (quartiles, median, extremes) of x by `name`, with their points; `jitter` moves points apart."""
    order = list(dict.fromkeys(str(row["name"]) for row in rows))
    y = names("name", None, order)
    who = [{"field": f, "type": "nominal", "title": f} for f in ("name", "seed", "client")]
    jitter = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-1.6, 1.6]}, "axis": None}
    return {
        "data": {"values": list(rows)},
        "layer": [
            {"mark": {"type": "boxplot", "extent": "min-max", "opacity": 0.45, "size": 16,
                      "median": {"color": "currentColor"}}, "encoding": {"x": x, "y": y}},
            {"mark": {"type": "point", "size": 14, "opacity": 0.55},
             "encoding": {"x": x, "y": y, "yOffset": jitter, "tooltip": tips(*who, x)}},
        ],
        "height": {"step": 28},
    }  # fmt: skip


def heat(rows: Rows, x: Spec, y: Spec, value: Spec, domain: Sequence[float]) -> Spec:
    """Values by two nominal channels, in colour and, where they are few, in figures; `domain`: the scale's ends."""
    place = {"x": {**x, "axis": {"labelAngle": -45 if len({row[x["field"]] for row in rows}) > BESIDE else 0}}, "y": y}
    colour = {**value, "scale": {"domain": list(domain)}, "legend": {"format": value["axis"]["format"]}}
    layers: list[Spec] = [{"mark": "rect", "encoding": {**place, "color": colour, "tooltip": tips(x, y, value)}}]
    if len(rows) <= 400:
        middle = f"datum['{value['field']}'] < {sum(domain) / 2}"
        ink = {"condition": {"test": middle, "value": "white"}, "value": "black"}
        text = {"field": value["field"], "format": ".1~%" if "%" in value["axis"]["format"] else ".3~g"}
        layers.append({"mark": {"type": "text", "fontSize": 11}, "encoding": {**place, "text": text, "color": ink}})
    return {"data": {"values": list(rows)}, "layer": layers, "height": {"step": 26}}


def discs(rows: Rows, classes: Sequence[str], clients: int) -> Spec:
    """A disc for every client and class, its area the number of training images."""
    x, y = names("class", "class", classes), {**names("client", "client"), "sort": "ascending", "type": "ordinal"}
    size = {"field": "images", "type": "quantitative", "title": "images", "legend": None}
    several = len({row["domain"] for row in rows}) > 1
    domain = names("domain", "domain")
    return {
        "data": {"values": list(rows)},
        "mark": {"type": "circle", "opacity": 0.8},
        "encoding": {"x": {**x, "axis": {"labelAngle": -90}}, "y": y, "size": size,
                     "color": {**domain, "legend": {"title": None} if several else None},
                     "tooltip": tips(y, x, size, domain)},
        "height": {"step": max(8, min(22, 600 // clients))},
    }  # fmt: skip


def parallel(rows: Rows, lines_of: Rows, axes: Sequence[str], colour: Spec) -> Spec:
    """Parallel coordinates: a line per cell over `axis` at `place` in [0, 1]; a rectangle drawn with the pointer is the
    parameter `brush`, by which the page filters.

    Args:
        rows: labels of the axes: `axis`, `place` and `text`.
        lines_of: a row per cell and axis: `axis`, `place`, `number`, `label`, `text` and the field of `colour`.
        axes: the axes from left to right.
        colour: a quantitative channel.
    """
    x: Spec = {"field": "axis", "type": "nominal", "sort": list(axes), "title": None,
               "axis": {"labelAngle": 0, "orient": "top", "grid": True, "domain": False, "labelLimit": 130},
               "scale": {"type": "point", "padding": 0.4}}  # fmt: skip
    y: Spec = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.04, 1.04]}}
    shade = {**colour, "legend": {"type": "gradient", "format": colour["axis"]["format"], "title": colour["title"],
                                   "gradientLength": 160}}  # fmt: skip
    said = [
        {"field": f, "type": "nominal", "title": t} for f, t in (("label", "cell"), ("axis", "axis"), ("text", "value"))
    ]
    seen = {"x": x, "y": y, "color": shade, "opacity": _visible(0.8, legend=False)}
    brush = {"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}
    return {
        "params": [{"name": "kept", "value": None}],
        "data": {"values": list(lines_of)},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.4},
             "encoding": {**seen, "detail": {"field": "number"}, "order": {"field": "order"}}},
            {"mark": {"type": "point", "size": 26}, "encoding": {**seen, "tooltip": tips(*said, colour)},
             "params": [brush]},
            {"data": {"values": list(rows)}, "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11},
             "encoding": {"x": x, "y": y, "text": {"field": "text"}}},
        ],
        "height": 320,
    }  # fmt: skip


def ranks(rows: Rows, groups: Rows, critical: float, title: str) -> Spec:
    """Mean ranks of cells, the best on top; bars join the cells whose ranks do not differ (Demsar 2006).

    Args:
        rows: `name` and `rank`.
        groups: `first` and `last` (ranks), `name` (at which a bar is drawn) and `shift` in pixels.
        critical: the critical difference.
        title: of the axis.
    """
    order = [row["name"] for row in rows]
    x, y = number("rank", title, ".2~f"), names("name", None, order)
    bar = {"x": {**x, "field": "first"}, "x2": {"field": "last"}, "y": y}
    return {
        "data": {"values": list(rows)},
        "title": f"critical difference {critical:.2f}",
        "layer": [
            {"mark": {"type": "point", "size": 80}, "encoding": {"x": x, "y": y, "tooltip": tips(y, x)}},
            {"data": {"values": list(groups)}, "mark": {"type": "rule", "strokeWidth": 5, "color": "#d1582a",
             "opacity": 0.55}, "encoding": bar},
        ],
        "height": {"step": 24},
    }  # fmt: skip


def pareto_front(cost: Sequence[float], gain: Sequence[float]) -> list[int]:
    """Indices of the points that no other point equals or exceeds in both respects, from the cheapest up."""
    front: list[int] = []
    for i in sorted(range(len(cost)), key=lambda i: (cost[i], -gain[i])):
        if not front or gain[i] > gain[front[-1]]:
            front.append(i)
    return front
