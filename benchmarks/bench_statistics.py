"""Simulated studies whose truth is known: how often the statistics of `fpl_tune.analysis` are right.

A simulated study has a reference and cells, seeds that all cells share, and clients whose values are correlated: a
seed moves all clients of a cell alike. Values are accuracies on a number of test images. Worlds differ in what is
unkind to a test: a ceiling, ties, missing seeds, collapsed runs, unstable cells, a chosen reference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from fpl_tune import analysis
from fpl_tune.analysis.compare import verdicts
from fpl_tune.analysis.significance import estimate, resolution_of, two_way
from fpl_tune.analysis.tables import Bools, Floats, seed_means
from fpl_tune.config import StudySpec

Row = dict[str, Any]

ROPE = 0.01
SEEDS = (3, 5, 10)


@dataclass(frozen=True)
class World:
    """Noise of a study; standard deviations are shares."""

    cells: int = 4
    """Beside the reference."""
    level: float = 0.7
    cell: float = 0.012
    """Of a seed of one cell, which moves all of its clients alike: their correlation."""
    unstable: float = 0.0
    """Share of cells whose seeds vary by 0.05 instead."""
    reference: float | None = None
    """Of the reference instead of `cell`."""
    last: float | None = None
    """Of the last cell instead of `cell`."""
    graded: float = 1.0
    """Cells vary by `cell` up to as many times as much, evenly on a logarithmic scale."""
    collapse: float = 0.0
    """Share of runs that lose 15 points."""
    missing: float = 0.0
    """Share of runs without a result."""
    tails: int = 0
    """Degrees of freedom of Student's t, of which noise is drawn; 0: it is normal."""
    clients: int = 10
    images: int = 100
    chosen: bool = False
    """The cell with the highest validation values is the reference."""


WORLDS = {
    "normal": World(),
    "strongly correlated clients": World(cell=0.04),
    "ceiling": World(level=0.985),
    "ties, 20 images": World(clients=1, images=20),
    "ties, 200 images": World(clients=1, images=200),
    "a tenth of the seeds missing": World(missing=0.1),
    "ceiling, a tenth missing": World(level=0.985, missing=0.1),
    "collapse, one run in seven": World(collapse=1 / 7),
    "unstable cells": World(cell=0.008, unstable=0.35),
    "20 cells": World(cells=19),
    "20 cells, a third unstable": World(cells=19, cell=0.008, unstable=0.35),
    "20 cells, graded noise": World(cells=19, cell=0.008, graded=6),
    "reference chosen": World(chosen=True),
    "heavy tails": World(tails=3),
    "quiet": World(cell=0.006, images=1000),
    "unstable reference of quiet cells": World(cell=0.004, images=1000, reference=0.05),
    "one unstable cell among 4": World(cells=3, cell=0.008, last=0.05),
    "one unstable cell among 6": World(cells=5, cell=0.008, last=0.05),
}


def bench_statistics(studies: int = 2000, progress: Callable[[float, float, str], object] | None = None) -> list[Row]:
    """Simulates studies and reports what the statistics claim beside what is true.

    Args:
        studies: simulated studies per world and number of seeds.
        progress: receives (done, total, description).

    Returns:
        Rows `world`, `what`, `wanted` and a column for each number of seeds; of seeds that are added until the verdicts
        are there, the share of the studies, and the mean number of seeds of the cell that may differ.
    """
    steps: list[tuple[str, Callable[[], list[Row]]]] = [
        *((name, lambda name=name: errors(name, studies)) for name in WORLDS),
        ("power", lambda: power(studies)),
        *((f"until decided, {name}", lambda name=name: until_decided(name, max(studies // 2, 50))) for name in LOOKED),
        ("sweeps", lambda: sweeps(max(studies // 4, 50))),
        ("letters", lambda: groups(studies)),
        ("choice", lambda: choices(max(studies // 8, 50))),
        ("importance", lambda: importances(max(studies // 4, 50))),
    ]
    rows: list[Row] = []
    for done, (what, step) in enumerate(steps):
        if progress is not None:
            progress(done, len(steps), what)
        rows += step()
    return rows


def draw(world: World, truth: Floats, seeds: int, studies: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws studies [studies, cells, seeds] of cells with the means level + `truth` [cells], and their resolution."""
    cells = len(truth)
    spread = world.cell * world.graded ** rng.permuted(np.tile(np.linspace(0, 1, cells), (studies, 1)), axis=1)
    spread = np.where(rng.random((studies, cells, 1)) < world.unstable, 0.05, spread[..., None])
    if world.reference is not None:
        spread[:, 0] = world.reference
    if world.last is not None:
        spread[:, -1] = world.last
    values = world.level + truth[:, None] + rng.normal(0, 0.01, (studies, 1, seeds))
    shape = studies, cells, seeds
    noise = rng.standard_t(world.tails, shape) / math.sqrt(3) if world.tails else rng.normal(0, 1, shape)
    values = values + spread * noise
    values = values - 0.15 * (rng.random(values.shape) < world.collapse)
    clients = rng.normal(0, 0.06, (studies, 1, seeds, world.clients)) if world.clients > 1 else 0.0
    clients = clients + rng.normal(0, 0.03, (*values.shape, world.clients))
    counted = rng.binomial(world.images, np.clip(values[..., None] + clients, 0, 1)) / world.images
    counted[rng.random(values.shape) < world.missing] = np.nan
    return seed_means(counted), resolution_of(counted)


def _judged(
    world: World, values: Floats, resolution: Floats, rng: np.random.Generator
) -> tuple[npt.NDArray[np.str_], Floats, Bools]:
    """Verdicts on the cells, the half widths, and which rows lie apart [studies, cells]."""
    cells = values.shape[1]
    if world.chosen:  # validation shares a run's noise with the test set
        validation = np.nanmean(values + rng.normal(0, 0.005, values.shape), axis=2)
        best = np.nanargmax(validation, axis=1)
        order = np.argsort(np.arange(cells) != best[:, None], axis=1, kind="stable")
        values = np.take_along_axis(values, order[..., None], axis=1)
    pairs = [(k, 0) for k in range(1, cells)]
    tests = cells * (cells - 1) // 2 if world.chosen else None
    found = estimate(values, pairs, resolution=resolution, tests=tests)
    said = verdicts(found.difference - found.half, found.difference + found.half, ROPE)
    return said, found.half, found.outlier


def errors(name: str, studies: int, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """False verdicts in studies whose cells are equal, false equality of cells that differ by the region, coverage."""
    world = WORLDS[name]
    rows: dict[str, list[float]] = {}
    for n in seeds:
        rng = np.random.default_rng([n, list(WORLDS).index(name)])
        values, resolution = draw(world, np.zeros(1 + world.cells), n, studies, rng)
        said, half, aside = _judged(world, values, resolution, rng)
        rows.setdefault("false better or worse, any row", []).append(float(np.isin(said, WRONG).any(1).mean()))
        if not world.chosen:
            before = _holm_rejects(values)
            rows.setdefault("  the same by paired t and Holm", []).append(float(before.any(1).mean()))
        away = np.zeros(1 + world.cells)
        away[1:] = ROPE if world.level < 0.9 else -ROPE
        other, resolution = draw(world, away, n, studies, rng)
        if not world.chosen:
            equal = _judged(world, other, resolution, rng)[0] == "equal"
            rows.setdefault("false equal at the border, a row", []).append(float(equal.mean()))
            gap = np.abs(seed_means(values[:, 1:] - values[:, :1]))
            rows.setdefault("intervals that cover, all rows", []).append(
                float(((gap <= half) | aside | np.isnan(half)).all(1).mean())
            )
        if world.collapse:
            rows.setdefault("rows that are warned of, of all rows", []).append(float(aside.mean()))
    wanted = {"false better or worse, any row": "<= 0.05", "false equal at the border, a row": "<= 0.05",
              "intervals that cover, all rows": ">= 0.95"}  # fmt: skip
    return [_row(name, what, found, wanted.get(what, ""), seeds) for what, found in rows.items()]


WRONG = ["better", "worse"]


def _holm_rejects(values: Floats) -> Bools:
    """Which differences the paired t test with Holm's correction tells from 0, as a reference [studies, cells]."""
    gaps = values[:, 1:] - values[:, :1]
    n = np.maximum((~np.isnan(gaps)).sum(-1), 1)
    mean = seed_means(gaps)
    error = np.sqrt(np.nansum((gaps - mean[..., None]) ** 2, -1) / np.maximum(n - 1, 1) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * special.stdtr(np.maximum(n - 1, 1), -np.abs(mean) / error)
    p = np.where((n < 2) | np.isnan(p), 1.0, p)
    ordered = np.sort(p, axis=1) * np.arange(p.shape[1], 0, -1)
    smallest = ordered[:, :1] <= 0.05  # the first step decides whether there is any false verdict
    return smallest & (p == p.min(1, keepdims=True))


def power(studies: int, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """Share of studies in which the one cell that is better is found: by 3 or 5 points, or in units of the noise.

    The noise is the standard deviation of a cell's seeds, after what they have in common: 2.1 points in this world.
    """
    rows = []
    values, _ = draw(WORLDS["normal"], np.zeros(5), 10, studies, np.random.default_rng(9))
    noise = float(np.sqrt(two_way(values)[0].mean()))
    for times in (1, 2, 3, 4):
        found = list[float]()
        for n in seeds:
            rng, truth = np.random.default_rng([9, n, times]), np.array([0.0, times * noise, 0.0, 0.0, 0.0])
            values, resolution = draw(WORLDS["normal"], truth, n, studies, rng)
            found.append(float((_judged(WORLDS["normal"], values, resolution, rng)[0][:, 0] == "better").mean()))
        rows.append(_row("normal", f"power at {times} x noise of {100 * noise:.1f} points", found, "", seeds))
    for effect in (0.03, 0.05):
        now, before = list[float](), list[float]()
        for n in seeds:
            rng = np.random.default_rng([n, round(100 * effect)])
            truth = np.array([0.0, effect, 0.0, 0.0, 0.0])
            values, resolution = draw(WORLDS["normal"], truth, n, studies, rng)
            now.append(float((_judged(WORLDS["normal"], values, resolution, rng)[0][:, 0] == "better").mean()))
            before.append(float(_holm_rejects(values)[:, 0].mean()))
        rows += [_row("normal", f"power at {100 * effect:g} points", now, "", seeds),
                 _row("normal", "  the same by paired t and Holm", before, "", seeds)]  # fmt: skip
    return rows


LOOKS = tuple(StudySpec().looks)
LOOKED = ("normal", "quiet", "unstable cells", "heavy tails")
"""Worlds in which seeds are added until the verdicts are there."""


def until_decided(name: str, studies: int) -> list[Row]:
    """What looks that are declared beforehand claim, and how many seeds they take, beside a plan of ten seeds.

    Beside it, the same looks without a correction, which is what adding seeds until a verdict is there amounts to.
    """
    world, ways = WORLDS[name], {"declared looks": LOOKS, "looks without correction": ()}
    rows: list[Row] = []
    for what, effect in (("false better or worse, any row", 0.0), ("found at 3 points", 0.03)):
        rng = np.random.default_rng([8, list(WORLDS).index(name), round(100 * effect)])
        truth = np.array([0.0, effect, *np.zeros(world.cells - 1)])
        values, resolution = draw(world, truth, LOOKS[-1], studies, rng)
        found: dict[str, tuple[npt.NDArray[np.str_], float]] = {}
        for way, corrected in ways.items():
            said, ran = looked(values, resolution, 1 - 0.05 / max(len(corrected), 1))
            found[way] = said, float(ran[:, 1].mean())
        fixed = _judged(world, values[..., :10], resolution, rng)[0]
        found["ten seeds"] = fixed, 10.0
        for way, (said, ran) in found.items():
            share = np.isin(said, WRONG).any(1) if effect == 0 else said[:, 0] == "better"
            wanted = "<= 0.05" if effect == 0 and "without" not in way else ""
            rows.append({"world": name, "what": f"{way}: {what}", "wanted": wanted,
                         "share": round(float(share.mean()), 3), "seeds of the cell": round(ran, 1)})  # fmt: skip
    return rows


def looked(values: Floats, resolution: Floats, level: float) -> tuple[npt.NDArray[np.str_], Floats]:
    """Verdicts on the cells against the first one, with seeds added until they are decided.

    Args:
        values: [studies, cells, seeds] all seeds that may run.
        resolution: [studies] of the test set.
        level: of each look.

    Returns:
        Verdicts [studies, cells - 1], and seeds that ran [studies, cells].
    """
    studies, cells, _ = values.shape
    said = np.full((studies, cells - 1), "undecided", dtype="<U9")
    ran, pairs = np.zeros((studies, cells), int), [(k, 0) for k in range(1, cells)]
    for n in LOOKS:
        open_ = said == "undecided"
        goes_on = np.concatenate([open_.any(1, keepdims=True), open_], 1)
        ran = np.where(goes_on, n, ran)
        seen = np.where(np.arange(values.shape[2]) < ran[..., None], values, np.nan)
        found = estimate(seen, pairs, resolution=resolution, level=level)
        now = verdicts(found.difference - found.half, found.difference + found.half, ROPE)
        said = np.where(open_, now, said)
    return said, ran.astype(float)


FALL = np.array([0, 0, 0, 0, 0, -0.01, -0.02, -0.03])
"""A sweep's truth: a plateau of five values, and three steps down."""


def sweeps(studies: int, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """How often the answer to a sweep calls a value worse that is not, and how many of three steps down it finds.

    Eight values with noise of 0.4 points, or graded up to six times as much; validation, which chooses the best, shares
    a run's noise with the test set.
    """
    rows = []
    for world, graded in (("sweep", 1.0), ("sweep, graded noise", 6.0)):
        found: dict[str, list[float]] = {"a value worse where all are equal": [], "a value of the plateau worse": [],
                                         "steps found of three (share)": []}  # fmt: skip
        for n in seeds:
            rng, said = np.random.default_rng([5, n, round(graded)]), np.zeros(3)
            for _ in range(studies):
                noise = 0.004 * graded ** rng.permuted(np.linspace(0, 1, len(FALL)))
                for place, truth in enumerate((np.zeros(len(FALL)), FALL)):
                    values = 0.7 + truth[:, None] + rng.normal(0, 0.01, n) + noise[:, None] * rng.normal(0, 1, (8, n))
                    values = values.round(3)  # of a thousand images
                    validated = (values + rng.normal(0, 0.003, values.shape)).mean(1)
                    answer = analysis.sweep(long(values), list(map(str, range(8))), str(validated.argmax()), rope=ROPE)
                    worse = {int(cell) for cell in (*answer.lower, *answer.upper, *answer.worse)}
                    said[place] += any(truth[cell] == 0 for cell in worse)
                    said[2] += len(worse & {5, 6, 7}) / 3 * place
            for rates, number in zip(found.values(), said / studies, strict=True):
                rates.append(float(number))
        rows += [
            _row(world, what, rates, "" if "found" in what else "near 0.05", seeds) for what, rates in found.items()
        ]
    return rows


def groups(studies: int, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """How often cells that are equal share no letter, cells that differ share none, and an interval is missing.

    Noise is 0.8 points; in some worlds the last cell varies by 5 or 10 points. In the second half of the rows every
    other cell is 5 points worse, and the unstable cell 30 points better than the best.
    """
    rows = []
    for cells, unstable in ((6, None), (4, 0.05), (6, 0.05), (4, 0.1), (6, 0.1)):
        world, noise, truth = "letters", np.full((cells, 1), 0.008), np.resize([0.0, -0.05], cells)
        if unstable is not None:
            world, noise[-1], truth[-1] = f"letters, one cell of {cells} unstable by {100 * unstable:g}", unstable, 0.3
        pairs = np.array(list(itertools.combinations(range(cells), 2)))
        gaps = np.abs(truth[pairs[:, 0]] - truth[pairs[:, 1]])
        found: dict[str, list[float]] = {}
        for n in seeds:
            rng = np.random.default_rng([6, n])
            values = 0.5 + rng.normal(0, 0.01, (studies, 1, n)) + noise * rng.normal(0, 1, (studies, cells, n))
            equal, half = _told_apart(values, pairs)
            apart, _ = _told_apart(values + truth[:, None], pairs)
            shares = {"equal cells without a common letter": equal.any(1),
                      "cells 5 points apart without one": apart[:, (gaps > 0.04) & (gaps < 0.06)]}  # fmt: skip
            if unstable is not None:
                shares["an unstable cell 30 points apart without one"] = apart[:, gaps > 0.29]
                shares["studies without an interval"] = np.isnan(half).any(1)
            for what, share in shares.items():
                found.setdefault(what, []).append(float(share.mean()))
        wanted = {"equal cells without a common letter": "<= 0.05", "studies without an interval": "0"}
        rows += [_row(world, what, rates, wanted.get(what, ""), seeds) for what, rates in found.items()]
    return rows


def _told_apart(values: Floats, pairs: npt.NDArray[np.intp]) -> tuple[Bools, Floats]:
    """Which pairs [studies, pairs] share no letter, as in `analysis.letters`, and half widths of their intervals."""
    values = values.round(3)
    found = estimate(values, pairs, resolution=resolution_of(values[..., None]), tests=len(pairs))
    said = verdicts(found.difference - found.half, found.difference + found.half, ROPE)
    return np.isin(said, WRONG), found.half


def choices(studies: int, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """The gain of the winner of a search over its published point: by the seeds that chose, and by as many fresh ones.

    Of 20 cells a third is unstable over seeds, as learning rates near divergence are. The nested estimate tests on each
    seed the cell that the validation of the other seeds selects.
    """
    cells = 20
    rows: dict[str, list[float]] = {}
    for n in seeds:
        rng, errors, misses = np.random.default_rng([0, n, 1]), np.zeros(3), np.zeros(2)
        for _ in range(studies):
            truth = rng.normal(0.7, 0.01, cells)
            noise = np.where(rng.random(cells) < 0.35, 0.05, 0.008)

            (val, test), (_, fresh) = (_drawn(rng, truth, noise, n) for _ in range(2))
            winner = 1 + int(val[1:].mean(1).argmax())
            others = [1 + int(np.delete(val[1:], i, 1).mean(1).argmax()) for i in range(n)]
            nested = np.mean([test[other, i] for i, other in enumerate(others)]) - test[0].mean()
            gain = truth[winner] - truth[0]
            for i, values in enumerate((test, fresh)):
                found = analysis.compare(long(values[[winner, 0]]), "1").iloc[0]
                errors[i] += found["difference"] - gain
                misses[i] += not found["low"] <= gain <= found["high"]
            errors[2] += nested - gain
        estimates = "by the seeds that chose", "confirmed", "nested"
        for what, number in zip(estimates, 100 * errors / studies, strict=True):
            rows.setdefault(f"gain {what}, minus its truth (points)", []).append(float(number))
        for what, number in zip(estimates, misses / studies, strict=False):
            rows.setdefault(f"interval of the gain {what} misses its truth", []).append(float(number))
    wanted = {"gain confirmed, minus its truth (points)": "near 0",
              "interval of the gain confirmed misses its truth": "<= 0.05"}  # fmt: skip
    return [_row("choice", what, found, wanted.get(what, ""), seeds) for what, found in rows.items()]


def _drawn(rng: np.random.Generator, truth: np.ndarray, noise: np.ndarray, n: int) -> list[np.ndarray]:
    """Validation and test values [cells, seeds] of n seeds, which share the noise of training."""
    shared = rng.normal(0, 1, (len(truth), n)) * noise[:, None] + rng.normal(0, 0.01, n)
    return [truth[:, None] + shared + rng.normal(0, 0.005, shared.shape) for _ in range(2)]


def importances(studies: int, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """How often a share is given to a field that has none, and how often shares sum to more than 1.

    Grids of 4 x 4 x 4 cells of noise alone, by seeds; 40 trials whose second field is drawn along with the first.
    """
    rows: dict[str, list[float]] = {}
    for n in seeds:
        rng, said = np.random.default_rng([3, n]), np.zeros(3)
        places = np.indices((4, 4, 4)).reshape(3, -1).T
        for _ in range(studies):
            values = rng.normal(0.7, 0.01, (64, n))
            grid = pd.DataFrame(places, columns=["a", "b", "c"]).assign(value=values.mean(1))
            shares = analysis.importance(grid, ["a", "b", "c"], noise=analysis.noise_of(long(values)))["share"]
            x = rng.random(40)
            drawn = pd.DataFrame({"x": x, "along": x + rng.normal(0, 0.2, 40)})
            drawn["value"] = 0.7 - 0.1 * (x - 0.6) ** 2 + rng.normal(0, 0.01 / np.sqrt(n), 40)
            along = analysis.importance(drawn, ["x", "along"]).set_index("field")["share"]
            said += [(shares[:3] > 0).any(), along["along"] > 0, max(shares.sum(), along.sum()) > 1 + 1e-9]
        for what, number in zip(("a share in a grid of noise", "a share of a field drawn along",
                                 "shares above 100 %"), said, strict=True):  # fmt: skip
            rows.setdefault(what, []).append(float(number) / studies)
    wanted = {"shares above 100 %": "0"}
    return [_row("importance", what, found, wanted.get(what, "<= 0.05"), seeds) for what, found in rows.items()]


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


def _row(world: str, what: str, values: list[float], wanted: str, seeds: tuple[int, ...]) -> Row:
    columns = {f"{n} seeds": round(float(v), 3) for n, v in zip(seeds, values, strict=True)}
    return {"world": world, "what": what, "wanted": wanted, **columns}
