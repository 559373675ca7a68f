"""A whole trial."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import torch

from fpl_tune import methods
from fpl_tune.bench.measure import Measured, Meter, Peak, Progress, Steps, images_progress, matrix_rate, wait
from fpl_tune.clip import Towers
from fpl_tune.config import RunSpec
from fpl_tune.formatting import counted
from fpl_tune.trial import Trial

_LOOPED = 2  # rounds of the loop over clients are measured and scaled to all


class _Timed(NamedTuple):
    seconds: float
    peak: int
    meter: Meter
    towers: Towers


def bench_trial(
    run: RunSpec, device: str = "cpu", *, cache_dir: Path, progress: Progress | None = None
) -> list[Measured]:
    """A whole trial: all clients as one batch against a loop over clients, and three seeds against one."""
    first = Trial(run, [1], cache_dir=cache_dir, device=device, progress=images_progress(progress))
    rounds, where = first.rounds, first.world.towers.device
    looped = min(rounds, _LOOPED)
    steps = Steps(1 + 4 * rounds + 3 * looped, progress)

    def timed(seeds: list[int], block: int | None, rounds: int) -> _Timed:
        trial = Trial(run, seeds, cache_dir=cache_dir, device=device, block=block)
        meter, peak, seconds = Meter(), Peak(where), 0.0
        what = counted(len(seeds), "seed") if block is None else "one client after another"
        with meter.on(trial.world.towers):
            for number in range(rounds):
                steps(f"{what}, round {number + 1} of {rounds}", len(seeds) if block is None else 3)
                began = time.perf_counter()
                trial.step()
                wait(where)
                seconds += time.perf_counter() - began
        return _Timed(seconds, peak.bytes(), meter, trial.world.towers)

    steps("a round to warm up")
    first.step()
    loop = timed([1], 1, looped).seconds * rounds / looped
    rate = matrix_rate(where, first.world.towers.dtype)
    found, alone = [], None
    for seeds in ([1], [1, 2, 3]):
        took = timed(seeds, None, rounds)
        alone = alone or took.seconds
        found.append(
            Measured(
                f"trial {methods.name_of(run.method)} {run.clip.name}, {counted(len(seeds), 'seed')}",
                took.seconds,
                loop * len(seeds),
                took.meter.tokens,
                took.meter.operations,
                took.meter.operations / took.seconds / rate,
                min(1.0, took.meter.text_seconds(took.towers) / took.seconds),
                took.peak,
                _note(first, looped, took.seconds / alone, len(seeds)),
            )
        )
    return found


def _note(trial: Trial, looped: int, against_one: float, n_seeds: int) -> str:
    plain = "one client after another" + (", one seed after another" if n_seeds > 1 else "")
    said = f"{counted(trial.rounds, 'round')} of {counted(trial.tasks[0].n_clients, 'client')}; plain path: {plain}"
    if looped < trial.rounds:
        said += f", {counted(looped, 'round')} measured and scaled"
    if n_seeds > 1:
        said += f"; {against_one:.2f} times one seed"
    return f"{said}; {counted(torch.get_num_threads(), 'thread')}"
