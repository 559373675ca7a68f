"""The answer of a search: what tuning gained, at which cost, and which fields matter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fpl_tune.core.formatting import (
    counted,
    numeric,
    some,
    symbol,
    upper,
    words,
)
from fpl_tune.core.metrics import comparable
from fpl_tune.findings.choice import sign
from fpl_tune.findings.comparisons import compare_pairs
from fpl_tune.findings.crossed import setting_title
from fpl_tune.findings.findings import Findings
from fpl_tune.report import charts, costs, sentences, tuned
from fpl_tune.report.charts import Spec, column
from fpl_tune.report.panels import Panel
from fpl_tune.study import results
from fpl_tune.study.cells import Cell, field_text, shown
from fpl_tune.study.results import FAILURES
from fpl_tune.study.standing import CellState

SLICES = 12
"""Fields that have a chart of their own."""
_BINS = 16  # of a contour, along each field
_FIELDS = 3  # of a trial that a sentence names


def sentence(findings: Findings) -> str:
    """The chosen point of a search, and its gain over the published or default setting."""
    (search,) = findings.searches
    best, published = search.tuned, search.published
    if best is None:
        return "No trial has completed yet."
    first, value = f"{findings.first_point(published or best)} setting", findings.spread(best, findings.metric)
    reached = sentences.reached(findings, *value)
    if best.published and len(findings.whole) == 1:
        return f"Only the {first} has completed, with {reached}; too early to judge tuning."
    if best.published:
        others = counted(len(findings.own) - len(findings.published), "other trial")
        return f"No trial was better on {findings.chosen_on} than the {first}, which reaches {reached} ({others})."
    text = sentences.best(findings, _named(findings, best), *value, sentences.of_search(findings))
    if search.best is not None and search.best.id in findings.costs:
        text += f", found after {findings.costs[search.best.id]:.2g} of {max(findings.costs.values()):.2g} full trials"
    if published is None:
        least = "" if len(findings.whole) > 1 else "it is the only trial that completed; "
        why = f"no {first} completed" if findings.published else f"there is no {first} to compare with"
        return f"{text}; {least}{why}."
    test = None
    if {best.id, published.id} <= {*findings.values["cell"]}:
        pairs = {best.id: published.id}
        test = compare_pairs(findings, pairs, chosen=not findings.confirmed).loc[best.id].to_dict()
    if test is None or not test["seeds"]:
        return f"{text}; no seed is paired with the {first}."
    # validation may have seen a gain that the test set does not show
    gained = "tuning gained" if sign(findings.metric) * test["difference"] > 0 else "tuning gained nothing:"
    against = sentences.differences(findings, {f"the {first}": test}, len(findings.seeds(best)))
    return " ".join([f"{text}; {gained} {against}.", *filter(None, [costs.text(findings, search, "It")])])


def _named(findings: Findings, cell: Cell) -> str:
    """A trial at the start of a sentence: `lr = 0.122, λ = 0.5 (trial 14)`, or its number alone if it has many fields.

    Args:
        findings: the study.
        cell: the trial, or the one that confirms it.
    """
    fields = [name for name in cell.varied if name in findings.axes and name not in findings.grid_axes]
    if not 0 < len(fields) <= _FIELDS:
        return f"Trial {cell.trial_number}"
    values = (f"{symbol(findings.names.title(name))} = {field_text(cell, name)}" for name in fields)
    return f"{', '.join(values)} (trial {cell.trial_number})"


def texts(findings: Findings) -> list[str]:
    """The chosen trial's fields, and who leads at which cost."""
    if len(findings.searches) != 1:  # the table of chosen values has their fields
        return [text] if (text := leads(findings)) else []
    (search,) = findings.searches
    best, published = search.tuned, search.published
    if best is None:
        return []
    parts = []
    for name in (name for name in best.varied if name not in findings.grid_axes):
        text = f"{findings.names.title(name)} {field_text(best, name)}"
        if published is not None and name in published.varied and field_text(published, name) != field_text(best, name):
            text += f" ({findings.first_point(published)} {field_text(published, name)})"
        parts.append(text)
    edges = tuned.at_edges(findings)
    return [f"Trial {best.trial_number}: {', '.join(parts)}.", *([edges] if edges else [])]


def leads(findings: Findings) -> str:
    """Which of several searches in one setting is ahead on the objective at equal cost, and where that changes."""
    if findings.tuned_table is not None and len(findings.tuned_table.columns) > 1:
        return ""
    if len(findings.searches) < 2 or len({findings.names.axes_label(cell) for cell in findings.whole}) < 2:
        return ""
    better = sign(findings.objectives[0])
    reached, turns = dict[str, float](), list[tuple[float, str]]()
    within = [cell for cell in findings.whole if cell.id not in findings.outside]
    parts = {findings.names.axes_label(cell) for cell in within}
    for cell in sorted(within, key=lambda cell: findings.costs.get(cell.id, math.inf)):
        name, value = findings.names.axes_label(cell), better * comparable(findings.objective(cell))
        reached[name] = max(value, reached.get(name, -math.inf))
        if reached.keys() == parts and cell.id in findings.costs:
            ahead = max(reached, key=lambda name: reached[name])
            if not turns or (turns[-1][1] != ahead and reached[ahead] > reached[turns[-1][1]]):
                turns.append((findings.costs[cell.id], ahead))
    if not turns:
        return ""
    leaders = [f"{name} from {cost:.2g} full trials on" for cost, name in turns]
    changes = "the lead never changes" if len(leaders) == 1 else f"{counted(len(leaders) - 1, 'change')} of the lead"
    return f"Ahead on {findings.chosen_on} at equal cost: {', '.join(leaders)}; {changes}."


def in_settings(findings: Findings) -> bool:
    """True if the searches have a history in each setting, and no common one."""
    front = findings.choice is not None and findings.choice.front
    settings = {setting_title(findings.setting(cell)) for cell in findings.own}
    return findings.tuned_table is not None or (front and len(settings) > 1)


def histories(findings: Findings) -> Panel:
    """The history of the searches of each setting."""
    panel = Panel("Searches", [f"Best so far on {findings.chosen_on}; small hollow points were stopped early."])
    settings: dict[str, list[Cell]] = {}
    for searched in findings.searches:
        for cell in searched.trials:
            settings.setdefault(setting_title(findings.setting(cell)), []).append(cell)
    for number, (setting, cells) in enumerate(settings.items(), 1):
        name = charts.file_name("history", setting)
        name = f"{name}_{number}" if name in panel.charts else name  # `<1` and `>1` are the same word
        panel.charts[name] = history(findings, cells), setting or "All searches"
    return panel


def history(findings: Findings, cells: Sequence[Cell] | None = None) -> Spec:
    """The first objective of trials over the search's cost, the best so far of each search, references as lines.

    Args:
        findings: the study.
        cells: the trials of one setting; None: of all, in a study with one.
    """
    objective, cells = findings.objectives[0], findings.own if cells is None else cells
    better = max if sign(objective) > 0 else min
    rows, best, ranks = [], dict[str, float](), _ranks(findings, cells)
    for cell in sorted((c for c in cells if c.id in findings.costs), key=lambda cell: findings.costs[cell.id]):
        value, series = findings.objective(cell), findings.names.axes_label(cell) or "cells"
        if not math.isnan(value):
            if cell.id not in findings.pruned and cell.id not in findings.outside:
                best[series] = better(best.get(series, value), value)
            if series in best:
                rows.append({"cost": findings.costs[cell.id], "objective": best[series], "series": series})
    settings = [findings.setting(cell) for cell in cells]
    levels = [{"objective": findings.objective(cell), "label": findings.names.of(cell),
               "series": findings.family(cell) or cell.label} for cell in findings.references
              if any(findings.setting(cell).items() <= setting.items() for setting in settings)]  # fmt: skip
    levels = [row for row in levels if not math.isnan(row["objective"])]
    y, nearby, far = charts.focused(
        charts.measured(objective, "objective"), _range(findings, cells), levels, "objective", objective
    )
    x = charts.number("cost", "cost (full trials)")
    ranks |= {row["series"]: len(ranks) + i for i, row in enumerate(nearby)}
    where, colour = {"x": x, "y": y}, charts.colours(ranks)
    tooltip = charts.tips(
        charts.names("label", "cell"),
        *(charts.names(column(axis), name) for axis, name in findings.names.titles.items()),
        y, charts.measured(findings.metric), charts.number("seeds", "seeds"), charts.number("MB", "MB"),
    )  # fmt: skip
    points = {**where, "color": colour, "tooltip": tooltip, "opacity": charts.visible()}
    first, *rest = charts.trials(points, [findings.numbers[cell.id] for cell in cells])
    layers = [
        {**first, "params": [charts.SHOWN]},
        charts.layer("line", {**where, "color": colour}, rows, interpolate="step-after"),
        charts.layer("rule", {"y": y, "color": colour}, nearby, strokeDash=[6, 3]),
        *rest,
        *({**each, "data": {"values": far}} for each in charts.edges(far)),
    ]
    return {"data": charts.CELLS, "layer": layers, "height": 340, **charts.KEPT}


def _range(findings: Findings, cells: Sequence[Cell]) -> list[float]:
    """Objectives that a chart must show: of whole trials, and of the better three quarters of all."""
    reached = [value for value in map(findings.reached, cells) if not math.isnan(value)]
    every = sorted(reached, key=lambda value: -sign(findings.objectives[0]) * value)
    whole = [findings.objective(cell) for cell in findings.whole if cell in cells]
    return [*whole, *every[: math.ceil(0.75 * len(every))]]


def _ranks(findings: Findings, cells: Sequence[Cell]) -> dict[str, int]:
    """The searches by the age of their first trial, for their colours."""
    ranks: dict[str, int] = {}
    for cell in sorted(cells, key=lambda cell: findings.ages[cell.id]):
        ranks.setdefault(findings.names.axes_label(cell) or "cells", findings.ages[cell.id])
    return ranks


def early(findings: Findings, cells: Sequence[Cell]) -> tuple[int, dict[str, float]]:
    """The first objective of trials at equal cost: of the first seed, after the rounds that all of them ran.

    As for the samplers, a trial that diverged has the worst value that was seen, and one that failed has none.

    Returns:
        The round, and the objective by id; 0 and nothing where no trial has records.
    """
    seed, objective = findings.spec.seed_list()[0], findings.objectives[0]
    histories = {cell.id: findings.row(cell).history(seed) for cell in cells}
    states = {cell.id: findings.row(cell).state for cell in cells}
    diverged = {key for key, state in states.items() if state is CellState.DIVERGED}
    whole = {key: history for key, history in histories.items() if history and states[key].value not in FAILURES}
    ran = {key: int(history[-1]["round"]) for key, history in whole.items()}
    common = min(ran.values(), default=0)
    values = {}
    for key in ran:
        value = results.value_of([r for r in histories[key] if r["round"] <= common], objective)
        if not math.isnan(value):
            values[key] = value
    if values:
        worst = (min if sign(objective) > 0 else max)(values.values())
        values |= dict.fromkeys(sorted(diverged), worst)
    return common, values


def matters(findings: Findings) -> Panel | None:
    """Which fields matter, by all trials of each search at equal cost."""
    from fpl_tune.report import importance as searched  # with Optuna

    panel, bars, seed = Panel("What matters"), list[dict[str, Any]](), findings.spec.seed_list()[0]
    drawn: dict[str, tuple[Spec, str]] = {}
    objective = words(findings.objectives[0])
    few: dict[int, list[str]] = {}
    for search, part in tuned.searched(findings):
        mine, before = search.trials, f"{search.label}: " if len(findings.searches) > 1 else ""
        rounds, values = early(findings, mine)
        importance = searched.importance(mine, values, part.space, higher=sign(findings.objectives[0]) > 0)
        if importance.empty:
            few.setdefault(len(values), []).append(search.label)
            continue
        for name, row in importance.iterrows():
            title = f"{before}{findings.names.title(str(name))}"
            shares = {"PED-ANOVA": row["ped_anova"], "fANOVA": row["fanova"]}
            bars += [{"name": title, "series": by, "value": 100 * share, "chance": 100 * row["chance"]}
                     for by, share in shares.items()]  # fmt: skip
        significant = [
            findings.names.title(str(n)) for n in importance.index[importance["ped_anova"] > importance["chance"]]
        ]
        conclusion = (
            f"more than chance: {', '.join(significant)}" if significant else "no field matters more than chance"
        )
        panel.texts.append(
            f"{before}{objective} of all {counted(len(values), 'trial')} after {counted(rounds, 'round')} of seed "
            f"{seed}, those that were stopped early too; {conclusion}."
        )
        numbers = [n for n in map(str, importance.index) if numeric(cell.varied[n] for cell in mine)
                   and len({cell.varied[n] for cell in mine}) > 3][:2]  # fmt: skip
        if len(numbers) == 2 and findings.lead in mine:
            over = " and ".join(findings.names.title(name) for name in numbers)
            caption = f"{before}{objective} over {over}, at the same round and seed, smoothed over trials near by; "
            caption += "points are trials, diamonds published settings; blank where none is near."
            drawn["contour"] = _contour(findings, mine, numbers, values), caption
    for number, labels in few.items():
        where = f"{some(labels, 4)}: " if len(findings.searches) > 1 else ""
        least = f"at least {searched.LEAST} with different values, and {searched.PER_FIELD} for each field"
        panel.texts.append(f"{where}too few trials ({number}): {least}, are needed.")
    if bars:
        caption = (
            "Share of each field by Optuna. PED-ANOVA: how much it decides whether a trial is among the best tenth; "
            "the tick is what a field without effect exceeds once in 20 times. fANOVA: its share of all variance."
        )
        panel.charts["importance"] = charts.shares(bars), caption
    panel.charts |= drawn
    return panel if panel.texts else None


def slices(findings: Findings) -> Panel | None:
    """Which values of each field are good?"""
    fields = [axis for axis in findings.axes if axis not in findings.grid_axes][:SLICES]
    if len(findings.own) < 4 or not fields:
        return None
    y, _, _ = charts.focused(
        charts.measured(findings.objectives[0], "objective"), _range(findings, findings.own), [], "", ""
    )
    ranks = _ranks(findings, findings.own)
    panel = Panel("One field at a time", [
        f"{upper(words(findings.objectives[0]))} of each trial. Small hollow points were stopped early, "
        "and stand where they were then; dashed lines are published values; points on the lower edge lie below it."
    ], small=True)  # fmt: skip
    published = [cell for cell in findings.own if cell.id in findings.published]
    for axis in fields:
        x = charts.channel(findings, axis, column(axis))
        numbers = x["type"] == "quantitative"
        tooltip = charts.tips(charts.names("label", "cell"), x, y, charts.number("seeds", "seeds"))
        seen = {"opacity": charts.visible(legend=False), "color": charts.colours(ranks)}
        points = charts.trials({"x": x, "y": y, "tooltip": tooltip, **seen})
        levels = [{column(axis): value if numbers else shown(value)} for value in
                  dict.fromkeys(cell.varied[axis] for cell in published if axis in cell.varied)]  # fmt: skip
        drawn = [charts.layer("rule", {"x": x}, levels, strokeDash=[4, 3], opacity=0.6)] if levels else []
        layers = [*drawn, *points]
        panel.charts[charts.file_name("slice", column(axis))] = (
            {"data": charts.CELLS, "layer": layers, "height": 190, **charts.KEPT}, x["title"]
        )  # fmt: skip
    return panel


def _contour(findings: Findings, mine: Sequence[Cell], fields: Sequence[str], values: dict[str, float]) -> Spec:
    """The objective at equal cost over two fields of numbers, smoothed, and the trials that it rests on."""
    valued = [cell for cell in mine if cell.id in values]
    scale = [np.log if findings.names.logarithmic(axis) else np.asarray for axis in fields]
    points = np.array([[float(cell.varied[axis]) for axis in fields] for cell in valued])
    spots = np.column_stack([to(points[:, i]) for i, to in enumerate(scale)])
    edges = [np.linspace(axis.min(), axis.max(), _BINS + 1) for axis in spots.T]
    width = np.maximum(np.ptp(spots, axis=0), 1e-12)
    heights = np.array([values[cell.id] for cell in valued])
    rows = []
    for i, j in itertools.product(range(_BINS), range(_BINS)):
        middle = np.array([edges[0][i : i + 2].mean(), edges[1][j : j + 2].mean()])
        weight = np.exp(-0.5 * (((spots - middle) / width / 0.12) ** 2).sum(1))
        if weight.max() > 0.2:
            ends = [[float(np.exp(v) if to is np.log else v) for v in e[k : k + 2]]
                    for to, e, k in zip(scale, edges, (i, j), strict=True)]  # fmt: skip
            rows.append({"x": ends[0][0], "x2": ends[0][1], "y": ends[1][0], "y2": ends[1][1],
                         "value": round(float((weight * heights).sum() / weight.sum()), 5)})  # fmt: skip
    spotted = [{"x": float(a), "y": float(b), "value": float(v), "label": findings.names.of(cell),
                "number": findings.numbers[cell.id], "published": cell.id in findings.published}
               for (a, b), v, cell in zip(points, heights, valued, strict=True)]  # fmt: skip
    x, y = (charts.channel(findings, axis, key) for axis, key in zip(fields, "xy", strict=True))
    for channel in (x, y):
        channel["scale"] = {**channel["scale"], "nice": False}
    value = charts.measured(findings.objectives[0], "value")
    legend = {"type": "gradient", "format": value["axis"]["format"], "title": value["title"], "gradientLength": 160}
    colour = {**value, "legend": legend, "scale": {"zero": False}}
    tiles = charts.layer("rect", {"x": x, "x2": {"field": "x2"}, "y": y, "y2": {"field": "y2"}, "color": colour}, rows)
    tooltip = charts.tips(charts.names("label", "cell"), x, y, value)
    shape = {"condition": {"test": "datum.published", "value": "diamond"}, "value": "circle"}
    size = {"condition": {"test": "datum.published", "value": 130}, "value": 35}
    points = charts.layer("point", {"x": x, "y": y, "shape": shape, "size": size, "tooltip": tooltip,
                                    "opacity": charts.visible(legend=False)},
                          filled=False, stroke="currentColor")  # fmt: skip
    return {**charts.chart(spotted, tiles, points, height=300), **charts.KEPT}
