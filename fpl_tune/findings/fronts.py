"""The fronts of searches with several objectives: one for each method and setting, and how much they dominate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fpl_tune.analysis import t_half_width
from fpl_tune.analysis.fronts import share, share_interval
from fpl_tune.core.formatting import percent
from fpl_tune.core.metrics import comparable, metric
from fpl_tune.findings.choice import choose, sign
from fpl_tune.findings.crossed import row_title, setting_title, settings_of
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.searches import Searched
from fpl_tune.study.cells import Cell, axes_of


@dataclass(frozen=True)
class Front:
    """The front of the search of a method in a setting."""

    method: str
    setting: str
    """Title of the setting; empty in a study with one."""
    search: Searched
    points: Sequence[Cell]
    """The compared points that no other point of this search equals or beats, sorted by the first objective."""
    fell: Sequence[Cell]
    """Points that were on the front of the trials, but are not on that of the fresh seeds."""
    share: float
    """The volume that the points dominate, as a share of the box between `worst` and `best`."""
    low: float
    high: float
    """95 % interval of the share, by bootstrap over seeds; NaN with one seed."""
    worst: tuple[float, ...]
    best: tuple[float, ...]
    """Worst and best value of each objective, among all completed trials and confirmed points of the setting."""


@lru_cache(maxsize=1)  # one study is written at a time, and asks several times
def fronts(findings: Findings) -> list[Front]:
    """The fronts of the searches with a completed trial, in the study's order; none for a study with one objective."""
    if findings.choice is None or not findings.choice.front:
        return []
    axes = axes_of(findings.spec.axes)
    where = settings_of(axes)
    what = [axis for axis in axes if axis not in where]
    by_setting: dict[str, list[tuple[str, Searched]]] = {}
    for search in findings.searches:
        if search.points:
            cell = search.points[0]
            method = row_title(cell.varied, what, str(cell.node["method"]["name"]))
            setting = setting_title({axis: cell.varied[axis] for axis in where})
            by_setting.setdefault(setting, []).append((method, search))
    made = dict[str, Front]()
    for setting, searches in by_setting.items():
        cells = {cell.id: cell for _, each in searches for cell in (*each.trials, *each.points, *each.starts)}
        ends = _ends(findings, [cell for cell in cells.values() if findings.compared(cell)])
        for method, search in searches:
            made[search.label] = _front(findings, method, setting, search, *ends)
    return [made[search.label] for search in findings.searches if search.label in made]


def _front(
    findings: Findings, method: str, setting: str, search: Searched, worst: Sequence[float], best: Sequence[float]
) -> Front:
    """The front of a search; `worst`, `best`: values of the objectives, of which higher ones are better."""
    compared = [cell for cell in search.points if findings.compared(cell)]
    choice = choose(map(findings.row, compared), findings.rule, findings.table.study)
    points = choice.cells if choice is not None else ()
    signs = [sign(name) for name in findings.objectives]
    by_seed = [[findings.by_seed(cell, name) for name in findings.objectives] for cell in points]
    seeds = sorted(set[int].intersection(*({*own} for each in by_seed for own in each))) if by_seed else []
    values = np.array([
        [[s * own[seed] for s, own in zip(signs, each, strict=True)] for seed in seeds] for each in by_seed
    ]).reshape(len(points), len(seeds), len(signs))  # fmt: skip
    low, high = share_interval(values, worst, best)
    left = {cell.id for cell in points} | findings.outside
    fell = [cell for cell in compared if cell.id not in left] if findings.confirmed else []
    shared = share(values.mean(1).tolist(), worst, best) if seeds else math.nan
    back = [tuple(s * v for s, v in zip(signs, ends, strict=True)) for ends in (worst, best)]
    return Front(method, setting, search, points, fell, shared, low, high, *back)


def _ends(findings: Findings, cells: Sequence[Cell]) -> tuple[list[float], list[float]]:
    """The worst and the best value of each objective, negated where lower ones are better."""
    values = [[sign(name) * findings.spread(cell, name)[0] for name in findings.objectives] for cell in cells]
    columns = [*zip(*(own for own in values if not any(map(math.isnan, own))), strict=True)]
    columns = columns or [(math.nan,)] * len(findings.objectives)
    return [min(own) for own in columns], [max(own) for own in columns]


def interval(findings: Findings, cell: Cell, name: str) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval over seeds; NaN for what does not vary by chance, and with one seed.

    Intervals of accuracies end at 0 and 1.
    """
    (mean, std), seeds = findings.spread(cell, name), findings.seeds(cell)
    half = t_half_width(std / math.sqrt(len(seeds)), len(seeds)) if metric(name).sampled and seeds else math.nan
    low, high = mean - half, mean + half
    return (
        (mean, max(low, min(mean, 0.0)), min(high, max(mean, 1.0)))
        if percent(name) and half == half
        else (mean, low, high)
    )


def reaching(findings: Findings, points: Sequence[Cell], value: float, cost: str) -> float:
    """The lowest cost of points whose first objective is at least a value, in the cost's direction; NaN if none is."""
    better, cheaper = sign(findings.objectives[0]), -sign(cost)
    costs = [cheaper * findings.spread(cell, cost)[0] for cell in points
             if comparable(better * findings.objective(cell)) >= comparable(better * value)]  # fmt: skip
    return cheaper * min(costs) if costs else math.nan
