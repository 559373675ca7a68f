"""The plan of a study before it starts: the cells that would run, their time, memory and bytes, and its feasibility."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fpl_tune.config import Study
from fpl_tune.core.device import memory, resolve
from fpl_tune.core.errors import ConfigError, FplTuneError
from fpl_tune.core.formatting import counted, duration, size
from fpl_tune.core.metrics import check_reported
from fpl_tune.core.plugins import describe_error
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.plan.costs import TRIAL_SECONDS, Basis, measured_pace, typical_pace
from fpl_tune.execute.plan.diff import Differ, Item
from fpl_tune.execute.profile import cost_key, earlier_paces
from fpl_tune.execute.resources import setup_of
from fpl_tune.search import pruning as prune
from fpl_tune.search.ablation import ablation_cells
from fpl_tune.search.confirm import cells_of
from fpl_tune.search.search import Search
from fpl_tune.simulation import bounds
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import fingerprints, stale
from fpl_tune.study.store import Store

RAY_SECONDS = 15.0
"""Typical seconds until Ray has started on this machine, and its first processes have imported the package."""
PROCESS_BYTES = 700 << 20
"""Typical memory of a process that holds PyTorch and this package, besides what a trial adds."""


@dataclass(frozen=True)
class Plan:
    """The plan of a study; see `totals`."""

    items: tuple[Item, ...]
    seconds: float
    """Wall time of the cells that are left."""
    parallel: int
    gpus: float
    starting: float
    """Seconds of `seconds` before the first trial."""
    reasons: tuple[str, ...]
    """Why it is infeasible."""
    held_out: tuple[float, ...] = ()
    """Shares of their training images that clients validate on where they use all (`data.shots=null`)."""
    outside: tuple[tuple[Cell, str, str], ...] = ()
    """Cells with results that the study no longer has: cell, state, why."""

    @property
    def feasible(self) -> bool:
        return not self.reasons

    def totals(self) -> dict[str, Any]:
        """Totals of the plan; seconds and bytes of the cells that are not done."""
        left = [item for item in self.items if item.status != "done"]
        return {
            "cells": sum(item.trials for item in self.items),
            "done": sum(item.trials for item in self.items if item.status == "done"),
            "stale": sum(item.trials for item in self.items if item.status == "stale"),
            "seconds": round(self.seconds, 1),
            "gpu_hours": round(self.gpus * sum(i.seconds for i in left) / 3600, 3),
            "bytes_up": sum(item.bytes_up for item in left),
            "bytes_down": sum(item.bytes_down for item in left),
            "peak_memory_bytes": max((item.peak_memory_bytes for item in left), default=0),
            "parallel": self.parallel,
            "feasible": self.feasible,
            "reasons": list(self.reasons),
            "typical": sum(item.trials for item in left if item.basis == "typical"),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell."""
        reasons = any(item.why for item in self.items)
        return [
            {
                "cell": item.label,
                "status": item.status,
                "trials": item.trials,
                "seeds": len(item.missing),
                "seconds": round(item.seconds, 1),
                "up MB": round(item.bytes_up / 1e6, 3),
                "down MB": round(item.bytes_down / 1e6, 3),
                "memory MB": round(item.peak_memory_bytes / 1e6),
                **({"why": item.why} if reasons else {}),
            }
            for item in self.items
        ]

    def sentence(self) -> str:
        """The totals as a sentence."""
        t = self.totals()
        begun = f" ({duration(self.starting)} of it to start)" if self.starting and t["seconds"] else ""
        text = (
            f"{counted(t['cells'], 'cell')}, {t['done']} done; {duration(t['seconds'])} with {self.parallel} at once"
            f"{begun}, {size(t['bytes_up'])} up and {size(t['bytes_down'])} down, "
            f"{size(t['peak_memory_bytes'])} of memory a trial."
        )
        if t["typical"]:
            text += f" Times of {counted(t['typical'], 'cell')} are typical ones; --measure measures them."
        if self.held_out:
            shares = " or ".join(f"{share:.0%}" for share in self.held_out)
            text += f" Clients validate on {shares} of their training images (data.val) and train on the others."
        if self.outside:
            text += f" Not in this study, but kept with their results: {counted(len(self.outside), 'cell')}."
        return " ".join([text, *self.reasons])


def make_plan(
    spec: Study,
    *,
    root: Path,
    measure: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Plans a study: its missing seeds, their time, memory and exact bytes.

    Times are those of earlier runs where there are any: of this study, then of others. Kinds of runs that never ran are
    measured on request; else their times are typical ones.

    Args:
        spec: the study.
        root: the output folder.
        measure: trains two rounds of each kind of runs that never ran, in this process.
        progress: called with (kinds of runs whose time is known, all) before one is measured.

    Raises:
        ConfigError: the study cannot run on any machine.
        EnvironmentProblem: the machine lacks data, or a GPU that is requested.
    """
    check_reported(spec.report.metric)
    setup = setup_of(spec, root / spec.name)
    if setup.address is not None:
        from fpl_tune.execute import ray

        setup = ray.offer(setup)
    store = Store(root, spec.name)
    if store.exists:
        store = Store.open(root, spec.name)
    cells = [*cells_of(spec, root), *ablation_cells(spec, root)]
    prune.check(spec.prune, [cell.run for cell in cells if cell.candidate])
    differ = Differ(spec, store, cells if spec.search.sampler is None else [*cells, *store.cells()])
    items = _items(spec, store, cells, differ)
    seeds = spec.seed_list()
    queued = [(item, run) for item in items if item.missing for run in item.runs]
    runs = [run for _, run in queued]
    loaded = preflight.check(runs, len(seeds), setup, [item.label for item, _ in queued])
    kinds = {cost_key(run) for run in runs}
    paces = earlier_paces(root, spec.name, kinds)
    basis: dict[str, Basis] = {kind: "earlier runs" for kind in kinds if paces.of(kind) is not None}
    here = setup if setup.address is None else replace(setup, device=resolve("auto"))  # measured on this machine
    room = bounds.block_room(torch.device(here.device))
    starting = RAY_SECONDS if runs and spec.execution.executor == "ray" else 0.0
    free = [starting] * setup.parallel  # a heap of the times at which workers become free
    for item, run in queued:
        kind, n = cost_key(run), len(item.missing)
        with _named(item.label):
            if kind not in basis:
                if measure and progress is not None:
                    progress(len(basis), len(kinds))
                pace = measured_pace(run, seeds, here) if measure else typical_pace(run, loaded, here.device)
                paces.add(kind, 1, pace)
                basis[kind] = "measured" if measure else "typical"
            up, down = loaded.bytes_of(run, item.missing)
            peak = loaded.memory_of(run, n).peak(room)
        seconds = TRIAL_SECONDS + run.rounds * n * (paces.of(kind) or 0.0)
        heapq.heapreplace(free, free[0] + seconds)
        item.seconds, item.basis = item.seconds + seconds, basis[kind]
        item.bytes_up, item.bytes_down = item.bytes_up + up, item.bytes_down + down
        item.peak_memory_bytes = max(item.peak_memory_bytes, PROCESS_BYTES + peak)
    return Plan(
        items=tuple(items),
        seconds=max(free),
        parallel=setup.parallel,
        gpus=1.0 if setup.gpus is None else setup.gpus,
        starting=starting,
        reasons=tuple(_reasons(items, setup)),
        held_out=tuple(sorted({run.data.val for run in runs if run.data.shots is None and run.data.val})),
        outside=tuple(differ.outside()),
    )


@contextmanager
def _named(label: str) -> Iterator[None]:
    """Names the cell whose method fails."""
    try:
        yield
    except FplTuneError:
        raise
    except Exception as problem:
        raise ConfigError(f"{label} cannot be planned: {describe_error(problem)}") from problem


def _items(spec: Study, store: Store, cells: Sequence[Cell], differ: Differ) -> list[Item]:
    """Cells, their missing seeds and their state."""
    search = Search.plan(spec, preflight.check_of_sizes())
    drawn = search.draw() if search is not None else {}
    tried = [cell for cell in store.cells() if cell.role == "trial"]
    found = []
    for cell in cells:
        if cell.id not in drawn:
            found.append(differ.item(cell))
            continue
        over = sum(_over(trial, cell, spec, store) for trial in tried)
        done, left = drawn[cell.id][:over], drawn[cell.id][over:]
        found += [Item(cell.label, "done", [], done)] if done else []
        found += [Item(cell.label, "partial" if done else "new", spec.seed_list(), left)] if left else []
    return found


def _over(trial: Cell, part: Cell, spec: Study, store: Store) -> bool:
    """Whether a trial belongs to the search in a cell of the axes and has all its results."""
    inside = all(trial.varied.get(name) == value for name, value in part.varied.items())
    return inside and not store.missing(trial, spec) and not stale(store, trial, fingerprints(trial.run))


def _reasons(items: Sequence[Item], setup: ExecutionContext) -> list[str]:
    """Reasons for which the plan cannot run on this machine."""
    peak = max((item.peak_memory_bytes for item in items), default=0)
    if setup.address is None and setup.device == "cpu" and peak * setup.parallel > bounds.SHARE * memory():
        fits = max(1, int(bounds.SHARE * memory() // peak))
        return [
            f"{counted(setup.parallel, 'trial')} at once would take {peak * setup.parallel / 1e9:.1f} GB of memory, "
            f"but this machine has {memory() / 1e9:.1f} GB. Set execution.parallel={fits}, or execution.block to train "
            "fewer clients at once."
        ]
    return []
