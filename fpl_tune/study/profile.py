"""What a trial costs on this machine: two rounds of it, with as many beside it as will run beside it."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from fpl_tune.config import RunSpec
from fpl_tune.study.job import Setup, peak_memory

ROUNDS = 2


@dataclass(frozen=True)
class Cost:
    """Measured on one trial with all its seeds."""

    setup: float
    """Seconds before the first round, where towers and features are loaded."""
    first: float
    """Seconds of the first round."""
    later: float
    """Seconds of every further round."""
    peak_memory_bytes: int
    """Largest resident size of the process."""

    def seconds(self, rounds: int) -> float:
        """Of a whole trial."""
        return self.setup + self.first + max(0, rounds - 1) * self.later


@dataclass(frozen=True)
class Profile:
    """Costs by their key, and what comes before the first trial."""

    costs: dict[str, Cost]
    boot: float
    """Seconds until a fresh process has imported what a trial needs and holds its towers."""


def cost_key(run: RunSpec) -> str:
    """Runs of equal key cost the same per round: hyper-parameters that are no sizes do not matter."""
    node: dict[str, Any] = asdict(run)
    node["protocol"].pop("rounds")
    node["optim"] = {"batch": run.optim.batch, "name": run.optim.name}
    node["data"].pop("root")
    node["method"] = _sizes(node["method"])
    return json.dumps(node, sort_keys=True)


def _sizes(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _sizes(v) for k, v in node.items() if not isinstance(v, float)}
    return node


def measure(runs: dict[str, RunSpec], seeds: Sequence[int], setup: Setup) -> Profile:
    """Costs of runs by key, each measured in `setup.parallel` processes at once."""
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(setup.parallel, mp_context=context) as pool:
        boots = [pool.submit(_boot, next(iter(runs.values())), setup) for _ in range(setup.parallel)]
        boot = max(f.result() for f in boots) - began
        costs = {}
        for key, run in runs.items():
            found = [f.result() for f in [pool.submit(_cost, run, seeds, setup) for _ in range(setup.parallel)]]
            costs[key] = Cost(
                *(sum(getattr(c, name) for c in found) / len(found) for name in ("setup", "first", "later")),
                peak_memory_bytes=max(c.peak_memory_bytes for c in found),
            )
    return Profile(costs, boot)


def _boot(run: RunSpec, setup: Setup) -> float:
    """Imports and loads; returns the clock, which all processes of a machine share."""
    import torch

    from fpl_tune.trial import world_of

    torch.set_num_threads(setup.threads)
    world_of(run, cache_dir=setup.cache_dir, device=setup.device)
    return time.perf_counter()


def _cost(run: RunSpec, seeds: Sequence[int], setup: Setup) -> Cost:
    from fpl_tune.trial import Trial

    began = time.perf_counter()
    trial = Trial(run, seeds, cache_dir=setup.cache_dir, device=setup.device, block=setup.block)
    ready = time.perf_counter()
    rounds = []
    while not trial.done and len(rounds) < ROUNDS:
        start = time.perf_counter()
        trial.step()
        rounds.append(time.perf_counter() - start)
    return Cost(ready - began, rounds[0], rounds[-1], peak_memory())
