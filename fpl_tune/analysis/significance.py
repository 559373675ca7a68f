"""Differences of cells with the interval that decides them: noise of all cells where they agree, of the pair where not.

Values of cells c and seeds s follow value = cell + seed + residual. The residual variance, pooled over the cells that
are compared with one another, has many degrees of freedom, so that few seeds decide much. The interval of a difference
is the widest of three: by the pooled variance and by its mean with the variance of the pair's own differences, both
corrected for the number of comparisons (Bonferroni), and Student's by the pair's own differences, uncorrected. The last
two guard against variances that only seem to agree, the second where cells are many. Student's has a quarter of the
error for a cell with twice the variance of the others, since all comparisons of that cell share its noise. A cell that
clearly varies more is not pooled: its interval is Student's, corrected. No interval is narrower than the resolution of
the test set allows: n seeds that agree to the last image are known to one image in n test sets, not exactly. Where a
run is an outlier among its cell's seeds, as after a collapse, the interval covers that of the comparison without it,
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse, special
from scipy.sparse import csgraph

from fpl_tune.analysis.tables import Bools, Floats, present, seed_means

_FITS = 50  # sweeps over rows and columns; values without gaps need one
_APART = 5.0  # robust standard deviations of an outlier from its cell's median
_APART_POINTS = 0.05
_FAR, _FAR_POINTS = 8.0, 0.15  # of an outlier that is named
_CALM = 2.0  # variance of a cell relative to the others', above which its own interval has error / 4


class Estimates(NamedTuple):
    """Differences [..., rows] of pairs of cells."""

    difference: Floats
    half: Floats
    """Half width of the interval; NaN below two seeds, and where no value varies and the resolution is not known.

    It covers the difference with outliers, and without them where that leaves two seeds.
    """
    seeds: npt.NDArray[np.int_]
    """Number of paired seeds."""
    outlier: Bools
    """True if a seed of either cell is an outlier; see `outliers`."""


def estimate(
    values: Floats,
    pairs: Sequence[tuple[int, int]] | npt.NDArray[np.intp],
    *,
    resolution: float | Floats = 0.0,
    level: float = 0.95,
    tests: int | None = None,
) -> Estimates:
    """Estimates differences of cells, paired by seed, with simultaneous intervals.

    Each holds with and without outliers among the seeds of a cell, as long as two paired seeds are none.

    Args:
        values: [..., cells, seeds], NaN where missing. Leading axes are studies of their own.
        pairs: [rows, 2] cell and reference.
        resolution: [...] smallest step of a value; NaN: not known, which leaves no interval where nothing varies.
        level: of all intervals together.
        tests: comparisons to correct for; None: the rows with two seeds or more.
    """
    strange, rest = outliers(values), (pairs, resolution, level)
    estimates = _paired(values, strange, *rest, tests)
    if not estimates.outlier.any():
        return estimates
    other = _paired(np.where(strange, np.nan, values), np.zeros_like(strange), *rest, tests or len(pairs))
    wider = np.fmax(estimates.half, np.abs(other.difference - estimates.difference) + other.half)
    return estimates._replace(half=np.where(estimates.outlier, wider, estimates.half))


def _paired(
    values: Floats,
    strange: Bools,
    pairs: Sequence[tuple[int, int]] | npt.NDArray[np.intp],
    resolution: float | Floats,
    level: float,
    tests: int | None,
) -> Estimates:
    """Estimates differences; the noise of others is that without outliers, `strange` [..., cells, seeds]."""
    first, second = np.asarray(pairs, np.intp).reshape(-1, 2).T
    odd = _either(strange, first, second)
    gaps = values[..., first, :] - values[..., second, :]
    seeds = present(gaps).sum(-1)
    difference = seed_means(gaps)
    own = _squares(gaps - difference[..., None]) / np.maximum(seeds - 1, 1)
    cells = values.shape[-2]
    links = sparse.coo_matrix((np.ones(len(first)), (first, second)), shape=(cells, cells))
    group = csgraph.connected_components(links, directed=False)[1]
    pooled, freedom, calm = np.zeros_like(own), np.zeros_like(own), np.zeros(own.shape, bool)
    for number in np.unique(group[first]):
        rows = np.flatnonzero(group[first] == number)
        free = np.maximum(seeds[..., rows] - 1, 0)
        members = np.flatnonzero(group == number)
        one, other = (np.searchsorted(members, end[rows]) for end in (first, second))
        ratio, limit = _relative_variance(values[..., members, :])
        steady, calm[..., rows] = ratio <= limit, np.maximum(ratio[..., one], ratio[..., other]) <= _CALM
        fitted = np.where(steady[..., None] & ~strange[..., members, :], values[..., members, :], np.nan)
        variance, pool = two_way(fitted)
        usual = steady[..., one] & steady[..., other] & (pool > 0)[..., None]  # outliers may leave nothing to pool
        weight = free * (usual & ~odd[..., rows])
        mean = (weight * own[..., rows]).sum(-1) / np.maximum(weight.sum(-1), 1)  # a reference that varies more shows
        base = np.maximum(2 * variance, mean)[..., None]
        pooled[..., rows] = np.where(usual, base, own[..., rows])
        freedom[..., rows] = np.where(usual, pool[..., None], free)
    n = np.maximum(seeds, 1)
    least = np.asarray(resolution, float)[..., None] * math.sqrt(2) / n  # of a mean's error
    counted = np.maximum((seeds > 1).sum(-1, keepdims=True), 1) if tests is None else max(tests, 1)
    error = 1 - level
    own_freedom = np.maximum(seeds - 1, 1)
    three = [
        special.stdtrit(np.maximum(free, 1), 1 - share / 2) * np.fmax(np.sqrt(variance / n), least)
        for variance, free, share in (
            (pooled, freedom, error / counted),
            ((pooled + own) / 2, np.minimum(2 * own_freedom, freedom), error / counted),
            (own, own_freedom, np.where(calm, error, error / np.minimum(counted, 4))),
        )
    ]
    unknown = np.isnan(least) & (np.maximum(pooled, own) <= 0)
    half = np.where((seeds > 1) & np.logical_not(unknown), np.maximum.reduce(three), np.nan)
    return Estimates(difference, half, seeds.astype(int), odd)


def striking(values: Floats) -> Bools:
    """Finds the outliers [..., cells, seeds] that a reader is told of, which ordinary noise hardly makes.

    They lie 15 points or eight robust standard deviations apart, and twice as far from the cell's other seeds as these
    from each other.
    """
    others = np.where(np.eye(values.shape[-1], dtype=bool), np.nan, values[..., None, :])
    reach = np.fmax.reduce(others, -1, initial=-np.inf) - np.fmin.reduce(others, -1, initial=np.inf)
    gap = np.abs(values - _median(others, -1)[..., 0])
    far = (gap >= _FAR_POINTS) | outliers(values, _FAR)
    return outliers(values) & far & (gap > 2 * reach)


def outliers(values: Floats, deviations: float = _APART) -> Bools:
    """Finds outliers [..., cells, seeds] among the seeds of each cell, as after a collapse.

    A run is an outlier if it is five points and some robust standard deviations of all runs from its cell's median,
    after effects of the seeds. A majority never is: such a cell is unstable. Of two seeds none is.
    """
    exists = present(values)
    rest = values - _median(values, -1)
    if values.shape[-2] > 2:
        rest = rest - _median(rest, -2)
        rest = rest - _median(rest, -1)
    size = np.where(exists, np.abs(rest), np.nan)
    flat = size.reshape(*size.shape[:-2], -1)
    spread = 1.4826 * _median(np.where(flat > 0, flat, np.nan), -1)[..., None]  # the median itself is no deviation
    enough = exists.sum(-1, keepdims=True) > 2
    apart = np.nan_to_num(size) > np.maximum(_APART_POINTS, np.nan_to_num(deviations * spread))
    return apart & enough & (2 * apart.sum(-1, keepdims=True) <= exists.sum(-1, keepdims=True))


def resolution_of(values: Floats) -> Floats:
    """Smallest step [...] of the mean over clients of values [..., cells, seeds, clients]; NaN where nothing varies.

    The smallest difference of two values of a client, such as 1/20 with 20 test images, divided by the clients.
    """
    clients = values.shape[-1]
    flat = np.sort(values.reshape(*values.shape[:-3], -1, clients), axis=-2)
    scale = np.nanmax(np.abs(flat), axis=(-2, -1), initial=0.0, keepdims=True)
    steps = np.diff(flat, axis=-2)
    steps = np.where(steps > 1e-6 * scale, steps, np.inf).min(-2, initial=np.inf)  # below lies rounding
    varies = np.isfinite(steps)
    mean = np.where(varies, steps, 0.0).sum(-1) / np.maximum(varies.sum(-1), 1)
    return np.where(varies.any(-1), mean / clients, np.nan)


def _relative_variance(values: Floats) -> tuple[Floats, Floats]:
    """Variance [..., cells] of each cell, relative to that of the others, and the limit above which it clearly differs.

    A cell's is the median variance of its differences from each other cell, and the others' is the median over cells,
    which an unstable one does not move. The limit is that of an F test at 1 %.
    """
    typical, freedom, cells = [], [], values.shape[-2]
    for cell in range(cells):
        gaps = np.delete(values, cell, -2) - values[..., cell : cell + 1, :]
        free = np.maximum(present(gaps).sum(-1) - 1, 0)
        variance = _squares(gaps - seed_means(gaps)[..., None]) / np.maximum(free, 1)
        typical.append(_median(np.where(free > 0, variance, np.nan), -1)[..., 0])
        freedom.append(free.max(-1, initial=0))
    variance, free = np.stack(typical, -1), np.stack(freedom, -1)
    several = np.maximum(free.sum(-1, keepdims=True) * (1 - 1 / cells), 1)
    middle = _median(np.where(free > 0, variance, np.nan), -1)
    return variance / np.maximum(middle, 1e-15), special.fdtri(np.maximum(free, 1), several, 0.99)


def two_way(values: Floats) -> tuple[Floats, Floats]:
    """Residual variance [...] of values [..., cells, seeds] after effects of cells and seeds, and its freedom."""
    exists = present(values)
    rest = values
    for _ in range(1 if exists.all() else _FITS):
        rest = rest - seed_means(rest)[..., None]
        rest = rest - np.swapaxes(seed_means(np.swapaxes(rest, -1, -2))[..., None], -1, -2)
    effects = exists.any(-1).sum(-1) + exists.any(-2).sum(-1) - 1
    freedom = np.maximum(exists.sum((-1, -2)) - effects, 0)
    return _squares(rest).sum(-1) / np.maximum(freedom, 1), freedom.astype(float)


def _squares(values: Floats) -> Floats:
    return np.nansum(values**2, axis=-1)


def _either(cells: Bools, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]) -> Bools:
    """[..., rows] whether any seed of either cell of a pair is marked in `cells` [..., cells, seeds]."""
    marked: Bools = np.any(cells, axis=-1)
    return marked[..., first] | marked[..., second]


def _median(values: Floats, axis: int) -> Floats:
    """Median of known values along an axis, which stays; 0 where there is none."""
    exists = present(values)
    ordered = np.sort(values, axis)  # missing values last
    count = exists.sum(axis, keepdims=True)
    if not values.shape[axis]:
        return np.zeros(count.shape)
    middle = [np.take_along_axis(ordered, np.maximum(at, 0), axis) for at in ((count - 1) // 2, count // 2)]
    return np.where(count > 0, (middle[0] + middle[1]) / 2, 0.0)
