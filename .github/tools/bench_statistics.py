"""Simulated studies whose truth is known: how often the statistics of `fpl_tune.analysis` are right.

A simulated study has a reference and cells, seeds that all cells share, and clients whose values are correlated: a
seed moves all clients of a cell alike. Values are accuracies on a hundred test images, so that they are not normal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fpl_tune import analysis
from fpl_tune.analysis import Table
from fpl_tune.analysis.compare import paired
from fpl_tune.analysis.significance import equivalence
from fpl_tune.analysis.tables import seed_means
from fpl_tune.core.formatting import counted

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]

CELLS, CLIENTS, IMAGES = 4, 10, 100
SEED, CLIENT, RESIDUAL = 0.01, 0.06, 0.03
"""Standard deviations: of seeds for all cells, of clients, of a client of one cell."""
CORRELATED = {"weakly": 0.012, "strongly": 0.04}
"""Standard deviation of a seed of one cell, which moves all of its clients alike: correlation of clients."""
ROPE = 0.01
EFFECTS = (0.02, 0.05)
"""True differences whose power is predicted."""
SEEDS = (3, 5, 10)


def bench_statistics(studies: int = 2000, progress: Callable[[float, float, str], object] | None = None) -> list[Row]:
    """Simulates studies and reports what the statistics claim beside what is true.

    Args:
        studies: simulated studies per number of seeds.
        progress: receives (done, total, description).

    Returns:
        Rows `seeds`, `clients correlated`, `what`, `value`, `wanted`.
    """
    rows: list[Row] = []
    steps = [
        *((counted(n, "seed"), lambda n=n, how=how: comparisons(n, studies, how)) for n in SEEDS for how in CORRELATED),
        *((f"choice, {counted(n, 'seed')}", lambda n=n: choices(n, max(studies // 4, 50))) for n in SEEDS),
        ("Sobol indices", lambda: importance(max(studies // 100, 4))),
    ]
    for done, (what, step) in enumerate(steps):
        if progress is not None:
            progress(done, len(steps), what)
        rows += step()
    return rows


def draw(truth: Floats, seeds: int, rng: np.random.Generator, cell_seed: float = CORRELATED["weakly"]) -> Floats:
    """Draws a study [cells, seeds, clients] whose cells have the mean `truth` [cells]."""
    shape = (len(truth), seeds, CLIENTS)
    values = truth[:, None, None] + rng.normal(0, SEED, (1, seeds, 1)) + rng.normal(0, cell_seed, (*shape[:2], 1))
    values = values + rng.normal(0, CLIENT, (1, seeds, CLIENTS)) + rng.normal(0, RESIDUAL, shape)
    return rng.binomial(IMAGES, np.clip(values, 0, 1)) / IMAGES


def _table(values: Floats) -> Table:
    cells, seeds, _ = values.shape
    names = tuple(str(i) for i in range(cells))
    return Table(values, names, tuple(range(seeds)), np.full((cells, seeds), None, object))


def comparisons(seeds: int, studies: int, how: str = "weakly", seed: int = 0) -> list[Row]:
    """False claims, coverage and power of comparisons with `seeds` seeds, clients correlated `weakly` or `strongly`."""
    noise = CORRELATED[how]
    rng = np.random.default_rng([seed, seeds])
    nulls = np.full(1 + CELLS, 0.7)
    edge = np.array([0.7, 0.7 + ROPE])
    false_claim, false_equal = 0, 0
    covered = {"cell, t": 0, "difference, t": 0}
    for _ in range(studies):
        table = _table(draw(nulls, seeds, rng, noise))
        gaps = [paired(table, str(k), "0")[0] for k in range(1, 1 + CELLS)]
        means = [seed_means(gap) for gap in gaps]
        false_claim += bool((analysis.holm([analysis.paired_t(d) for d in means]) <= 0.05).any())
        other = _table(draw(edge, seeds, rng, noise))
        false_equal += equivalence(seed_means(paired(other, "1", "0")[0]), ROPE) <= 0.05
        cell = analysis.interval(table.of("0"))
        gap = analysis.interval(gaps[0])
        covered["cell, t"] += cell.low <= 0.7 <= cell.high
        covered["difference, t"] += gap.low <= 0 <= gap.high
    rows = [
        _row(seeds, f"false better or worse, {CELLS} comparisons (Holm)", false_claim / studies, "<= 0.05"),
        _row(seeds, "false equal at the border of the region", false_equal / studies, "<= 0.05"),
        _row(seeds, "coverage of 95 % intervals: cell, t", covered["cell, t"] / studies, "0.93-0.97"),
        _row(seeds, "coverage of 95 % intervals: difference, t", covered["difference, t"] / studies, "0.93-0.97"),
    ]  # fmt: skip
    for effect in EFFECTS:
        rows += _power(seeds, effect, max(studies // 2, 50), rng, noise)
    return [{**row, "clients correlated": how} for row in rows]


def _power(seeds: int, effect: float, studies: int, rng: np.random.Generator, noise: float) -> list[Row]:
    """Power predicted by pilot studies of `seeds` seeds for `seeds + 3`, and the power of studies of that size."""
    truth = np.array([0.7, 0.7 + effect, 0.7, 0.7, 0.7])
    predicted, found = [], 0
    for _ in range(studies):
        pilot = _table(draw(truth, seeds, rng, noise))
        sd, _ = analysis.pooled_sd(seed_means(paired(pilot, str(k), "0")[0]) for k in range(1, len(truth)))
        predicted.append(analysis.decision_power(effect, sd, seeds + 3, rope=0.0))
        later = _table(draw(truth[:2], seeds + 3, rng, noise))
        found += analysis.paired_t(seed_means(paired(later, "1", "0")[0])) <= 0.05
    actual = found / studies
    what = f"{100 * effect:g} points with {counted(seeds + 3, 'seed')}"
    return [
        _row(seeds, f"power, predicted: {what}", float(np.mean(predicted)), f"{actual:.3f} ± 0.10"),
        _row(seeds, f"power, actual: {what}", actual, ""),
    ]


def choices(seeds: int, studies: int, seed: int = 0) -> list[Row]:
    """Regret of the selection rules, and what the winner's value is worth.

    Of 20 cells a third is unstable over seeds, as learning rates near divergence are.
    """
    rng = np.random.default_rng([seed, seeds, 1])
    cells, regret, claimed, corrected, true_of = 20, dict.fromkeys(analysis.RULES, 0.0), 0.0, 0.0, 0.0
    for _ in range(studies):
        truth = rng.normal(0.7, 0.01, cells)
        noise = np.where(rng.random(cells) < 0.35, 0.05, 0.008)
        shared = rng.normal(0, 1, (cells, seeds)) * noise[:, None] + rng.normal(0, 0.01, seeds)
        val = truth[:, None] + shared + rng.normal(0, 0.005, (cells, seeds))
        test = truth[:, None] + shared + rng.normal(0, 0.005, (cells, seeds))
        frames = [long(v) for v in (val, test)]
        for rule in analysis.RULES:
            regret[rule] += float(truth.max() - truth[int(analysis.select(frames[0], rule))])
        found = analysis.overtuning(*frames)
        claimed += found.test
        corrected += found.corrected
        true_of += float(truth[int(found.winner)])
    return [
        *(_row(seeds, f"regret of selection by {rule} (points)", 100 * regret[rule] / studies,
               "half of mean" if rule == "lower_bound" else "") for rule in analysis.RULES),
        _row(seeds, "winner's test value minus its truth (points)", 100 * (claimed - true_of) / studies, ""),
        _row(seeds, "corrected value minus its truth (points)", 100 * (corrected - true_of) / studies, "near 0"),
    ]  # fmt: skip


def long(values: Floats) -> pd.DataFrame:
    """A frame of values [cells, seeds]."""
    cells, seeds = values.shape
    return pd.DataFrame(
        {
            "cell": np.repeat(np.arange(cells).astype(str), seeds),
            "seed": np.tile(np.arange(seeds), cells),
            "value": values.ravel(),
        }
    )


def importance(studies: int, seed: int = 0) -> list[Row]:
    """Estimated shares beside the Sobol indices of a function whose indices are known.

    y = a + 2 b + c d over uniform a, b, c, d in [-1, 1]: variances 1/3, 4/3, 1/9; c and d act together only.
    """
    rng = np.random.default_rng([seed, 2])
    total = 1 / 3 + 4 / 3 + 1 / 9
    known = {"a": 1 / 3 / total, "b": 4 / 3 / total, "c": 0.0}
    sums = dict.fromkeys([(kind, name) for kind in ("drawn", "grid") for name in known], 0.0)
    for _ in range(studies):
        grid = np.stack(np.meshgrid(*[_levels(6)] * 4), -1).reshape(-1, 4)
        for kind, points in (("drawn", rng.uniform(-1, 1, (600, 4))), ("grid", grid)):
            noise = 0.2 if kind == "grid" else 0.0
            a, b, c, d = points.T
            frame = pd.DataFrame(points, columns=pd.Index(list("abcd")))
            frame["value"] = a + 2 * b + c * d + rng.normal(0, noise, len(points))
            single = analysis.one_way(frame, list("abcd"), noise=noise**2).set_index("field")["share"]
            for name in known:
                sums[kind, name] += float(single[name]) / studies
    return [
        _row(0, f"importance of {name}, {kind}", value, f"{known[name]:.3f} ± 0.03")
        for (kind, name), value in sums.items()
    ]


def _levels(n: int) -> Floats:
    """n equally spaced values with the variance of the uniform distribution on [-1, 1]."""
    levels = np.linspace(-1, 1, n)
    return levels * np.sqrt(1 / 3 / (levels**2).mean())


def _row(seeds: int, what: str, value: float, wanted: str) -> Row:
    return {
        "seeds": seeds or "",
        "clients correlated": "",
        "what": what,
        "value": round(float(value), 4),
        "wanted": wanted,
    }
