"""Rounds of few among many clients: what a round costs must not grow with those that do not train."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from torch import Tensor

from fpl_tune import config
from fpl_tune.core.formatting import counted
from fpl_tune.core.tensors import large_leaves_in
from fpl_tune.data import load
from fpl_tune.method import State, trees_like
from fpl_tune.simulation import checkpoint, divergence
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.dummy import dummy_task
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.task import towers_for
from fpl_tune.simulation.worlds import cohort_of

COHORT = 10


def bench_clients(numbers: Sequence[int], overrides: Sequence[str], *, cache_dir: Path) -> list[dict[str, Any]]:
    """Trains rounds of ten clients, on features that are all zero, beside as many clients as `numbers` says.

    Returns:
        A row for each number: processor seconds of a round (the least of two, after one in which nobody has experts
        yet), bytes of the state, and of memory above the loaded towers, mapped pages of files included; then the most
        memory, without those pages, that writing a checkpoint and reading it took beyond what was in use.
    """
    rows = []
    for n in numbers:
        images = -(-2 * n // 120)  # of each of 20 classes in six styles
        fixed = [f"partition.n_clients={n}", f"protocol.participation={COHORT / n}", "partition=iid", "data.val=0"]
        fixed += ["data.shots=null", f"data.train_per_class={images}", f"data.test_per_class={images}"]
        run = config.compose_run([*fixed, *overrides])
        towers, dataset = towers_for(run.clip), load(run.data)
        before = psutil.Process().memory_info().rss
        task, method = dummy_task(run, towers, dataset), run.stages[0].method
        with torch.no_grad(), large_leaves_in(cache_dir):
            states = [method.init(task, torch.Generator().manual_seed(1), None)]
        size, seconds = sum(leaf.nbytes for tree in states[0] for leaf in tree.values()), []
        for number in range(1, 4):
            began = time.process_time()
            cohorts = [cohort_of(run, task, 1, number, 1)]
            states, report = run_round(method, [task], states, cohorts, epochs=1, spec=run.optim, reuse=True)
            divergence.watch(run.optim, [task], states, cohorts, report.loss)
            seconds.append(time.process_time() - began)
        rows.append(
            {
                "what": f"{counted(n, 'client')}, {COHORT} a round",
                "seconds": min(seconds[1:]),
                "state_bytes": size,
                "memory_bytes": psutil.Process().memory_info().rss - before,
                "checkpoint_bytes": _peak(partial(_write_and_read, states[0], cache_dir)),
            }
        )
        del states
    return rows


def _write_and_read(state: State, folder: Path) -> None:
    """Writes a checkpoint of a state, reads it, and continues from it."""
    named = {f"{part}/{name}": leaf for part, tree in state._asdict().items() for name, leaf in tree.items()}
    with TemporaryDirectory(dir=folder) as home, large_leaves_in(folder):
        checkpoint.write(Path(home), Snapshot(named, {"round": 1}))
        (found,) = checkpoint.usable(Path(home))
        assert isinstance(found, Snapshot)
        trees: dict[str, dict[str, Tensor]] = {part: {} for part in State._fields}
        for key, leaf in found.tensors.items():
            part, name = key.split("/", 1)
            trees[part][name] = leaf
        trees_like(state, trees)


def _peak(work: Callable[[], None]) -> int:
    """The most bytes of memory that work took beyond those in use before, without pages of files."""
    me, over, found = psutil.Process(), threading.Event(), []

    def watch() -> None:
        while not over.wait(0.01):
            now = me.memory_info()
            found.append(now.rss - now.shared)

    thread = threading.Thread(target=watch)
    thread.start()
    while not found:
        time.sleep(0.01)
    try:
        work()
    finally:
        over.set()
        thread.join()
    return max(found) - found[0]
