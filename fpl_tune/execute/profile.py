"""Profiles: the cost of a trial on this machine, measured on its first rounds.

As many trials run side by side as in the study; on GPUs, one on each.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fpl_tune import config, methods
from fpl_tune.config import RunSpec
from fpl_tune.core import plugins
from fpl_tune.core.files import digest, write_text
from fpl_tune.execute.job import ExecutionContext, peak_memory
from fpl_tune.simulation.worlds import world_of
from fpl_tune.study.fingerprints import method_source
from fpl_tune.study.versions import versions

ROUNDS = 2
_PROFILES = 12  # kinds of trials measured at most; the others take the cost of the nearest kind
_SECONDS = 0.3  # short rounds are repeated for this long
KEPT_SECONDS = 3600.0
"""Time for which a measurement is reused: a machine's load changes."""


@dataclass(frozen=True)
class Cost:
    """The cost of a trial with all its seeds."""

    setup: float
    """Seconds before the first round, where towers and features are loaded."""
    first: float
    """Seconds of the first round."""
    later: float
    """Seconds of every further round."""
    peak_memory_bytes: int
    """Largest resident size of the process."""

    def seconds(self, run: RunSpec) -> float:
        """Seconds of a whole trial; those of a stage are proportional to its local epochs."""
        if run.rounds == 1:
            return self.setup + self.first
        longer = [stage.rounds * stage.epochs / run.stages[0].epochs for stage in run.stages]
        return self.setup + self.first + (sum(longer) - 1) * self.later


@dataclass(frozen=True)
class Profile:
    """Costs by their key, and the time before the first trial."""

    costs: dict[str, Cost]
    boot: float
    """Seconds until a new process has imported the package and loaded the towers."""


def cost_key(run: RunSpec) -> str:
    """The key of a run. Runs of equal key cost the same per round: only hyper-parameters that are sizes matter."""
    node = {name: vars(getattr(run, name)) for name in ("clip", "data", "partition", "protocol")}
    node["protocol"] = {k: v for k, v in node["protocol"].items() if k != "rounds"}
    node["data"] = {k: v for k, v in node["data"].items() if k != "root"}
    node["optim"] = {"batch": run.optim.batch, "name": run.optim.name}
    full = config.as_dict(run)
    return json.dumps({**node, "method": _sizes(full["method"]), "stages": full["stages"]}, sort_keys=True)


def _sizes(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _sizes(v) for k, v in node.items() if not isinstance(v, float)}
    return node


def kinds_of(runs: Sequence[RunSpec]) -> dict[str, RunSpec]:
    """The runs that are measured, by their key: each kind once, the most frequent first, at most `_PROFILES`.

    Each method has a kind among them.
    """
    keys = [cost_key(run) for run in runs]
    kinds = dict(zip(reversed(keys), reversed(runs), strict=True))
    frequent = [key for key, _ in Counter(keys).most_common()]
    first = list({_method(kinds[key]): key for key in reversed(frequent)}.values())
    order = [*first, *(key for key in frequent if key not in first)]
    return {key: kinds[key] for key in order[: max(_PROFILES, len(first))]}


def _method(run: RunSpec) -> str:
    inner = getattr(run.method, "inner", None)
    return "/".join(methods.name_of(method) for method in (run.method, inner) if method is not None)


def nearest(costs: dict[str, Cost], key: str) -> Cost:
    """Returns the cost of a kind of runs; if it was not measured, that of the kind whose key shares most words."""
    if key in costs:
        return costs[key]
    words = set(key.split(","))
    return costs[max(costs, key=lambda k: len(words & set(k.split(","))))]


def measure(
    runs: dict[str, RunSpec],
    seeds: Sequence[int],
    setup: ExecutionContext,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measures the costs of runs, with `setup.parallel` processes at work throughout, on GPUs with one on each.

    Args:
        runs: the runs by key; see `cost_key`.
        seeds: the seeds of a trial.
        setup: of the study. Costs that were measured on this machine within `KEPT_SECONDS` under the same conditions
            are read from its `cache_dir`.
        progress: called with (kinds measured, all kinds).
    """
    costs, boot = {}, 0.0
    for key, run in runs.items():
        with suppress(OSError, ValueError, KeyError, TypeError):
            path = _path(key, run, seeds, setup)
            if 0 <= time.time() - path.stat().st_mtime < KEPT_SECONDS:
                node = json.loads(path.read_text())
                costs[key], boot = Cost(**node["cost"]), max(boot, node["boot"])
    new = {key: run for key, run in runs.items() if key not in costs}
    if new:
        began = time.perf_counter()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fpl_tune.execute.profile"])  # imported once for all processes
        gpus = visible_gpus(torch.cuda.device_count()) if setup.device == "cuda" else []
        processes = min(len(gpus), len(new)) or setup.parallel  # a GPU is not shared before memory is known
        with workers(processes, gpus, context) as pool:
            boots = [pool.submit(_boot, next(iter(new.values())), setup) for _ in range(processes)]
            boot = max(f.result() for f in boots) - began
            beside = 1 if gpus else -(-processes // len(new))  # copies of each, so that no core is idle
            asked = {key: [pool.submit(_cost, run, seeds, setup) for _ in range(beside)] for key, run in new.items()}
            for done, (key, futures) in enumerate(asked.items()):
                if progress is not None:
                    progress(done, len(new))
                found = [asdict(future.result()) for future in futures]
                mean = {name: sum(cost[name] for cost in found) / len(found) for name in found[0]}
                peak = max(cost["peak_memory_bytes"] for cost in found)
                costs[key] = Cost(**{**mean, "peak_memory_bytes": peak})
        for key, run in new.items():
            with suppress(OSError):  # else it is measured again
                write_text(_path(key, run, seeds, setup), json.dumps({"cost": asdict(costs[key]), "boot": boot}))
    return Profile(costs, boot)


def visible_gpus(count: int) -> list[str]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return [name.strip() for name in given.split(",")][:count]


def workers(processes: int, gpus: Sequence[str], context: Any) -> ProcessPoolExecutor:
    """A pool of measuring processes; with GPUs, each process sees one of them."""
    if not gpus:
        return ProcessPoolExecutor(processes, mp_context=context)
    left = context.Queue()
    for gpu in gpus:
        left.put(gpu)
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_take_gpu, initargs=(left,))


def _take_gpu(left: Any) -> None:
    """Runs in a fresh process, before CUDA is used there."""
    os.environ["CUDA_VISIBLE_DEVICES"] = left.get()


def _path(key: str, run: RunSpec, seeds: Sequence[int], setup: ExecutionContext) -> Path:
    """The file of a cost; its name is a digest of all that the cost depends on."""
    execution = setup.execution
    how = [setup.parallel, setup.threads, setup.device, execution.block, execution.graphs, len(seeds)]
    text = json.dumps([key, [socket.gethostname(), *how], method_source(run), versions()])
    return setup.cache_dir / "costs" / f"{digest(text, 10)}.json"


def _boot(run: RunSpec, setup: ExecutionContext) -> float:
    """Imports and loads; returns the clock, which all processes of a machine share."""
    torch.set_num_threads(setup.threads)
    world_of(run, cache_dir=setup.cache_dir, device=setup.device)
    return time.perf_counter()


@plugins.located()
def _cost(run: RunSpec, seeds: Sequence[int], setup: ExecutionContext) -> Cost:
    every = run.protocol.eval_every
    if every > 1:  # one round with and one without an evaluation
        run = replace(run, protocol=replace(run.protocol, eval_every=2))
    began = time.perf_counter()
    trial = setup.simulation(run, seeds)
    ready = time.perf_counter()
    rounds: list[float] = []
    while not trial.done and (len(rounds) < ROUNDS + (every > 1) or sum(rounds) < _SECONDS):
        start = time.perf_counter()
        trial.step()
        rounds.append(time.perf_counter() - start)
    later = sum(rounds[1:]) / len(rounds[1:]) if len(rounds) > 1 else rounds[0]
    if every > 1 and len(rounds) > ROUNDS:
        later = rounds[2] + max(0.0, rounds[1] - rounds[2]) / every
    return Cost(ready - began, rounds[0], later, peak_memory())
