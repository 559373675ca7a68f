"""Charts as Vega-Lite specifications: plain dicts, made from rows.

Every chart has tooltips. A chart with a legend shows the series that are clicked there. Charts of cells have a
parameter `kept`: numbers of the cells that the page's filter leaves, or null for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.core.formatting import percent

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
    colour: Spec = {**names("series", None, series), **({} if several else {"legend": None}),
                    **({"scale": {"scheme": "tableau20"}} if len(series) > 8 else {})}  # fmt: skip
    ends = [{"field": f, "type": "quantitative", "title": t, "axis": y["axis"]}
            for f, t in (("low", "mean − std"), ("high", "mean + std"))]  # fmt: skip
    said = [names("label", "cell"), names("seeds", "seeds")]
    place = {"x": x, "y": y, **({"xOffset": names("series", None, series)} if nominal and several else {})}
    point = {**place, "color": colour, "tooltip": tips(*said, x, y, *ends), "opacity": visible()}
    high, cut = {"field": "high"}, list[Spec]()
    if y["axis"]["format"].endswith("%") and any((row["high"] or 0) > 1 for row in rows):  # no share exceeds 1
        high, cut = {"field": "top"}, [{"calculate": "min(datum.high, 1)", "as": "top"}]
    band = {**point, "y": {**y, "field": "low"}, "y2": high}
    interpolate: Spec = {"interpolate": "step-after"} if step else {}
    if nominal:
        drawn = [layer("rule", _across(band, across), strokeWidth=1.5)]
    else:
        drawn = [layer("area", {**band, "opacity": visible(0.18)}, **interpolate), layer("line", point, **interpolate)]
    drawn += [
        layer("point", _across(point, across), size=0 if step else 55),
        {"transform": [{"filter": "datum.best"}], **layer("point", _across(place, across), **RING)},
    ]
    if more:
        rule = {"y": y, "color": colour, "opacity": visible(), "tooltip": tips(*said, y, *ends)}
        drawn.append(layer("rule", _across(rule, across), more, strokeDash=[6, 3], strokeWidth=2))
    drawn[0]["params"] = [_SHOWN]
    row = {"step": max(24, 11 * len(series)), "for": "position"} if several else {"step": 24}
    return chart(rows, *drawn, height=row if across else height, **KEPT, **({"transform": cut} if cut else {}))


def dots(
    x: Spec, y: Spec, tooltip: Sequence[Spec], more: Sequence[Spec] = (), *, series: bool = False, height: int = 260
) -> Spec:
    """A point per cell of the page's data set, the best ringed, and more layers of the same place."""
    place = {"x": x, "y": y}
    exists = f"isValid(datum['{x['field']}']) && isValid(datum['{y['field']}'])"
    point = {**place, "tooltip": list(tooltip), "opacity": visible(legend=series),
             "shape": {"field": "role", "type": "nominal", "legend": None}}  # fmt: skip
    if series:
        point["color"] = {**names("series", None), "legend": {}}
    drawn: list[Spec] = [
        {"transform": [{"filter": exists}], **layer("point", point, size=60)}, *more,
        {"transform": [{"filter": f"datum.best && {exists}"}], **layer("point", place, **RING)},
    ]  # fmt: skip
    if series:
        drawn[0]["params"] = [_SHOWN]
    return {"data": CELLS, "layer": drawn, "height": height, **KEPT}


def bars(rows: Rows, title: str, *, equal: float = 0.0) -> Spec:
    """Horizontal bars of `value` by `name`, the first on top, with whiskers from `low` to `high` where rows have them;
    a dashed line where all are `equal`."""
    y, x = names("name", None, [str(row["name"]) for row in rows]), number("value", title, ".3~g", zero=True)
    x["axis"]["tickCount"] = 10
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


def pareto_front(cost: Sequence[float], gain: Sequence[float]) -> list[int]:
    """Indices of the points that no other point equals or exceeds in both respects, from the cheapest up."""
    front: list[int] = []
    for i in sorted(range(len(cost)), key=lambda i: (cost[i], -gain[i])):
        if not front or gain[i] > gain[front[-1]]:
            front.append(i)
    return front
