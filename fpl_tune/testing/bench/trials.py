"""A whole trial."""

from __future__ import annotations

from pathlib import Path

import torch

from fpl_tune import methods
from fpl_tune.config import RunSpec
from fpl_tune.core.formatting import counted
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.testing.bench.measure import Meter, Progress, Row, Steps, images_progress

_LOOPED = 2  # rounds of the loop over clients are measured and scaled to all


def bench_trial(run: RunSpec, device: str = "cpu", *, cache_dir: Path, progress: Progress | None = None) -> list[Row]:
    """A whole trial: all clients as one batch against a loop over clients, and three seeds against one."""
    first = Simulation(run, [1], cache_dir=cache_dir, device=device, progress=images_progress(progress))
    rounds, looped = first.rounds, min(first.rounds, _LOOPED)
    steps = Steps(1 + 4 * rounds + 3 * looped, progress)

    def measured(seeds: list[int], block: int | None, rounds: int) -> Meter:
        trial = Simulation(run, seeds, cache_dir=cache_dir, device=device, block=block)
        meter = Meter(trial.world.towers)
        what = counted(len(seeds), "seed") if block is None else "one client after another"
        with meter.on():
            for number in range(rounds):
                steps(f"{what}, round {number + 1} of {rounds}", len(seeds) if block is None else 3)
                trial.step()
        return meter

    steps("a round to warm up")
    first.step()
    plain = measured([1], 1, looped).seconds * rounds / looped
    one, three = measured([1], None, rounds), measured([1, 2, 3], None, rounds)
    name = f"trial {methods.name_of(run.method)} {run.clip.name}"
    note = f"{counted(rounds, 'round')} of {counted(first.tasks[0].n_clients, 'client')}"
    note += f"; plain path: one client and one seed after another, {counted(looped, 'round')} measured"
    note += f"; {counted(torch.get_num_threads(), 'thread')}"
    return [
        one.row(f"{name}, 1 seed", plain, note),
        three.row(f"{name}, 3 seeds", 3 * plain, f"{note}; {three.seconds / one.seconds:.2f} times one seed"),
    ]
