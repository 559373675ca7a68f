"""How busy a search keeps a large cluster: the study's own scheduler on workers whose clock is simulated."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fpl_tune import config
from fpl_tune.execute.job import ExecutionContext, Job, Report
from fpl_tune.execute.runner import run_study
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.testing.bench.measure import Progress, Steps

_MEDIAN = 300.0  # seconds of a trial
_SPREAD = 1.2  # standard deviation of the logarithm of its seconds: one trial in a hundred takes over 80 minutes
_ROUNDS = 9
_SPACE = {
    "optim.lr": {"low": 1e-4, "high": 1.0, "log": True},
    "optim.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "protocol.epochs": {"low": 1.0, "high": 8.0},
}


@dataclass
class VirtualCluster:
    """An executor whose workers train nothing. Its clock also advances by what the scheduler takes for each job.

    Args:
        workers: jobs at once.
        seconds: of a cell's trial.
        accuracy: of a cell after a round.
    """

    workers: int
    seconds: Callable[[Cell], float]
    accuracy: Callable[[Cell, int], float]
    busy: float = 0.0
    """Seconds of all workers."""
    span: float = 0.0
    """Seconds until the last job began."""
    busy_in_span: float = 0.0
    end: float = 0.0
    """Seconds until the last job ended."""
    rounds: int = 0

    def __call__(self, scheduler: Scheduler, setup: ExecutionContext) -> None:
        """Runs all jobs of the scheduler."""
        free, now, ready, number = self.workers, 0.0, 0.0, itertools.count()
        events: list[tuple[float, int, Job, int]] = []
        reached: dict[tuple[str, tuple[int, ...]], int] = {}
        spans: list[tuple[float, float]] = []
        while True:
            while free:
                began = time.perf_counter()
                if (job := scheduler.next_job()) is None:
                    break
                ready = max(now, ready) + time.perf_counter() - began  # one job is made after the other
                done = reached.get((job.cell.id, job.seeds), 0)
                if done:
                    scheduler.receive(job, Report([self._records(job, r) for r in range(1, done + 1)], last=False))
                heapq.heappush(events, (ready + self._round(job), next(number), job, done + 1))
                spans.append((ready, ready))
                self.span, free = max(self.span, ready), free - 1
            if not events:
                break
            now, _, job, done = heapq.heappop(events)
            reached[job.cell.id, job.seeds] = done
            self.rounds, self.busy = self.rounds + 1, self.busy + self._round(job)
            spans.append((now - self._round(job), now))
            goes_on = scheduler.receive(job, Report([self._records(job, done)], last=False))
            if goes_on and done < job.cell.run.rounds:
                heapq.heappush(events, (now + self._round(job), next(number), job, done + 1))
                continue
            if goes_on:
                scheduler.receive(job, Report([], dict.fromkeys(job.seeds, ("", None))))
            free += 1
        self.end = now
        self.busy_in_span = math.fsum(max(0.0, min(end, self.span) - begin) for begin, end in spans)

    def _round(self, job: Job) -> float:
        return self.seconds(job.cell) / job.cell.run.rounds

    def _records(self, job: Job, number: int) -> list[Record]:
        accuracy = self.accuracy(job.cell, number)
        figures = {"val/acc_mean": accuracy, "test/acc_mean": accuracy, "time/seconds": number * self._round(job)}
        return [{"seed": s, "round": number, "comm/up_bytes": 1, "comm/down_bytes": 1, **figures} for s in job.seeds]

    @property
    def utilisation(self) -> float:
        """Share of the workers that train while there are jobs to hand out."""
        return self.busy_in_span / (self.workers * self.span) if self.span else 1.0


def simulate(
    overrides: Sequence[str], root: Path, *, workers: int = 64, seed: int = 0, **search: Any
) -> tuple[VirtualCluster, Store]:
    """Runs a search of heavy-tailed trials on a simulated cluster.

    Args:
        overrides: of the study.
        root: an empty folder for the study.
        workers: of the cluster.
        seed: of the trials' seconds.
        search: fields of the study's `search`.

    Returns:
        The cluster and the finished study.
    """
    root.mkdir(parents=True, exist_ok=True)
    file = root / "simulated.yaml"
    body = {"search": {"space": _SPACE, "only": list(_SPACE), **search}, "execution": {"executor": "inline"}}
    node = {"defaults": ["/study", "_self_"], "axes": {}, "seeds": 1, "protocol": {"rounds": _ROUNDS}, **body}
    file.write_text(yaml.safe_dump(node), encoding="utf-8")

    def seconds(cell: Cell) -> float:
        return _MEDIAN * math.exp(_SPREAD * random.Random(f"{seed} {cell.id}").gauss(0.0, 1.0))

    def accuracy(cell: Cell, number: int) -> float:
        optim = cell.run.optim
        level = 0.9 - 0.05 * (math.log10(optim.lr) + 1.5) ** 2 - 5 * optim.weight_decay
        return level * (1 - 0.5 / number) + random.Random(f"{cell.id} {number}").gauss(0.0, 0.002)

    cluster = VirtualCluster(workers, seconds, accuracy)
    run_study(config.compose_study(str(file), overrides), root=root, executor=cluster)
    return cluster, Store.open(root, "simulated")


def bench_search(
    overrides: Sequence[str] = (), *, trials: int = 640, workers: int = 64, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Utilisation of a cluster by mode of the search.

    Args:
        overrides: of the study.
        trials: of each search.
        workers: trials at once.
        progress: receives what is measured.
    """
    modes: list[tuple[str, dict[str, Any], list[str]]] = [
        ("no barrier", {"batch": None}, []),
        ("no barrier, halving", {"batch": None}, ["prune.rule=halving"]),
        (f"batches of {workers}", {"batch": workers}, []),
        ("batches of 4", {"batch": 4}, []),
    ]
    steps, rows = Steps(len(modes), progress), []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, search, extra) in enumerate(modes):
            steps(name)
            began = time.perf_counter()
            root = Path(folder) / str(number)
            cluster, store = simulate(
                [*overrides, *extra], root, workers=workers, sampler="tpe", trials=trials, **search
            )
            seconds = time.perf_counter() - began
            best = max(float((store.result(cell, 1) or {})["rules"]["final"]["val/acc_mean"]) for cell in store.cells())
            rows.append(
                {
                    "search": name,
                    "utilisation": cluster.utilisation,
                    "hours": cluster.end / 3600,
                    "rounds": cluster.rounds,
                    "best validation": best,
                    "trials a second": trials / seconds,
                }
            )
    return rows
