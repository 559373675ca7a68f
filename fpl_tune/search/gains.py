"""Gains of tuning: the best trial of every search by validation, compared with the published points."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpl_tune.config import Study
from fpl_tune.search.search import Search
from fpl_tune.study import results
from fpl_tune.study.cells import Cell, label
from fpl_tune.study.selection import choose, rows
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch


@dataclass(frozen=True)
class Gain:
    """The search in one cell of the axes."""

    part: str
    """Label of the cell of the axes, such as the method's name."""
    best: Cell
    """The finished trial that the objective chooses; see `selection.choose`."""
    published: Cell | None
    """The finished published point that the objective chooses; None where the search has none."""
    gain: float
    """Mean test metric of the best trial less that of the published point; NaN without one."""


def searches(spec: Study, store: Store) -> list[CellSearch]:
    """The searches of a stored study, with the spaces of its last run. The sampler's package is not required."""
    files = store.effective().spaces if store.exists else {}
    search = Search.plan(replace(spec, search=replace(spec.search, sampler="random")), files=files)
    assert search is not None
    return search.parts


def gains(store: Store, rule: str = "final", metric: str = results.TEST) -> list[Gain]:
    """Computes the gain of each search of a study, in the order of the axes.

    Args:
        store: the study.
        rule: the reporting rule.
        metric: the reported metric, which chooses nothing.

    Returns:
        One entry for every cell of the axes with a finished trial; none for a study without a search, or with several
        objectives.
    """
    spec = store.spec()
    if spec.search.sampler is None or len(spec.search.objectives) > 1:
        return []
    table, cells = rows(store, spec, metric), store.cells()
    test = {row["cell"]: row["mean"] for row in store.summaries(rule, metric)}
    found = []
    for part in searches(spec, store):
        mine = [cell for cell in cells if part.holds(cell)]
        choice = choose(table, mine, spec, rule)
        if choice is None:
            continue
        known = choose(table, [cell for cell in mine if cell.published], spec, rule)
        gain = float(test[choice.cell.id] - test[known.cell.id]) if known else math.nan
        found.append(Gain(label(part.varied), choice.cell, known.cell if known else None, gain))
    return found
