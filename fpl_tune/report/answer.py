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
    signed,
    some,
    upper,
)
from fpl_tune.report import charts, search, sweep
from fpl_tune.report.blocks import Part, plain_table
from fpl_tune.report.charts import Spec
from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import Cell, label, shown
from fpl_tune.study.claims import counts
from fpl_tune.study.results import VAL
from fpl_tune.study.standing import State

SERIES = 8
"""Series that a chart draws along an axis; cells of studies with more are rows."""
ROWS = 24
"""Cells that are drawn as rows, the best on validation."""


def sentence(facts: Facts, tests: pd.DataFrame) -> str:
    """The answer to what the study asks: its claims, the plateau of a sweep, the gain of a search, or the best cell.

    A warning follows where rungs of a search mislead.
    """
    warnings = [text for found in facts.foresights if (text := found.warning())]
    return " ".join([_answer(facts, tests), *warnings])


def _answer(facts: Facts, tests: pd.DataFrame) -> str:
    number = int((facts.table["status"] == State.DONE.value).sum()) + len(facts.pruned) + len(_diverged(facts))
    so_far = "" if number == len(facts.table) else f"So far, {number} of {counted(len(facts.table), 'cell')} done: "
    if facts.spec.report.claims:
        return f"{so_far}{counts(facts.claims)}."
    if facts.choice is None:
        return f"{so_far}Nothing is chosen, since no two finished cells compare on validation."
    if facts.best is None:
        return f"{so_far}{facts.choice.by}: no cell is best."
    if facts.kind == "sweep":
        return f"{so_far}{sweep.sentence(facts)}"
    if facts.kind == "search" and len(facts.chosen) == 1:
        return f"{so_far}{search.sentence(facts)}"
    return f"{so_far}{_best(facts, tests)}"


def _best(facts: Facts, tests: pd.DataFrame) -> str:
    """The best cell, its value, what it gains over the reference and how sure that is, and from what it is not told."""
    assert facts.best is not None
    assert facts.choice is not None
    unit, points = (" %", " points") if percent(facts.metric) else ("", "")
    means = facts.table.loc[facts.chosen, "mean"]
    of = f"{unit} {quantity(facts.metric, over='', unit=False)}"
    against = tests.loc[tests.index.isin(facts.chosen)]
    gap = f"{signed(against['difference'].mean(), facts.metric)}{points} against {facts.reference.name}"
    if len(means) > 1:
        name = facts.reference.shared or facts.choice.label
        text = f"{name} is best on {facts.chosen_on} over {counted(len(means), 'setting')}, with a mean of "
        text += f"{plus_minus(means.mean(), math.nan, facts.metric)}{of}"
        found = {**against["verdict"].value_counts(), "not compared": len(means) - len(against)}
        verdicts = ", ".join(f"{word} in {n}" for word, n in found.items() if n)
        return f"{text}." if against.empty else f"{text}; {gap} on average: {verdicts}."
    row = facts.table.loc[facts.best.id]
    text = f"{facts.name(facts.best)} is best on {facts.chosen_on}, with "
    text += f"{plus_minus(row['mean'], row['std'], facts.metric)}{of}"
    if against.empty:
        text += f" over {counted(row['n'], 'seed')}"
    else:
        (test,) = against.to_dict("records")
        bounds = interval(test, facts.metric)
        sure = (
            f"{facts.sure} interval {bounds}, {counted(test['seeds'], 'seed')}"
            if bounds != "–"
            else "one seed: no interval"
        )
        equal = f"equal within {facts.spec.report.rope:g}{points}"
        text += f"; {gap} ({sure}): {equal if test['verdict'] == 'equal' else test['verdict']}"
    near = facts.untold
    if near and len(near) < len(facts.own) - 1:
        return f"{text}. It is not told apart from {some(list(map(facts.name, near)), 3)}."
    return f"{text}. {'No other cell is told apart from it.' if near and len(near) > 1 else ''}".strip()


def _diverged(facts: Facts) -> list[Cell]:
    """The trials of searches that diverged: they are over, while such cells of a grid are to be run again."""
    return [cell for cell in facts.own if cell.role == "trial" and facts.states[cell.id] is State.DIVERGED]


def decided(facts: Facts, tests: pd.DataFrame) -> Part:
    """Who won, and how sure is that?"""
    part = Part(charts=main_chart(facts))
    if facts.choice is not None and facts.best is not None:
        part.texts += sweep.references(facts, tests) if facts.kind == "sweep" else []
        part.texts += search.texts(facts) if facts.kind == "search" and len(facts.chosen) == 1 else []
    if tied := facts.tied:
        ties = some(list(map(facts.name, tied)), 3)
        part.texts.append(f"On {facts.chosen_on} the choice ties with {ties}; the smaller values are taken.")
    if facts.pruned:
        broken = len(_diverged(facts))
        whole = len(facts.own) - len(facts.pruned) - broken
        text = f"{whole} of {len(facts.own)} {'trials' if facts.searched else 'cells'} ran whole"
        text += f"; {broken} diverged" if broken else ""
        part.texts.append(f"{text}; the others were stopped early and are not compared.")
    if facts.looks:
        part.texts.append(_looks(facts, tests))
    for found in facts.foresights:
        if not found.low:  # else it is in the answer
            part.texts.append(f"{f'{found.part}: e' if found.part else 'E'}arly rounds: {found.figures()}.")
    if len(tests):
        number = tests["verdict"].value_counts()
        summary = ", ".join(f"{number[v]} {v}" for v in ("better", "worse", "equal", "undecided") if v in number)
        width = ((tests["high"] - tests["low"]) / 2).dropna().median()
        points = " points" if percent(facts.metric) else ""
        sure = f" The median interval is ± {figure(width, facts.metric)}{points}." if width == width else ""
        if facts.kind == "sweep" and sure:
            sure += " Intervals compare values one by one; the fall is tested from the ends of the axis."
        part.texts.append(f"Compared with {facts.reference.title()}: {summary} ({facts.basis}).{sure}")
        for note, cells in list(tests.loc[tests["note"] != ""].groupby("note", sort=False).groups.items())[:6]:
            named = [facts.name(facts.by_id[str(key)]) for key in cells]
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            part.texts.append(f"{', '.join(named[:3])}{more}: {note}.")
    return part


def _looks(facts: Facts, tests: pd.DataFrame) -> str:
    """Which looks were declared, and at which of them comparisons were decided."""
    *most, last = map(str, facts.looks)
    declared = f"{', '.join(most)} and {last}" if most else last
    text = f"Comparisons are looked at after {declared} seeds, as was declared before the first result, with intervals "
    text += f"of {facts.sure} each, so that all verdicts hold together with 95 %. A cell whose verdict is there stops."
    if tests.empty:
        return f"{text} The first look is still to come."
    counts = tests.loc[tests["look"] > 0, "look"].value_counts().sort_index().to_dict()
    found = [f"{counted(n, 'comparison')} after {counted(look, 'seed')}" for look, n in counts.items()]
    text += f" Decided: {', '.join(found) or 'none so far'}"
    open_ = int((tests["look"] == 0).sum())
    so_far = "after the last look" if tests["seen"].max() == facts.looks[-1] else "so far"
    return f"{text}; {counted(open_, 'comparison')} undecided {so_far}." if open_ else f"{text}."


def main_chart(facts: Facts) -> dict[str, tuple[Spec, str]]:
    """History of a search, curve along the axis of a sweep, or rows of cells with their intervals."""
    if not facts.finished:
        return {}
    dashed = ", dashed lines are references" if facts.references else ""
    if facts.searched:
        early = ", small and hollow if it was stopped early" if facts.pruned else ""
        of = " of each search" if len(facts.searches) > 1 else ""
        caption = f"A point per trial when it ended{early}; the line is the best so far{of}{dashed}"
        drawn = {"history": (search.history(facts), f"{caption}; {facts.basis}.")}
        if facts.choice is not None and facts.choice.front:
            drawn["front"] = (
                search.scatter(facts),
                f"A point per trial, rings: {facts.choice.by}; {facts.basis}.",
            )
        return drawn
    axes = [a for a in facts.axes if facts.table.loc[[c.id for c in facts.own], a].notna().any()]
    numbers = [a for a in axes if numeric(facts.table[a])]
    several = sorted(axes, key=lambda a: -facts.table[a].nunique()) if len(axes) > 1 else []
    x = facts.spec.report.x if facts.spec.report.x in axes else next(iter([*numbers, *several]), None)
    if len({repr([cell.varied.get(a) for a in axes if a != x]) for cell in facts.own}) > SERIES:
        x = None
    spread = "bands are the standard deviation over seeds" if x in numbers else "bars are 95 % intervals over seeds"
    if x is None and len(facts.own) > ROWS:
        spread += f"; the {ROWS} cells that the objective puts first"
    charted = {"curve": facts.metric, **({"curve_validation": VAL} if x in numbers and facts.metric != VAL else {})}
    said = f"{spread}; the ring marks the choice by validation{dashed}; {facts.basis}."
    return {
        name: (curve(facts, x, metric), f"{upper(quantity(metric, unit=False))}; {said}")
        for name, metric in charted.items()
    }


def curve(facts: Facts, axis: str | None, metric: str) -> Spec:
    """A metric along an axis, a series for each combination of the other axes, or by cell; references are dashed."""
    x = charts.place(facts, axis, "x") if axis else charts.names("x", None)
    numbers = x["type"] == "quantitative"
    families = {cell.id: facts.reference.family(cell) for cell in facts.cells if cell.is_reference}
    own = [cell for cell in facts.finished if cell.candidate]
    references = [cell for cell in facts.finished if cell.id in families]
    if axis is None:
        own, references = (facts.best_first(cells)[:most] for cells, most in ((own, ROWS), (references, SERIES)))
    rows: list[dict[str, Any]] = []
    levels: dict[str, dict[str, Any]] = {}
    ranks: dict[str, int] = {}
    for cell in [*own, *references]:
        seeds, (mean, std) = facts.seeds(cell), facts.spread(cell, metric)
        half = std if numbers else t_half_width(std / math.sqrt(len(seeds)), len(seeds))
        others = {name: value for name, value in cell.varied.items() if axis and name in facts.axes and name != axis}
        name = families.get(cell.id, label(others) if others else "cells")
        place = facts.table.loc[cell.id, axis] if axis else facts.name(cell)
        row = {**facts.point(cell, metric, mean, half, seeds), "series": name, "best": cell.id in facts.chosen}
        known = place is not None and place == place
        if cell.id in families and (not known or list(families.values()).count(name) == 1):
            levels.setdefault(name, row)
        elif known:
            rows.append({**row, "x": place if numbers else shown(place)})
        ranks[name] = min(facts.ages[cell.id], ranks.get(name, len(facts.cells)))
    y, near, far = charts.measured(metric), list(levels.values()), dict[str, str]()
    if numbers:
        band = [row[end] for row in rows for end in ("low", "high")]
        y, near, far = charts.focused(y, band, near, "mean", metric)
        ranks = {name: rank for name, rank in ranks.items() if name in {row["series"] for row in [*rows, *near]}}
    else:
        x["sort"] = list(dict.fromkeys(row["x"] for row in sorted(rows, key=lambda row: -row["mean"])))
    return charts.lines(rows, x, y, charts.colours(ranks), near, height=340, far=far)


def claims(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Which of the study's claims do the results support?"""
    if not facts.claims:
        return None
    texts = [
        f"{counts(facts.claims)}. A claim holds where the 95 % interval of the difference, paired over "
        "seeds, lies inside of what is claimed, and fails where it lies outside."
    ]
    rows = [[claim.status, claim.says, claim.source or "–", claim.reason] for claim in facts.claims]
    return Part("Claims", texts, tables=[plain_table(["", "claim", "shown in", "values"], rows)])
