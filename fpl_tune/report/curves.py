"""The third section: learning curves, all fields at once, a grid of two axes, what matters, the ablation path."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import (
    axis_name,
    counted,
    figure,
    numeric,
    plus_minus,
    quantity,
    scaled,
    upper,
    words,
)
from fpl_tune.findings.comparisons import Comparisons, compare_pairs
from fpl_tune.findings.findings import Findings
from fpl_tune.report import charts, search, vega
from fpl_tune.report.charts import Spec, layer, measured, names
from fpl_tune.report.panels import PageTable, Panel, judged, plain_table
from fpl_tune.report.reproduce import study_file
from fpl_tune.search.ablation import Step, ablation_paths
from fpl_tune.search.search import stored_searches
from fpl_tune.study.cells import shown
from fpl_tune.study.results import VAL


def learning(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How fast is it learned? All that the study compares, a panel for each setting."""
    places, title = charts.notable(findings)
    panel = Panel("Learning curves")
    own = [name for name in findings.further_metrics if not name.startswith("test/")]
    for metric in dict.fromkeys([VAL, findings.metric, *own]):
        curves = [(*place, curve) for place in places if len(curve := charts.curve_of(findings, place[2], metric)) > 1]
        ages: dict[str, int] = {}
        for _, name, cell, _ in curves:
            ages[name] = min(findings.ages[cell.id], ages.get(name, len(findings.cells)))
        references = {name for _, name, cell, _ in curves if cell.is_reference}
        named = sorted(ages, key=lambda name: name not in references)[: len(charts.COLOURS)]  # then the best first
        others = f"{len(ages) - len(named)} others"
        rows = [
            {
                **charts.point(findings, cell, metric, mean, std if name in named else math.nan, curve.columns),
                "round": number, "panel": setting, "line": name, "series": name if name in named else others,
            }
            for setting, name, cell, curve in curves
            for number, mean, std in zip(curve.index, curve.mean(axis=1), curve.std(axis=1), strict=True)
        ]  # fmt: skip
        if rows:
            ranks = {name: age for name, age in ages.items() if name in named}
            colour = charts.colours(ranks, others if len(ages) > len(named) else None)
            drawn = charts.lines(rows, charts.number("round", "communication round", "d"), measured(metric), colour)
            caption = f"{upper(words(metric))}, mean and standard deviation over seeds; {findings.basis}."
            panel.charts[charts.file_name("learning", metric)] = {**drawn, **title}, caption
    return panel if panel.charts else None


def explore(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which combinations of values are good? Parallel coordinates of fields that all cells have, and of results."""
    axes = [axis for axis in findings.axes if all(axis in cell.varied for cell in findings.own)]
    if len(findings.own) < 4 or len(axes) < 2:
        return None
    # The data hold a row per cell with its places on all axes, from 0 to 1, which the chart unfolds. A rectangle drawn
    # with the pointer is the parameter `brush`, by which the page filters.
    cells = [cell for cell in findings.own if not math.isnan(findings.frame.loc[cell.id, "val"])]
    table = findings.frame.loc[[cell.id for cell in cells]]
    columns = {findings.names.title(axis): table[axis] for axis in axes}
    for metric, key in ((VAL, "val"), (findings.metric, "mean")):
        columns[quantity(metric, over="").replace(" accuracy", "")] = scaled(table[key], metric)
    logs = [findings.names.title(axis) for axis in axes if findings.names.logarithmic(axis)]
    heights: list[list[float | None]] = [[] for _ in cells]
    labels = list[dict[str, Any]]()
    for axis, column in columns.items():
        values = [v for v in dict.fromkeys(column) if v is not None and v == v]
        if numeric(values):
            along = np.log(values) if axis in logs else np.array(values, float)
            labelled = dict.fromkeys((min(values), max(values)))
        else:
            along, labelled = np.arange(len(values)), values[:: 1 + len(values) // 12]
        at = dict(zip(values, (along - along.min()) / (np.ptp(along) or 1.0), strict=True)) if values else {}
        labels += [
            {"axis": axis, "place": float(at[v]), "text": f"{v:.3g}" if isinstance(v, float) else shown(v)}
            for v in labelled
        ]
        for height, value in zip(heights, column, strict=True):
            height.append(round(float(at[value]), 4) if value in at else None)
    rows = [{"number": findings.numbers[cell.id], "place": height} for cell, height in zip(cells, heights, strict=True)]
    colour, room = measured(VAL, "validation"), vega.WIDTH // len(columns)
    place = {"orient": "top", "labelAngle": 0, "labelFontSize": 11, "labelLimit": room, "labelOverlap": False}
    place |= {"grid": True, "domain": False}
    x: Spec = {"field": "axis", "type": "nominal", "sort": list(columns), "title": None, "axis": place,
               "scale": {"type": "point", "padding": 0.4}}  # fmt: skip
    y: Spec = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.04, 1.04]}}
    legend = {"type": "gradient", "format": colour["axis"]["format"], "title": colour["title"], "gradientLength": 160}
    seen = {"x": x, "y": y, "color": {**colour, "legend": legend}, "opacity": charts.visible(0.8, legend=False)}
    tooltip = charts.tips(names("label", "cell"), names("axis", "axis"), colour)
    unfold = [
        {"calculate": f"{list(columns)}", "as": "axis"}, {"flatten": ["place", "axis"]},
        {"filter": "isValid(datum.place)"},
        {"lookup": "number", "from": {"data": charts.CELLS, "key": "number", "fields": ["label", "validation"]}},
    ]  # fmt: skip
    points = layer("point", {**seen, "tooltip": tooltip}, size=26)
    points["params"] = [{"name": "brush", "select": {"type": "interval", "encodings": ["x", "y"]}}]
    order = {"calculate": f"indexof({list(columns)}, datum.axis)", "as": "order"}
    line = layer("line", {**seen, "detail": {"field": "number"}, "order": {"field": "order"}}, strokeWidth=1.4)
    ends = {"x": x, "y": y, "text": {"field": "text"}}
    text = layer("text", ends, labels, align="left", dx=5, fontSize=11, limit=room - 8)
    layers = {**line, "transform": [*unfold, order]}, {**points, "transform": unfold}, text
    text = "Draw a rectangle over an axis: the table and all charts of cells keep the lines that pass through it."
    caption = "One line per cell, coloured by validation accuracy."
    drawn = charts.chart(rows, *layers, height=320, **charts.KEPT)
    return Panel("All fields at once", [text], {"parallel": (drawn, caption)})


def grid(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How do the two axes of a grid interact?"""
    if len(findings.axes) != 2 or findings.searched:
        return None
    down, across = sorted(findings.axes, key=lambda axis: findings.frame[axis].nunique(), reverse=True)
    table = findings.frame.loc[[cell.id for cell in findings.own]].dropna(subset=["val", down, across])
    if min(table[down].nunique(), table[across].nunique()) < 2:
        return None
    rows = [{"r": shown(r["r"]), "c": shown(r["c"]), "validation": r["val"]}
            for r in table.rename(columns={down: "r", across: "c"}).to_dict("records")]  # fmt: skip
    x, y = (names(key, axis_name(findings.names.title(axis)), list(dict.fromkeys(map(shown, table[axis]))))
            for key, axis in (("c", across), ("r", down)))  # fmt: skip
    channels, value = {"x": {**x, "axis": {"labelAngle": 0}}, "y": y}, measured(VAL, "validation")
    colour = {**value, "scale": {"zero": False}, "legend": {"format": value["axis"]["format"]}}
    middle = (table["val"].min() + table["val"].max()) / 2
    ink = {"condition": {"test": f"datum.validation < {middle}", "value": "white"}, "value": "black"}
    drawn = charts.chart(
        rows,
        layer("rect", {**channels, "color": colour, "tooltip": charts.tips(x, y, value)}),
        layer("text", {**channels, "text": {"field": "validation", "format": ".1~%"}, "color": ink}, fontSize=11),
        height={"step": 26},
    )
    title = f"Validation accuracy by {findings.names.title(down)} and {findings.names.title(across)}"
    return Panel(title, charts={"heat_map": (drawn, f"Mean over seeds; {findings.basis}.")})


def history(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How did the searches of each setting proceed?"""
    return search.histories(findings) if search.in_settings(findings) else None


def slices(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which values of each searched field are good?"""
    return search.slices(findings) if findings.searched else None


def matters(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which hyper-parameters matter?"""
    if findings.searched:
        return search.matters(findings)
    ids = [cell.id for cell in findings.own if findings.compared(cell)]
    table, panel = findings.frame.loc[ids].dropna(subset=["val"]), Panel("What matters")
    fields = [axis for axis in findings.axes if table[axis].map(repr).nunique() > 1]
    if len(fields) < 2:
        return None
    frame = findings.table.values(VAL, findings.rule)
    noise = analysis.noise_of(frame.loc[frame["cell"].isin(table.index)])
    importance = analysis.importance(table.rename(columns={"val": "value"}), fields, noise=noise)
    called = importance["field"].map(lambda name: findings.names.title(str(name)))
    bars = [{"name": name, "value": 100 * share}
            for name, share in zip(called, importance["share"], strict=True) if share == share]  # fmt: skip
    for note, names_of in called.groupby(importance["note"], sort=False):
        panel.texts += [f"no share of {', '.join(names_of)}: {note}."] if note else []
    if bars:
        caption = "Share of the variance of the validation accuracy over cells that a field explains beside the others"
        caption += f" (ω²); the rest to 100 % is interactions. {findings.basis}."
        panel.charts["importance"] = charts.bars(bars, "share of variance (%)"), caption
    return panel


def ablation(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which of the changes from the published or default setting to the best cell make the difference?"""
    if findings.spec.ablate is None:
        return None
    panel = Panel("From the first setting to the best cell")
    try:
        searches = stored_searches(findings.spec, findings.table.effective)
        paths = ablation_paths(findings.spec, searches, findings.table.rows)
    except ConfigError as problem:
        panel.texts.append(str(problem))
        return panel
    panel.texts.append(
        "One field changes in each row, the most important first; every row is a run. Differences are to the "
        f"row above, paired by seed, with 95 % intervals that are corrected for the number of rows; {findings.basis}."
    )
    panel.tables = [_path(findings, path) for path in paths]
    if missing := sum(not findings.row(step.cell).results for path in paths for step in path):
        panel.texts.append(f"{counted(missing, 'step')} without results.")
        panel.code.append(f"fpl-tune study {study_file(findings)} ablate=best")
    return panel


def _path(findings: Findings, path: list[Step]) -> PageTable:
    """A row per step, and the whole path in the last one."""
    cells = [step.cell for step in path]
    rows = [(cell.id, seed, value) for cell in {cell.id: cell for cell in cells}.values()
            for seed, value in findings.by_seed(cell, findings.metric).items()]  # fmt: skip
    frame = pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"]))
    present = set(frame["cell"])
    steps = {cell.id: before.id for before, cell in itertools.pairwise(cells) if {before.id, cell.id} <= present}
    tests = compare_pairs(findings, steps, frame).to_dict("index")
    body = []
    for i, step in enumerate(path):
        then, now = cells[i - 1].varied if i else {}, step.cell.varied
        changes = (f"{findings.names.title(name)}: {_value(then, name)} → {_value(now, name)}" for name in step.fields)
        reached = [figure(findings.objective(step.cell), findings.objectives[0]),
                   plus_minus(*findings.spread(step.cell, findings.metric), findings.metric)]  # fmt: skip
        gap = judged(findings.metric, tests[step.cell.id]) if step.cell.id in tests else ["", "", ""]
        body.append([str(i), ", ".join(changes) or f"{findings.first_point(step.cell)} setting", *reached, *gap])
    if {cells[0].id, cells[-1].id} <= present and len(path) > 2:
        (whole,) = compare_pairs(findings, {cells[-1].id: cells[0].id}, frame).to_dict("records")
        body.append(["", "all of them", "", "", *judged(findings.metric, whole)])
    measured_by = [quantity(findings.objectives[0], over=""), f"{quantity(findings.metric, over='')} ± std"]
    header = ["step", "change", *measured_by, "difference", "95 % interval", "verdict"]
    return plain_table(header, body)


def _value(varied: dict[str, object], name: str) -> str:
    return shown(varied[name]) if name in varied else "unset"
