"""Tests of claims: the interval of a difference, paired over seeds, against a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from fpl_tune.analysis.intervals import interval
from fpl_tune.analysis.significance import seeds_needed
from fpl_tune.analysis.tables import Floats, present, read, seed_means

ClaimStatus = Literal["holds", "fails", "undecided"]


class Contrast(NamedTuple):
    """The cell that is claimed to be better, and the one that it is compared with."""

    cell: str
    versus: str


@dataclass(frozen=True)
class ClaimResult:
    """Verdict on a claim, with the figures of the contrast that decides it."""

    status: ClaimStatus
    contrast: Contrast
    difference: float
    """Mean over seeds; NaN without a seed that all cells have."""
    low: float
    high: float
    """Bounds of the 95 % interval; NaN below two seeds."""
    values: dict[str, float]
    """Means of both cells over the same seeds."""
    seeds: int
    needed: int | None
    """Seeds in all that decide an undecided claim with a probability of 80 % if the difference is as observed; None: no
    number up to `significance.MOST` does, or one seed says nothing about noise."""


def judge(
    frame: pd.DataFrame,
    contrasts: Sequence[Contrast],
    *,
    margin: float = 0.0,
    within: float | None = None,
    level: float = 0.95,
) -> ClaimResult:
    """Judges the claim that every contrast exceeds a margin, or lies within a range around 0.

    A contrast holds where its interval lies inside of what is claimed, fails where the interval lies outside, and is
    undecided otherwise. The claim holds where every contrast holds, which needs no correction (an intersection-union
    test), and fails where one contrast fails at the level divided by their number (Bonferroni).

    Args:
        frame: columns `cell`, `seed` and `value`, optionally `client`; see `tables.read`. Seeds are paired by number:
            the cells of a contrast may stand on different partitions.
        contrasts: at least one.
        margin: what the difference must exceed, in units of `value`.
        within: largest absolute value of the difference instead.
        level: of the intervals.

    Returns:
        The verdict with the figures of a contrast that fails, else of the one nearest to what is claimed to be false.

    Raises:
        ValueError: no contrast is given.
        KeyError: a cell is not in the frame.
    """
    if not contrasts:
        raise ValueError("A claim needs at least one contrast.")
    table = read(frame)
    by_cell = {cell: seed_means(table.of(cell)) for contrast in contrasts for cell in contrast}
    found = [_judge(contrast, by_cell, margin, within, level, len(contrasts)) for contrast in contrasts]
    order = ("fails", "undecided", "holds")
    nearest = lambda pair: (order.index(pair[1].status), -math.inf if math.isnan(pair[0]) else pair[0])  # noqa: E731
    return min(found, key=nearest)[1]


def _judge(
    contrast: Contrast, by_cell: dict[str, Floats], margin: float, within: float | None, level: float, contrasts: int
) -> tuple[float, ClaimResult]:
    """Judges one contrast; returns the distance of its interval to the border of the claimed range, and the result."""
    differences = by_cell[contrast.cell] - by_cell[contrast.versus]
    ran = present(differences)
    seen = differences[ran]
    held = interval(seen[:, None], level=level)
    wide = interval(seen[:, None], level=1 - (1 - level) / contrasts)
    if within is None:
        slack, outside = held.low - margin, wide.high <= margin
        inside = slack > 0
    else:
        slack = within - max(abs(held.low), abs(held.high))
        inside, outside = slack >= 0, wide.low > within or wide.high < -within
    status: ClaimStatus = "holds" if inside else "fails" if outside else "undecided"
    needed = None
    if status == "undecided" and len(seen) > 1:
        rope, shift = (within, 0.0) if within is not None else (0.0, margin)
        needed = seeds_needed(held.mean - shift, float(seen.std(ddof=1)), rope=rope)
        needed = None if needed is None else max(needed, len(seen) + 1)
    values = {cell: float(by_cell[cell][ran].mean()) if ran.any() else math.nan for cell in contrast}
    return slack, ClaimResult(status, contrast, held.mean, held.low, held.high, values, len(seen), needed)
