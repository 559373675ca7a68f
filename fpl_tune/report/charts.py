"""Charts as Vega-Lite specifications: plain dicts, made from rows.

Every chart has tooltips. A chart with a legend shows the series that are clicked there. Charts of cells have a
parameter `kept`: numbers of the cells that the page's filter leaves, or null for all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fpl_tune.core.formatting import (
    axis_name,
    figure,
    numeric,
    percent,
    quantity,
    some,
    unit,
    unit_after,
    words,
)
from fpl_tune.findings.findings import Findings
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.standing import CellState

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
CELLS: Spec = {"name": "cells"}
"""The page's data set of cells."""
_KEPT = "kept === null || indexof(kept, datum.number) >= 0"
MOST = 60
"""Cells that a chart draws; of more, those that the objective puts first, which its title says."""
PANELS = 12
"""Settings that have a panel each in a chart."""
COLOURS = ["#1f77b4", "#d1582a", "#1a936f", "#b5649b", "#b58900", "#4f9fcf", "#8c6d4f"]
"""Distinct for colour-blind readers, on light and on dark ground."""
GREY = "#8888"
"""Of series beyond these."""
SHOWN: Spec = {"name": "shown", "select": {"type": "point", "fields": ["series"], "toggle": "true"}, "bind": "legend"}
"""The parameter of a chart's legend."""


def colours(ranks: Mapping[str, int], others: str | None = None) -> Spec:
    """The colour channel of series. Of many, the first have a colour of their own, and the others are grey.

    Args:
        ranks: the series, each with its rank by age: one that comes later takes a colour that is left, so that a series
            keeps its colour when others join it.
        others: name of a further series, of all that have no colour.
    """
    taken: dict[str, int] = {}
    for name in sorted(ranks, key=lambda name: ranks[name])[: len(COLOURS)]:
        free = [i for i in range(len(COLOURS)) if i not in taken.values()]
        taken[name] = min(free, key=lambda i: (i - ranks[name]) % len(COLOURS))
    domain = [*ranks, *([others] if others else [])]
    scale = {"domain": domain, "range": [COLOURS[taken[name]] if name in taken else GREY for name in domain]}
    return {**names("series", None), "scale": scale, **({} if len(domain) > 1 else {"legend": None})}


def measured(metric: str, field: str = "mean", *, log: bool = False) -> Spec:
    """The channel of a metric."""
    if percent(metric):
        return number(field, words(metric), ".2~%", log=log)
    if (of := {"MB": " (bytes)", "GFLOP": " (FLOP)", "M": ""}.get(unit(metric))) is not None:  # as the data hold them
        return number(field, f"{words(metric)}{of}", ".3~s", log=log)
    return number(field, quantity(metric), ".4~g", log=log)


def column(axis: str) -> str:
    """A field's name in the page's data: Vega-Lite reads dots as nesting."""
    return axis.replace(".", "_")


def file_name(*parts: str) -> str:
    """The name of a chart and of its files: words with underscores between them."""
    return "_".join(re.findall(r"\w+", " ".join(parts)))


def cell_rows(findings: Findings) -> list[dict[str, Any]]:
    """The page's data: the table's rows, in the order of the page."""
    rows = []
    for cell in findings.listed:
        row = findings.frame.loc[cell.id].to_dict()
        rows.append({
            "number": findings.numbers[cell.id], "trial": cell.trial_number,
            "label": findings.names.of(cell), "role": cell.role, "status": findings.row(cell).state.value,
            "series": findings.names.axes_label(cell) or ("references" if cell.role == "reference" else "cells"),
            "best": cell.id in findings.marked, "seeds": int(row["n"]),
            **{column(axis): row[axis] for axis in findings.axes}, "validation": row["val"],
            "objective": findings.reached(cell), "cost": findings.costs.get(cell.id),
            **{name: row[name] for name in ("mean", "std", "seconds", *findings.further_metrics)},
            "MB": row["bytes"] / 1e6,
        })  # fmt: skip
    return rows


def point(
    findings: Findings, cell: Cell, metric: str, mean: float, half: float, seeds: Iterable[int]
) -> dict[str, Any]:
    """A mean over seeds with its band, for `lines`; a band of accuracies ends at 0 and 1."""
    low, high = (mean, mean) if math.isnan(half) else (mean - half, mean + half)
    low, high = (max(low, min(mean, 0.0)), min(high, max(mean, 1.0))) if percent(metric) else (low, high)
    label, number = findings.names.of(cell), findings.numbers[cell.id]
    return {"mean": mean, "low": low, "high": high, "label": label, "number": number,
            "seeds": ", ".join(map(str, seeds))}  # fmt: skip


def curve_of(findings: Findings, cell: Cell, metric: str) -> pd.DataFrame:
    """A metric by round (rows) and seed (columns); rounds that were not evaluated are left out."""
    series = {}
    for seed in findings.seeds(cell):
        records = [r for r in findings.row(cell).history(seed) if r.get(metric) is not None]
        series[seed] = pd.Series({r["round"]: float(r[metric]) for r in records}, dtype=float)
    return pd.DataFrame(series).sort_index()


def notable(findings: Findings) -> tuple[list[tuple[str, str, Cell]], Spec]:
    """The entries of `Findings.places` that a chart draws, and its title, which says what is left out, if anything is.

    Names are sorted by the objective, the best first; all entries of a name are drawn, or none.
    """
    finished = {cell.id for cell in findings.finished}
    places = [place for place in findings.places if place[2].id in finished]
    names_of = {cell.id: name for _, name, cell in places}
    order = list(dict.fromkeys(names_of[cell.id] for cell in findings.best_first(cell for *_, cell in places)))
    kept = {name: rank for rank, name in enumerate(order[:MOST])}
    drawn = sorted((place for place in places if place[1] in kept), key=lambda place: kept[place[1]])
    if len(order) <= MOST:
        return drawn, {}
    return drawn, {"title": f"The best {MOST} of {len(order):,} on {findings.chosen_on}"}


def panels(spec: Spec, titles: Sequence[str], labels: Iterable[str] = ()) -> Spec:
    """A panel for each value of the rows' field `panel`; of a single one, the chart as it is.

    Args:
        spec: a chart whose layers have no data of their own.
        titles: the values in their order.
        labels: those of the vertical axis, if they are names; the page leaves room for them.
    """
    if len(titles) < 2:
        return spec
    columns = 2 if len(titles) == 4 else min(len(titles), 3)
    inner = {key: spec.pop(key) for key in ("layer", "height")}
    facet = {**names("panel", None, titles), "header": {"labelFontSize": 12, "labelLimit": 300}}
    room = {"left": 60 + 6 * max(map(len, labels), default=0)}
    return {**spec, "facet": facet, "columns": columns, "spec": inner, "usermeta": room}


def channel(findings: Findings, axis: str, field: str) -> Spec:
    """The channel of a field that varies: numbers, on a log scale where they are searched so, or names."""
    values = [v for v in dict.fromkeys(findings.frame[axis]) if v is not None and v == v]
    title = axis_name(findings.names.title(axis))
    if numeric(values):
        whole = all(isinstance(cell.varied.get(axis, 0), int) for cell in findings.own)
        return number(field, title, "d" if whole else ".4~g", log=findings.names.logarithmic(axis))
    return names(field, title, [shown(v) for v in values])


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
"""Additional entries of a chart of cells, for the page's filter."""
RING: Spec = {"filled": False, "size": 260, "stroke": "currentColor"}
"""The style of the mark around the best cell."""


def focused(
    channel: Spec, values: Sequence[float], levels: Rows, field: str, metric: str
) -> tuple[Spec, list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Scales a channel to values; levels that lie far off are named at the edge, and values beyond it are drawn there.

    Args:
        channel: quantitative.
        values: what must be seen.
        levels: rows with `series`, the level in `field` and, in a chart with panels, `panel`.
        field, metric: of the levels.

    Returns:
        The channel, the levels near by, and rows for `edges` about the others.
    """
    if not values:
        return channel, list(levels), []
    low, high = min(values), max(values)
    room = (high - low) or max(abs(high), 1e-9) * 0.02
    nearby = [row for row in levels if low - room / 2 <= row[field] <= high + room / 2]
    low, high = (end([end(values), *(row[field] for row in nearby)]) for end in (min, max))
    domain = [low - room / 12, high + room / 12]
    if channel["axis"]["format"].endswith("%") and low >= 0 and high <= 1:  # shares
        domain = [max(domain[0], 0.0), min(domain[1], 1.0)]
    scale = {"domain": domain, "zero": False, "nice": True, "clamp": True}
    beyond: dict[tuple[str, str], list[str]] = {}
    for row in levels:
        if row[field] < low or row[field] > high:
            text = f"{row['series']} {figure(row[field], metric)}{unit_after(metric)}"
            beyond.setdefault((row.get("panel", ""), "low" if row[field] < low else "high"), []).append(text)
    arrows = {"low": "↓", "high": "↑"}
    far = [
        {"panel": panel, "kind": side, "text": f"{arrows[side]} {some(list(dict.fromkeys(texts)), 3)}"}
        for (panel, side), texts in beyond.items()
    ]
    return {**channel, "scale": scale}, nearby, [*far]


def edges(far: Rows) -> list[Spec]:
    """Texts at the lower and upper edge of a chart, see `focused`."""
    places = {"low": ("height", "bottom", -9), "high": (0, "top", 9)}
    return [
        {**layer("text", {"x": {"value": 6}, "y": {"value": at}, "text": {"field": "text"}}, align="left",
                 baseline=baseline, dy=dy, fontSize=12), "transform": [{"filter": f"datum.kind == '{side}'"}]}
        for side, (at, baseline, dy) in places.items() if any(row["kind"] == side for row in far)
    ]  # fmt: skip


def trials(encoding: Mapping[str, Any], numbers: Sequence[int] | None = None) -> list[Spec]:
    """Points of the page's trials that have an objective; those that were stopped early are small and hollow.

    Args:
        encoding: channels of the points.
        numbers: the trials; None: all of them.
    """
    own = "" if numbers is None else f" && indexof({[*numbers]}, datum.number) >= 0"
    exists = f"datum.role == 'trial' && isValid(datum.objective){own}"
    early = f"datum.status == '{CellState.PRUNED}'"
    return [
        {**layer("point", encoding, size=65), "transform": [{"filter": f"{exists} && !({early})"}]},
        {**layer("point", encoding, size=24, filled=False), "transform": [{"filter": f"{exists} && {early}"}]},
        {**layer("point", {k: v for k, v in encoding.items() if k in ("x", "y")}, **RING),
         "transform": [{"filter": f"{exists} && datum.best"}]},
    ]  # fmt: skip


def lines(rows: Rows, x: Spec, y: Spec, colour: Spec, levels: Rows = (), *, height: int = 300, far: Rows = ()) -> Spec:
    """Means over seeds along an axis, a series for each colour: numbers are joined, names are rows with bars.

    There is a panel for each value of the rows' `panel`, if they have any.

    Args:
        rows: `series`, the fields of x and y, `low` and `high` (ends of the band), `best` (whether it is ringed),
            `label`, `seeds` and `number`; `line`, if a series has several.
        x, y: channels.
        colour: see `colours`.
        levels: rows without x, drawn as dashed lines across the chart.
        height: in pixels, of numbers.
        far: texts at the edges; see `focused`.
    """
    nominal = x["type"] == "nominal"
    along, value = ("y", "x") if nominal else ("x", "y")
    series = list(dict.fromkeys(row["series"] for row in rows))
    ends = [{"field": f, "type": "quantitative", "title": t, "axis": y["axis"]}
            for f, t in (("low", "from"), ("high", "to"))]  # fmt: skip
    tooltip = [names("label", "cell"), names("seeds", "seeds")]
    where = {along: x, value: y, **({"yOffset": names("series", None, series)} if nominal and len(series) > 1 else {})}
    point = {**where, "color": colour, "tooltip": tips(*tooltip, x, y, *ends), "opacity": visible()}
    band = {**point, value: {**y, "field": "low"}, f"{value}2": {"field": "high"}}
    if nominal:
        drawn = [layer("rule", band, strokeWidth=2), layer("point", point, size=55)]
    else:
        line = {"detail": names("line", None)}
        drawn = [layer("area", {**band, **line, "opacity": visible(0.28)}), layer("line", {**point, **line})]
        drawn.append(layer("point", point, size=55))
    drawn = [{**each, "transform": [{"filter": "!datum.kind"}]} for each in drawn]
    drawn.append({**layer("point", where, **RING), "transform": [{"filter": "datum.best && !datum.kind"}]})
    if levels:
        rule = {value: y, "color": colour, "opacity": visible(), "tooltip": tips(*tooltip, y, *ends)}
        dashes = layer("rule", rule, strokeDash=[6, 3], strokeWidth=2)
        drawn.append({**dashes, "transform": [{"filter": "datum.kind == 'level'"}]})
    drawn[0]["params"] = [SHOWN]
    drawn += edges(far)
    step = {"step": max(24, 11 * len(series)), "for": "position"}
    data = [*rows, *({**row, "kind": "level"} for row in levels), *far]
    spec = chart(data, *drawn, height=step if nominal else height, **KEPT)
    titles = dict.fromkeys(row.get("panel", "") for row in data)
    return panels(spec, [*titles], [str(row[x["field"]]) for row in rows] if nominal else ())


def shares(rows: Rows) -> Spec:
    """Bars of `value` (percent) by `name` and `series`, with a tick at `chance` for the first series."""
    y, x = (
        names("name", None, list(dict.fromkeys(str(row["name"]) for row in rows))),
        number("value", "share (%)", ".3~g"),
    )
    x["scale"] = {"zero": True}
    series = list(dict.fromkeys(str(row["series"]) for row in rows))
    colour = colours({name: i for i, name in enumerate(series)})
    where = {"y": y, "yOffset": names("series", None, series)}
    tooltip = tips(y, names("series", "by"), x)
    ticks = [row for row in rows if row["series"] == series[0]]
    return chart(
        rows,
        layer("bar", {**where, "x": x, "color": colour, "tooltip": tooltip}),
        layer("tick", {**where, "x": {**x, "field": "chance"}}, ticks, color="currentColor", thickness=2),
        height={"step": 13},
    )


def bars(rows: Rows, title: str) -> Spec:
    """Horizontal bars of `value` by `name`, the first on top, with whiskers from `low` to `high` if rows have them."""
    y, x = names("name", None, [str(row["name"]) for row in rows]), number("value", title, ".3~g", zero=True)
    text = {"x": x, "y": y, "text": {"field": "value", "format": ".1f"}}
    layers = [
        layer("bar", {"x": x, "y": y, "tooltip": tips(y, x)}, height={"band": 0.7}),
        layer("text", text, align="left", dx=4, dy=-6),
    ]
    if "low" in rows[0]:
        layers.append(layer("rule", {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}))
    return chart(rows, *layers, height={"step": 24})
