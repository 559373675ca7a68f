"""Checks before a study starts: methods fit their tasks, and runs fit the machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from fpl_tune import bounds, methods
from fpl_tune.clip import Towers
from fpl_tune.config import RunSpec
from fpl_tune.data import Dataset, load
from fpl_tune.device import is_out_of_memory, memory
from fpl_tune.errors import ConfigError
from fpl_tune.execute.gpus import gpus_here
from fpl_tune.execute.job import Setup
from fpl_tune.execute.profile import cost_key
from fpl_tune.plan import gpu_memory
from fpl_tune.plan.traffic import bytes_of, hollow_task
from fpl_tune.task import ClientTask


@dataclass
class Loaded:
    """Towers and data sets of a study, each loaded once."""

    _towers: dict[str, Towers] = field(default_factory=dict)
    _data: dict[str, Dataset] = field(default_factory=dict)
    _tasks: dict[str, ClientTask] = field(default_factory=dict)
    _bytes: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    checked: set[object] = field(default_factory=set)
    """Cost keys of the runs that were checked, and lengths of contexts beside their data's class names."""

    def towers_of(self, run: RunSpec) -> Towers:
        key = json.dumps([run.clip.name, run.clip.pretrained, run.clip.quick_gelu])
        if key not in self._towers:
            self._towers[key] = run.clip.load(dtype="float32")
        return self._towers[key]

    def dataset_of(self, run: RunSpec) -> Dataset:
        key = json.dumps(vars(run.data))
        if key not in self._data:
            self._data[key] = load(run.data)
        return self._data[key]

    def task_of(self, run: RunSpec) -> ClientTask:
        """A task of the run's data and partition whose images take no memory."""
        key = json.dumps([vars(run.clip), vars(run.data), vars(run.partition)], sort_keys=True)
        if key not in self._tasks:
            self._tasks[key] = hollow_task(run, 1, self.towers_of(run), self.dataset_of(run))
        return self._tasks[key]

    def bytes(self, run: RunSpec, kind: str, seed: int) -> tuple[int, int]:
        """Bytes sent up and down, cached: runs of equal cost key `kind`, length and seed send equally many."""
        key = (kind, run.rounds, seed)
        if key not in self._bytes:
            self._bytes[key] = bytes_of(run, seed, self.towers_of(run), self.dataset_of(run))
        return self._bytes[key]


def check(runs: Sequence[RunSpec], seeds: int = 1, setup: Setup | None = None, labels: Sequence[str] = ()) -> Loaded:
    """Checks that methods fit their tasks and runs fit the machine.

    Args:
        runs: the runs that are queued.
        seeds: number of seeds of each.
        setup: of the study; None: unknown.
        labels: names of the runs, for messages; empty: there is one run.

    Returns:
        The towers and data sets that it had to load.

    Raises:
        ConfigError: the first run that cannot start.
    """
    loaded = Loaded()
    here = setup.device if setup is not None and setup.address is None else None
    room = memory() if here == "cpu" else None
    gpu = max((free for _, free in gpus_here()), default=None) if here == "cuda" else None
    for run, label in zip_longest(runs, labels):
        try:
            _check(run, loaded, seeds, room, gpu)
        except ConfigError as problem:
            raise ConfigError(f"{label}: {problem}" if label else str(problem)) from None
    return loaded


def _check(run: RunSpec, loaded: Loaded, seeds: int, room: int | None, gpu: int | None) -> None:
    """Checks a run. Runs of equal cost key differ in numbers that only a method's own check reads."""
    task, kind, n_ctx = loaded.task_of(run), cost_key(run), int(getattr(run.method, "n_ctx", 0))
    if (id(task), n_ctx) not in loaded.checked:
        loaded.checked.add((id(task), n_ctx))
        loaded.towers_of(run).sentences(loaded.dataset_of(run).classes, n_ctx)  # they fit into the text tower
    new = kind not in loaded.checked
    if new:
        bounds.check(run, task, seeds, room)
    for stage in run.stages:
        stage.method.check(task)
        if stage.method.needs == "patches" and task.n_patches is None:
            of = methods.name_of(run.method)
            raise ConfigError(f"{of} needs patch features, but {run.clip.name} has none. Choose another clip.")
    if new:
        loaded.checked.add(kind)
        _check_states(run, task, seeds, room, gpu)


def _check_states(run: RunSpec, task: ClientTask, seeds: int, room: int | None, gpu: int | None) -> None:
    """Builds the initial state of one seed, which gives its size, and reports an allocation that fails."""
    try:
        with torch.no_grad():
            state = run.stages[0].method.init(task, torch.Generator().manual_seed(0), None)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            return  # the run reports it with its place
        raise ConfigError(
            f"What {methods.name_of(run.method)} learns does not fit into this machine's memory. Lower a size of the "
            "method, or the number of clients."
        ) from None
    except Exception:  # a method's own error: the run reports it with its place
        return
    bounds.check_state(state, seeds, room)
    if gpu is not None:
        gpu_memory.check(run, task, state, gpu)
