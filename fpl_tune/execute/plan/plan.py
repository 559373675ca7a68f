"""The plan of a study before it starts: the cells that would run, their time, memory and bytes, and its feasibility."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fpl_tune.config import RunSpec, Study
from fpl_tune.core.device import fixed_settings, memory, resolve
from fpl_tune.core.errors import ConfigError, FplTuneError
from fpl_tune.core.formatting import counted, duration, size
from fpl_tune.core.plugins import describe_error
from fpl_tune.execute.asked import Asked
from fpl_tune.execute.decide import remaining, rows_of
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.plan.machine import TWO_ON_ONE, Machine
from fpl_tune.execute.plan.profile import TRIAL_SECONDS, earlier_paces
from fpl_tune.execute.resources import setup_of
from fpl_tune.findings import looks, rates
from fpl_tune.findings.unasked import Unasked
from fpl_tune.search import halving
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.simulation import bounds
from fpl_tune.simulation.dummy import cost_key
from fpl_tune.study.standing import CellState, Row
from fpl_tune.study.store import Store

RAY_SECONDS = 15.0
"""Typical seconds until Ray has started on this machine, and its first processes have imported the package."""
PROCESS_BYTES = 700 << 20
"""Typical memory of a process with PyTorch and this package, without a trial."""


@dataclass
class Item:
    """The work that is left for a cell, or for the search in a cell of the axes, and its cost."""

    label: str
    status: str
    """done, new, stale or partial (some seeds or trials are missing)"""
    missing: Sequence[int]
    """Seeds that would run."""
    run: RunSpec
    """The cell's run; the trials of a search are planned as if they had its sizes and rounds."""
    trials: int = 1
    cost: float = 1.0
    """Expected cost of a trial, in full trials: pruning stops most of them early."""
    why: str = ""
    """The reason why the cell is stale."""
    seconds: float = 0.0
    typical: bool = False
    """True if `seconds` is a typical value; else it is measured on earlier runs."""
    bytes_up: int = 0
    bytes_down: int = 0
    peak_memory_bytes: int = 0
    client_flops: float = 0.0
    """Operations of a client in a round."""
    client_bytes: float = 0.0
    """Bytes that a client sends and receives in a round."""


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study; see `totals`."""

    items: tuple[Item, ...]
    seconds: float
    """Wall time of the cells that are left."""
    parallel: int
    reasons: tuple[str, ...]
    """The reasons why it is infeasible; empty if it is feasible."""
    rates: str = ""
    """Sources of the learning rates, if those of methods differ; see `rates.note`."""
    validation: str = ""
    """A warning of too few validation or test images; see `preflight.coarse_sets`."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds that cells get while comparisons are undecided; the plan counts the first of them."""
    unasked: str = ""
    """A note on cells with results that the study does not ask for; see `study.unasked`."""
    missing: str = ""
    """A note on weights and images that are not on this machine; see `Loaded.missing`."""
    estimated: str = ""
    """What the plan of another machine rests on; see `Machine.note`."""
    images: int = 0
    """Images that are encoded before the first rounds."""
    encoding_seconds: float = 0.0
    """Typical seconds for it, which `seconds` does not contain."""

    @property
    def feasible(self) -> bool:
        return not self.reasons

    def totals(self) -> dict[str, Any]:
        """Totals of the plan; seconds and bytes of the cells that are not done."""
        left = [item for item in self.items if item.status != "done"]
        counts = Counter[str]()
        for item in self.items:
            counts[item.status] += item.trials
        return {
            "cells": counts.total(),
            **{status: counts[status] for status in ("done", "stale")},
            "seconds": round(self.seconds, 1),
            **{name: sum(getattr(item, name) for item in left) for name in ("bytes_up", "bytes_down")},
            "peak_memory_bytes": max((item.peak_memory_bytes for item in left), default=0),
            "parallel": self.parallel,
            "feasible": self.feasible,
            "reasons": list(self.reasons),
            "rates": self.rates,
            "validation": self.validation,
            "typical": sum(item.trials for item in left if item.typical),
            "looks": list(self.looks),
            "missing": self.missing,
            "estimated": self.estimated,
            "images": self.images,
            "encoding_seconds": round(self.encoding_seconds, 1),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell."""
        return [
            {
                "cell": item.label,
                "status": item.status + (f" ({item.why})" if item.why else ""),
                "trials": item.trials,
                "seeds": len(item.missing),
                "seconds": round(item.seconds, 1),
                "client GFLOP": _digits(item.client_flops / 1e9),
                "client MB": _digits(item.client_bytes / 1e6),
                "up MB": round(item.bytes_up / 1e6, 3),
                "down MB": round(item.bytes_down / 1e6, 3),
                "memory MB": round(item.peak_memory_bytes / 1e6),
            }
            for item in self.items
        ]

    def sentence(self) -> str:
        """The totals as a sentence."""
        t = self.totals()
        text = (
            f"{counted(t['cells'], 'cell')}, {t['done']} done; {duration(t['seconds'])} with {self.parallel} in "
            f"parallel, {size(t['bytes_up'])} up and {size(t['bytes_down'])} down, {size(t['peak_memory_bytes'])} of "
            "memory a trial."
        )
        if self.estimated:
            text += f" {self.estimated}"
        elif t["typical"]:
            text += (
                f" The times of {counted(t['typical'], 'cell')} are typical values: no similar cell has run here yet."
            )
        if self.encoding_seconds >= 1:
            text += (
                f" Before that, {counted(self.images, 'image')} are encoded once, in about "
                f"{duration(self.encoding_seconds)}."
            )
        if self.looks:
            text += f" Cells of undecided comparisons get up to {counted(self.looks[-1], 'seed')}."
        return " ".join(filter(None, [text, *self.reasons, self.missing, self.validation, self.rates, self.unasked]))


def _digits(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def make_plan(
    study: ComposedStudy,
    *,
    root: Path,
    machine: Machine | None = None,
    follow: Callable[[int, int], object] = lambda done, total: None,
) -> StudyPlan:
    """Plans a study: its missing seeds, their time, memory and bytes.

    Times are measured on earlier runs of this study or, if there are none, of others; else they are typical values.

    Args:
        study: the study.
        root: the output folder.
        machine: another machine, whose times are estimates; None: this one.
        follow: called with the numbers of cells that are planned and of all. Large towers take seconds a cell.

    Raises:
        ConfigError: the study cannot run on any machine.
        EnvironmentProblem: the machine lacks a requested GPU, or data of which no sizes are published.
    """
    spec, search = study.spec, study.search
    store = Store(root, spec.name)
    looks.check_declared(spec, store)
    setup = _there(spec, root / spec.name) if machine else setup_of(spec, root / spec.name, study.runs)
    asked = Asked(store, study, planned=True)
    design, items = asked.table.design, _items(spec, asked)
    left = [item for item in items if item.missing]
    device = machine or (setup.device if setup.address is None else resolve("auto"))
    room = int(bounds.BLOCK_SHARE * machine.memory) if machine else bounds.block_room(torch.device(str(device)))
    with fixed_settings(setup.threads):
        loaded = preflight.check(
            [item.run for item in left],
            design.most_together(),
            setup,
            [item.label for item in left],
            validated=preflight.reads_validation(spec),
            complete=False,
            machine=machine,
        )
        paces = {} if machine else earlier_paces(root, spec.name, {cost_key(item.run) for item in left})
        images = dict[str, tuple[int, float]]()
        for number, item in enumerate(left):
            follow(number, len(left))
            n, pace = len(item.missing), paces.get(cost_key(item.run))
            try:
                item.typical = pace is None
                pace = loaded.typical_pace(item.run, device) if pace is None else pace
                costs = loaded.known(item.run).costs
                images |= loaded.encoding(item.run, setup.cache_dir, device)
                item.peak_memory_bytes = PROCESS_BYTES + loaded.memory_of(item.run, n).peak(room)
            except FplTuneError:
                raise
            except Exception as problem:
                raise ConfigError(f"{item.label} cannot be planned: {describe_error(problem)}") from problem
            runs = item.trials * n * item.cost
            item.bytes_up, item.bytes_down = (round(runs * costs[f"comm/{way}_bytes"]) for way in ("up", "down"))
            item.client_flops, item.client_bytes = costs["cost/client_flops"], costs["cost/client_bytes"]
            item.seconds = item.trials * TRIAL_SECONDS + runs * item.run.rounds * pace
    starting = RAY_SECONDS if left and (machine or spec.execution.executor == "ray") else 0.0
    peak = max((item.peak_memory_bytes for item in items), default=0)
    trials = sorted((item.seconds / item.trials for item in left for _ in range(item.trials)), reverse=True)
    parallel, estimated = setup.parallel, ""
    if machine:
        gpus = machine.gpus * machine.nodes
        share = spec.execution.gpus or preflight.share_of(max(0, peak - PROCESS_BYTES), machine.memory)
        at_once = max(1, min(int(1 / share), -(-len(trials) // gpus)))
        trials = [each * max(1.0, at_once / TWO_ON_ONE) for each in trials]
        parallel, estimated = gpus * at_once, machine.note(at_once)
    free = [starting] * parallel  # a heap of the times at which workers become free
    for each in trials:
        heapq.heapreplace(free, free[0] + each)
    fields = {param.name for part in search.parts for param in part.space.params} if search else set[str]()
    # a search of rates finds its own
    sources = "" if "optim.lr" in fields else rates.note(spec, study.cells)
    compete = [item.run for item in left if item.run.learns]
    compete = compete if search is not None or len(compete) > 1 else []
    coarse = preflight.coarse_sets(compete, loaded, spec.report.metric)
    further = tuple(spec.declared_looks())
    left_out = Unasked(store, spec.node, [row.cell for row in asked.table.rows.values()]).note()
    reasons = () if machine else tuple(_reasons(peak, setup))
    missing = loaded.missing([item.run for item in left])
    encoded = sum(n for n, _ in images.values()), sum(seconds for _, seconds in images.values())
    return StudyPlan(
        tuple(items), max(free), parallel, reasons, sources, coarse, further, left_out, missing, estimated, *encoded
    )


def _there(spec: Study, folder: Path) -> ExecutionContext:
    """The setup of a study on another machine with GPUs, where nothing is cached."""
    return ExecutionContext(folder, folder / "not here", spec.execution, device="cuda", address="auto")


def _items(spec: Study, asked: Asked) -> list[Item]:
    """The items of the plan: cells with their missing seeds and status, and the trials of each search."""
    table, cost, items = asked.table, halving.resolved(spec), list[Item]()
    design = table.design

    def add(row: Row) -> None:
        missing, cell = _missing(row), row.cell
        all_missing = len(missing) == len(design.first_seeds_of(cell))
        status = "stale" if missing and row.stale else "new" if all_missing else "partial" if missing else "done"
        items.append(Item(cell.label, status, missing, cell.run, why=", ".join(row.stale if missing else ())))

    for row in table.rows.values():
        if not row.cell.searched:
            add(row)
    for search in asked.searches:
        trials = rows_of(table, search)
        over = sum(not _missing(row) for row in trials)
        left = len(trials) - over + (0 if str(search) in asked.exhausted else remaining(table, search))
        items += [Item(search.name, "done", [], search.run, over)] if over else []
        if left:
            status, one = "partial" if over else "new", halving.expected_cost(cost, search.run, len(design.seeds))
            items.append(Item(search.name, status, spec.seed_list(), search.run, left, one))
        confirmed = [row for row in table.rows.values() if row.cell.search == search.label and row.cell.role != "trial"]
        if design.confirm and left and not confirmed:  # of the chosen points, at most, and the published one
            most = 1 + min(len(search.confirming[0]), len(trials) + left)
            items.append(Item(f"{search.name}, confirmed", "new", design.confirm, search.run, most))
        for row in confirmed:
            add(row)
    return items


def _missing(row: Row) -> list[int]:
    """The seeds of a cell that would run; none of a trial that waits at its rung."""
    now = row.standing
    if now.state is CellState.PAUSED:
        return []
    return list(dict.fromkeys(seed for leg in now.left for seed in leg.seeds))


def _reasons(peak: int, setup: ExecutionContext) -> list[str]:
    """The reasons why trials with this peak memory cannot run on this machine."""
    if setup.address is None and setup.device == "cpu" and peak * setup.parallel > bounds.SHARE * memory():
        return [
            f"{counted(setup.parallel, 'trial')} in parallel would take {size(peak * setup.parallel)} of memory, but "
            f"this machine has {size(memory())}. Set "
            f"execution.parallel={max(1, int(bounds.SHARE * memory() // peak))}, or execution.block to train fewer "
            "clients in parallel."
        ]
    return []
