"""The chart of the first section: tuned methods, the history of a search, a curve along an axis, or rows of cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from fpl_tune.analysis import t_half_width
from fpl_tune.core.formatting import numeric, upper, words
from fpl_tune.findings.choice import sign
from fpl_tune.findings.crossed import setting_title
from fpl_tune.findings.findings import Findings
from fpl_tune.report import charts, front, search, tuned
from fpl_tune.report.charts import Spec
from fpl_tune.study.cells import Cell, label, shown
from fpl_tune.study.results import VAL

SERIES = 8
"""Series that a chart draws along an axis; cells of studies with more are rows."""


def drawn(findings: Findings) -> dict[str, tuple[Spec, str]]:
    """History of one search, curve along the axis of a sweep, or rows of cells or tuned methods with intervals."""
    if not findings.finished or (findings.tuned_table is not None and not charts.notable(findings)[0]):
        return {}
    dashed = ", dashed lines are references" if findings.references else ""
    bars = "bars are 95 % intervals over seeds"
    if findings.tuned_table is not None:
        caption = f"{bars}; rings: best on {findings.chosen_on}; {findings.basis}."
        return {"tuned": (dots(findings, tuned.best(findings)), f"{upper(words(findings.metric))}; {caption}")}
    if findings.searched:
        early = ", small and hollow if it was stopped early" if findings.pruned else ""
        of = " of each search" if len(findings.searches) > 1 else ""
        caption = f"A point per trial when it ended{early}; the line is the best so far{of}{dashed}"
        history = {"history": (search.history(findings), f"{caption}; {findings.basis}.")}
        return {**front.drawn(findings), **({} if search.in_settings(findings) else history)}
    x = _along(findings)
    if x is None:
        caption = f"{bars}; the ring marks the choice by validation; {findings.basis}."
        return {"curve": (dots(findings, findings.chosen), f"{upper(words(findings.metric))}; {caption}")}
    numbers = numeric(findings.frame[x])
    spread = "bands are the standard deviation over seeds" if numbers else bars
    charted = {"curve": findings.metric, **({"curve_validation": VAL} if numbers and findings.metric != VAL else {})}
    caption = f"{spread}; the ring marks the choice by validation{dashed}; {findings.basis}."
    return {
        name: (curve(findings, x, metric), f"{upper(words(metric))}; {caption}") for name, metric in charted.items()
    }


def _along(findings: Findings) -> str | None:
    """The axis along which a grid is drawn: `report.x`, the first of numbers or, of several axes of names that are no
    settings, the longest. None: its cells are rows."""
    varied = findings.frame.loc[[cell.id for cell in findings.own]]
    axes = [axis for axis in findings.axes if varied[axis].notna().any()]
    numbers = [axis for axis in axes if numeric(findings.frame[axis])]
    named = sorted((a for a in axes if a not in findings.settings), key=lambda a: -findings.frame[a].nunique())
    named = named if len(named) > 1 else []
    x = findings.spec.report.x if findings.spec.report.x in axes else next(iter([*numbers, *named]), None)
    others = [axis for axis in axes if axis not in (x, *_panel_axes(findings, x))]
    series = {repr([cell.varied.get(axis) for axis in others]) for cell in findings.own}
    return x if len(series) <= SERIES else None


def _panel_axes(findings: Findings, x: str | None) -> list[str]:
    """The axes of settings, beside x, whose values have a panel each."""
    axes = [axis for axis in findings.settings if axis in findings.axes and axis != x]
    settings = {repr([cell.varied.get(axis) for axis in axes]) for cell in findings.own}
    return axes if len(settings) <= charts.PANELS else []


def dots(findings: Findings, best: Collection[str]) -> Spec:
    """What the study compares as rows, a panel for each setting: means with their 95 % intervals over seeds.

    Args:
        findings: the study.
        best: ids of the cells that have rings.
    """
    places, title = charts.notable(findings)
    rows = []
    for setting, name, cell in places:
        (mean, std), seeds = findings.spread(cell, findings.metric), findings.seeds(cell)
        half = t_half_width(std / math.sqrt(len(seeds)), len(seeds))
        own = charts.point(findings, cell, findings.metric, mean, half, seeds)
        rows.append({**own, "x": name, "panel": setting, "series": "cells", "best": cell.id in best})
    means = {str(name): mean for name, mean in pd.DataFrame(rows).groupby("x")["mean"].mean().items()}
    order = sorted(means, key=lambda name: -(sign(findings.metric) or 1) * means[name])
    x = charts.names("x", None, order)
    return {**charts.lines(rows, x, charts.measured(findings.metric), charts.colours({"cells": 0})), **title}


def curve(findings: Findings, axis: str, metric: str) -> Spec:
    """A metric along an axis: a panel for each setting, a series for each combination of the other axes; references are
    dashed."""
    x = charts.channel(findings, axis, "x")
    numbers = x["type"] == "quantitative"
    where = _panel_axes(findings, axis)

    def values(cell: Cell, axes: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in cell.varied.items() if name in axes}

    settings = {setting_title(own): own for own in (values(cell, where) for cell in findings.own)}
    families = {cell.id: findings.family(cell) for cell in findings.finished if cell.is_reference}
    rows: list[dict[str, Any]] = []
    levels: dict[tuple[str, str], dict[str, Any]] = {}
    ranks: dict[str, int] = {}
    for cell in sorted(findings.finished, key=lambda cell: cell.id in families):
        if cell.id not in families and not cell.candidate:
            continue
        seeds, (mean, std) = findings.seeds(cell), findings.spread(cell, metric)
        half = std if numbers else t_half_width(std / math.sqrt(len(seeds)), len(seeds))
        others = values(cell, {*findings.axes} - {axis, *where})
        name = families.get(cell.id, label(others) if others else "cells")
        position = findings.frame.loc[cell.id, axis]
        positioned = position is not None and position == position
        row = {
            **charts.point(findings, cell, metric, mean, half, seeds),
            "series": name,
            "best": cell.id in findings.chosen,
        }
        for panel in (title for title, setting in settings.items() if values(cell, where).items() <= setting.items()):
            if cell.id not in families or (positioned and list(families.values()).count(name) > len(settings)):
                rows += [{**row, "panel": panel, "x": position if numbers else shown(position)}] if positioned else []
            else:
                levels[panel, findings.names.of(cell) if (panel, name) in levels else name] = {**row, "panel": panel}
        ranks[name] = min(findings.ages[cell.id], ranks.get(name, len(findings.cells)))
    y, shown_levels, far = charts.measured(metric), list[Mapping[str, Any]](levels.values()), list[Mapping[str, Any]]()
    if numbers:
        band = [row[end] for row in rows for end in ("low", "high")]
        y, shown_levels, far = charts.focused(y, band, shown_levels, "mean", metric)
    else:
        x["sort"] = list(dict.fromkeys(row["x"] for row in sorted(rows, key=lambda row: -row["mean"])))
    series = {row["series"] for row in [*rows, *shown_levels]}
    colour = charts.colours({name: rank for name, rank in ranks.items() if name in series})
    return charts.lines(rows, x, y, colour, shown_levels, height=340, far=far)
