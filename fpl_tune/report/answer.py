"""The first section: who won, by how much and how sure, with the chart that fits the study."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fpl_tune.analysis import t_half_width
from fpl_tune.core.formatting import (
    counted,
    figure,
    interval,
    numeric,
    percent,
    plus_minus,
    quantity,
    short,
    signed,
    upper,
)
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part, plain_table
from fpl_tune.report.charts import Spec
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import advice
from fpl_tune.study import claims as study_claims
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import VAL
from fpl_tune.study.status import Status

SERIES = 8
"""Series that a chart draws along an axis; cells of studies with more are bars."""
_BARS = 24
"""Cells that are drawn as bars, the best on validation."""
_INTERVALS = "mean and 95 % interval over seeds"


def sentence(facts: Facts, tests: pd.DataFrame) -> str:
    """The answer: the best cell, its value, what it gains over the reference and how sure that is."""
    done = int((facts.table["status"] == Status.DONE.value).sum())
    so_far = "" if done == len(facts.table) else f"So far ({done} of {counted(len(facts.table), 'cell')} done), "
    if facts.choice is None or facts.best is None:
        return f"{so_far or 'N'}{'n' if so_far else ''}othing is chosen: no two finished cells compare on validation."
    of = quantity(facts.metric, over="", unit=False)
    unit = " %" if percent(facts.metric) else ""
    if len(facts.chosen) > 1:
        label = facts.reference.shared or facts.choice.label
        return f"{so_far}{label} is best: {facts.choice.by} ({figure(facts.choice.val, VAL)} %)."
    row = facts.table.loc[facts.best.id]
    value = plus_minus(row["mean"], row["std"], facts.metric)
    text = f"{so_far}{facts.name(facts.best)} is best on validation, with {value}{unit} {of}"
    if facts.best.id not in tests.index:
        return f"{text} over {counted(row['n'], 'seed')}."
    test = tests.loc[facts.best.id]
    points = " points" if percent(facts.metric) else ""
    gap = f"{signed(test['difference'], facts.metric)}{points} against {facts.reference.name}"
    bounds = interval(test, facts.metric)
    sure = (
        "one seed allows no interval" if bounds == "–" else f"95 % interval {bounds}, {counted(test['seeds'], 'seed')}"
    )
    verdict = {"better": "better", "worse": "worse", "equal": f"equal within {facts.spec.report.rope:g}{points}"}
    return f"{text}; {gap} ({sure}): {verdict.get(str(test['verdict']), 'undecided')}."


def chart(facts: Facts, tests: pd.DataFrame) -> Part:
    """Who won?"""
    return Part(charts=main_chart(facts))


def decided(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How sure is that, and how many seeds decide the rest?"""
    if tests.empty:
        return None
    counts = tests["verdict"].value_counts()
    summary = ", ".join(f"{counts[v]} {v}" for v in ("better", "worse", "equal", "undecided") if v in counts)
    part = Part(texts=[f"Of {counted(len(tests), 'comparison')} with {facts.reference.name}: {summary}."])
    if "undecided" in counts:
        words, _, command = advice(facts, tests).partition(": fpl-tune ")
        part.texts.append(f"{words.removesuffix('.')}.")
        part.code += [f"fpl-tune {command}"] if command else []
    return part


def main_chart(facts: Facts) -> dict[str, tuple[Spec, str]]:
    """History of a search, curve along the axis of a sweep, or bars of cells with their intervals."""
    if not facts.finished:
        return {}
    if facts.searched:
        caption = (
            "One point per trial by its number, the line is the best so far, dashed lines are references; "
            f"{facts.basis}."
        )
        return {"history": (history(facts), caption)}
    axes = [a for a in facts.axes if facts.table.loc[[c.id for c in facts.own], a].notna().any()]
    numbers = [a for a in axes if numeric(facts.table[a])]
    several = sorted(axes, key=lambda a: -facts.table[a].nunique()) if len(axes) > 1 else []
    x = facts.spec.report.x if facts.spec.report.x in axes else next(iter([*numbers, *several]), None)
    if x is None or len({repr([cell.varied.get(a) for a in axes if a != x]) for cell in facts.own}) > SERIES:
        drawn, left = bars(facts)
        left = f" Left out: {counted(left, 'cell')} that validation puts lower." if left else ""
        caption = upper(f"{_INTERVALS}; the ring marks the best on validation; {facts.basis}.{left}")
        return {"cells": (drawn, caption)}
    found: dict[str, tuple[Spec, str]] = {}
    spread = "bands are the standard deviation over seeds" if x in numbers else _INTERVALS
    for metric in [facts.metric, *([VAL] if x in numbers and facts.metric != VAL else [])]:
        what = "by which the best cell (ringed) is chosen" if metric == VAL else "reported after the choice"
        drawn = sweep(facts, x, metric)
        dashed = " References are dashed." if "strokeDash" in drawn["layer"][-1]["mark"] else ""
        caption = upper(f"{quantity(metric, unit=False)}, {what}; {spread}; {facts.basis}.{dashed}")
        found["curve" if metric == facts.metric else "curve_validation"] = drawn, caption
    return found


def sweep(facts: Facts, axis: str, metric: str) -> Spec:
    """A metric along one axis, a series for each combination of the other axes; references are dashed."""
    x = charts.place(facts, axis, "x")
    others = [a for a in facts.axes if a != axis]
    cells = [cell for cell in facts.cells if facts.table.loc[cell.id, "n"] > 0]
    values = {cell.id: facts.table.loc[cell.id, axis] for cell in cells}
    families = {cell.id: facts.reference.family(cell) for cell in cells if cell.role == "reference"}
    places = {(name, shown(values[key])) for key, name in families.items() if values[key] is not None}
    moving = {name for name in families.values() if sum(of == name for of, _ in places) > 1}
    rows: list[dict[str, Any]] = []
    level: dict[str, dict[str, Any]] = {}
    ranks: dict[str, int] = {}
    for cell in cells:
        name = families.get(cell.id)
        own = ", ".join(f"{short(a)}={shown(facts.table.loc[cell.id, a])}" for a in others)
        row = {**_row(facts, cell, metric, x["type"] == "nominal"), "series": name or own or "cells"}
        if name is not None and name not in moving:
            level.setdefault(name, row)
        elif values[cell.id] is not None and values[cell.id] == values[cell.id]:
            rows.append({**row, "x": values[cell.id] if x["type"] == "quantitative" else shown(values[cell.id])})
        ranks[row["series"]] = min(facts.ages[cell.id], ranks.get(row["series"], len(cells)))
    if x["type"] == "nominal" and len(x["sort"]) > charts.BESIDE:  # rows, the best on top
        means = pd.DataFrame(rows).pivot_table(index="x", values="mean").sort_values("mean", ascending=False)
        x["sort"] = list(means.index)
    return charts.lines(rows, x, charts.measured(metric), charts.colours(ranks), list(level.values()), height=340)


def _row(facts: Facts, cell: Cell, metric: str, interval: bool = False) -> dict[str, Any]:
    """A cell's mean with its standard deviation, or its 95 % interval, for `charts.lines`."""
    mean, std = facts.spread(cell, metric)
    half = t_half_width(std / math.sqrt(len(facts.seeds(cell))), len(facts.seeds(cell))) if interval else std
    low, high = (mean, mean) if math.isnan(half) else (mean - half, mean + half)
    return {
        "mean": mean, "low": low, "high": min(high, max(mean, 1.0)) if percent(metric) else high,
        "label": facts.name(cell), "number": facts.keys[cell.id],
        "seeds": ", ".join(map(str, facts.seeds(cell))), "best": cell.id in facts.chosen,
    }  # fmt: skip


def bars(facts: Facts) -> tuple[Spec, int]:
    """Cells with their 95 % intervals, the best on top, references dashed; and how many are left out."""
    families = [facts.reference.family(cell) for cell in facts.references]
    lines = {c.id: name for c, name in zip(facts.references, families, strict=True) if families.count(name) == 1}
    own = [cell for cell in facts.finished if cell.id not in lines]
    kept = sorted(own, key=lambda cell: -facts.table.loc[cell.id, "val"])[:_BARS]
    rows, levels, ranks = [], list[dict[str, Any]](), {"cells": 0}
    for cell in [*kept, *(cell for cell in facts.finished if cell.id in lines)]:
        row = _row(facts, cell, facts.metric, interval=True)
        if cell.id in lines:
            levels.append({**row, "series": lines[cell.id]})
            ranks[lines[cell.id]] = facts.ages[cell.id]
        else:
            rows.append({**row, "name": facts.name(cell), "series": "cells"})
    rows.sort(key=lambda row: -row["mean"])
    x = charts.names("name", None, [row["name"] for row in rows])
    drawn = charts.lines(rows, x, charts.measured(facts.metric), charts.colours(ranks), levels)
    return drawn, len(own) - len(rows)


def history(facts: Facts) -> Spec:
    """Validation accuracy of the trials by their numbers, the best so far of each search, and references as lines."""
    rows, best, ranks = [], dict[str, float](), dict[str, int]()
    for cell in sorted(facts.own, key=lambda cell: cell.number):
        val, part = float(facts.table.loc[cell.id, "val"]), facts.part(cell) or "cells"
        if not math.isnan(val):
            best[part] = max(best.get(part, val), val)
            ranks.setdefault(part, facts.ages[cell.id])
            rows.append({"trial": cell.number, "validation": best[part], "series": part})
    x, y = charts.number("trial", "trial", "d"), charts.measured(VAL, "validation")
    known = [cell for cell in facts.references if facts.table.loc[cell.id, "n"] > 0]
    levels = [{"validation": facts.spread(cell, VAL)[0], "label": facts.name(cell),
               "series": facts.reference.family(cell) or cell.label} for cell in known]  # fmt: skip
    ranks |= {row["series"]: len(ranks) + i for i, row in enumerate(levels)}
    colour = charts.colours(ranks)
    drawn = [charts.layer("line", {"x": x, "y": y, "color": colour}, rows, interpolate="step-after")]
    if levels:
        said = charts.tips(charts.names("label", "reference"), y)
        drawn.append(charts.layer("rule", {"y": y, "color": colour, "tooltip": said}, levels, strokeDash=[6, 3]))
    tips = charts.cell_tips(facts, *facts.axes[:6])
    return charts.dots(x, y, tips, drawn, colour=colour, keep="datum.role != 'reference'", height=340)


def claims(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Which of the study's claims do the results support?"""
    judged = study_claims.evaluate(facts.store, facts.rule)
    if not judged:
        return None
    texts = [
        f"{study_claims.counts(judged)}. A claim holds where the 95 % interval of the difference, paired over seeds, "
        "lies inside of what is claimed, and fails where it lies outside."
    ]
    rows = [[claim.status, claim.says, claim.source or "–", claim.reason] for claim in judged]
    return Part("Claims", texts, tables=[plain_table(["", "claim", "shown in", "values"], rows)])
