"""Verdicts on claims: the intervals of differences, paired over seeds, against a margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fpl_tune.analysis.compare import indices_of
from fpl_tune.analysis.significance import estimate, resolution_of, striking
from fpl_tune.analysis.tables import present, read, seed_means

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
    """Bounds of the interval that decides; NaN below two seeds."""
    values: dict[str, float]
    """Means of both cells over the same seeds."""
    seeds: int
    outlier: bool
    """True if a seed of either cell is a striking outlier; the interval also holds without it."""


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
    undecided otherwise. The claim holds where every contrast holds and fails where one fails. Intervals are those of
    `compare` for the same pairs, corrected for their number.

    Args:
        frame: columns `cell`, `seed` and `value`, optionally `client`; see `tables.read`. Seeds are paired by number:
            the cells of a contrast may stand on different partitions.
        contrasts: at least one.
        margin: what the difference must exceed, in units of `value`.
        within: largest absolute value of the difference instead.
        level: of all intervals together.

    Returns:
        The verdict with the figures of a contrast that fails, else of the one nearest to what is claimed to be false.

    Raises:
        ValueError: no contrast is given.
        KeyError: a cell is not in the frame.
    """
    if not contrasts:
        raise ValueError("A claim needs at least one contrast.")
    table = read(frame)
    by_seed, indices = seed_means(table.values), indices_of(table, contrasts)
    estimates = estimate(by_seed, indices, resolution=resolution_of(table.values), level=level)
    low, high = estimates.difference - estimates.half, estimates.difference + estimates.half
    if within is None:
        slack, outside = low - margin, high <= margin
        inside = slack > 0
    else:
        slack = within - np.maximum(np.abs(low), np.abs(high))
        inside, outside = slack >= 0, (low > within) | (high < -within)
    status = np.select([inside, outside], [2, 0], 1)
    nearest = int(np.lexsort((np.nan_to_num(slack, nan=-np.inf), status))[0])
    both = present(by_seed[indices[nearest]]).all(axis=0)
    means = [float(by_seed[at][both].mean()) if both.any() else math.nan for at in indices[nearest]]
    return ClaimResult(
        ("fails", "undecided", "holds")[status[nearest]], contrasts[nearest], float(estimates.difference[nearest]),
        float(low[nearest]), float(high[nearest]), dict(zip(contrasts[nearest], means, strict=True)),
        int(estimates.seeds[nearest]), bool(striking(by_seed)[indices[nearest]].any()),
    )  # fmt: skip
