"""What a study would run, what it costs, and whether it can, before anything runs."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpl_tune.clip import Towers
from fpl_tune.config import RunSpec, StudySpec
from fpl_tune.data import Dataset
from fpl_tune.study import preflight
from fpl_tune.study.cells import Cell, expand
from fpl_tune.study.fingerprints import fingerprints, why_stale
from fpl_tune.study.job import Setup
from fpl_tune.study.profile import Cost, Profile, cost_key, measure
from fpl_tune.study.resources import memory, seconds_of, setup_of
from fpl_tune.study.runner import check_seeds
from fpl_tune.study.search import Search
from fpl_tune.study.store import Store
from fpl_tune.study.traffic import bytes_of
from fpl_tune.trial import rounds_of

RAY_SECONDS = 6.0
"""Starting and ending a Ray of our own."""
_MEMORY_SHARE = 0.9  # of the machine's memory that trials may fill
_PROFILES = 12  # at most so many kinds of trials are measured; others are taken from the nearest of their method


@dataclass(frozen=True)
class Item:
    """One cell of the plan."""

    label: str
    status: str
    """done, new, stale, or partly (some seeds are missing)"""
    trials: int
    """Times it is run: 1, or the trials of a search inside it."""
    seeds: int
    """Seeds that are missing."""
    seconds: float
    bytes_up: int
    bytes_down: int
    peak_memory_bytes: int
    fits: bool
    """It ends within the budget."""


@dataclass(frozen=True)
class Plan:
    """All of it; see `totals`."""

    items: tuple[Item, ...]
    seconds: float
    """Wall time of what is left."""
    parallel: int
    gpus: float
    reasons: tuple[str, ...]
    """Why it is infeasible."""

    @property
    def feasible(self) -> bool:
        return not self.reasons

    def totals(self) -> dict[str, Any]:
        """Numbers of the whole plan; seconds and bytes are of what is left to run."""
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
            "dropped": [item.label for item in left if not item.fits],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell."""
        return [
            {
                "cell": item.label,
                "status": item.status,
                "trials": item.trials,
                "seeds": item.seeds,
                "seconds": round(item.seconds, 1),
                "up MB": round(item.bytes_up / 1e6, 3),
                "down MB": round(item.bytes_down / 1e6, 3),
                "memory MB": round(item.peak_memory_bytes / 1e6),
                **({} if item.fits else {"budget": "dropped"}),
            }
            for item in self.items
        ]

    def sentence(self) -> str:
        """The totals in words."""
        t = self.totals()
        text = (
            f"{t['cells']} cells, {t['done']} done; {t['seconds']:.0f} s with {self.parallel} at once, "
            f"{t['bytes_up'] / 1e6:.2f} MB up and {t['bytes_down'] / 1e6:.2f} MB down, "
            f"{t['peak_memory_bytes'] / 1e6:.0f} MB of memory a trial."
        )
        if t["dropped"]:
            text += f" The budget drops {len(t['dropped'])}: {', '.join(t['dropped'][:5])}."
        return " ".join([text, *self.reasons])


def make_plan(spec: StudySpec, node: dict[str, Any], *, root: Path) -> Plan:
    """Plans a study: what is missing, measured costs, exact bytes.

    Raises:
        ConfigError: the study cannot run whatever the machine.
        EnvironmentProblem: the machine lacks data or a GPU that is asked for.
    """
    check_seeds(spec)
    budget = seconds_of(spec.budget)
    setup = setup_of(spec, root / spec.name)
    store = Store(root, spec.name)
    work = _work(spec, node, store)
    todo = [(cell, trials, seeds) for cell, trials, seeds, _ in work if seeds]
    sent = _Bytes(preflight.check([cell.run for cell, _, _ in todo], setup))
    profile = Profile({}, 0.0)
    if todo:
        profile = measure(_chosen([cell.run for cell, _, _ in todo]), spec.seed_list(), setup)
    items, clock = [], _Clock(setup, profile, spec.execution.executor == "ray")
    for cell, trials, seeds, status in work:
        if not seeds:
            items.append(Item(cell.label, status, trials, 0, 0.0, 0, 0, 0, True))
            continue
        cost = _nearest(profile.costs, cell.run)
        seconds = cost.seconds(rounds_of(cell.run)) * len(seeds) / len(spec.seed_list())
        end = max(clock.add(seconds) for _ in range(trials))
        up, down = (trials * sum(part) for part in zip(*(sent.of(cell.run, s) for s in seeds), strict=True))
        fits = budget is None or end <= budget
        items.append(
            Item(cell.label, status, trials, len(seeds), trials * seconds, up, down, cost.peak_memory_bytes, fits)
        )
    return Plan(tuple(items), clock.end, setup.parallel, setup.gpus, tuple(_reasons(items, setup)))


def _work(spec: StudySpec, node: dict[str, Any], store: Store) -> list[tuple[Cell, int, list[int], str]]:
    """Cells, how often each runs, the seeds that are missing, and the state."""
    search = Search.plan(spec, node)
    if search is not None:
        inner = [(cell, search.trials_of(cell)) for cell in expand(spec, node) if cell.role == "cell"]
        cells = [*inner, *((cell, 1) for cell in search.references)]
    else:
        cells = [(cell, 1) for cell in expand(spec, node)]
    found = []
    for cell, trials in cells:
        stored = store.fingerprints(cell)
        stale = bool(stored and store.seeds(cell) and why_stale(stored, fingerprints(cell.run)))
        searched = search is not None and cell.role == "cell"
        missing = [s for s in spec.seed_list() if stale or searched or not store.finished(cell, s)]
        state = "done" if not missing else "stale" if stale else "new"
        if state == "new" and len(missing) < len(spec.seed_list()):
            state = "partly"
        found.append((cell, trials, missing, state))
    return found


def _chosen(runs: Sequence[RunSpec]) -> dict[str, RunSpec]:
    """The runs that are measured: every kind once, the most frequent first, at most `_PROFILES`."""
    kinds: dict[str, RunSpec] = {}
    for run in runs:
        kinds.setdefault(cost_key(run), run)
    often = Counter(cost_key(run) for run in runs)
    methods: dict[str, str] = {}
    for key in sorted(kinds, key=lambda k: -often[k]):
        methods.setdefault(_method(kinds[key]), key)
    order = [*methods.values(), *(k for k in kinds if k not in methods.values())]
    return {key: kinds[key] for key in order[: max(_PROFILES, len(methods))]}


def _method(run: RunSpec) -> str:
    inner = run.method.get("inner")
    return f"{run.method['name']}/{inner['name']}" if isinstance(inner, dict) else str(run.method["name"])


def _nearest(costs: dict[str, Cost], run: RunSpec) -> Cost:
    """The cost of a run's own kind, or of the measured kind whose key begins most alike."""
    key = cost_key(run)
    if key in costs:
        return costs[key]
    words = set(key.split(","))
    return costs[max(costs, key=lambda k: len(words & set(k.split(","))))]


class _Clock:
    """When jobs end that are handed out in order to whoever is free."""

    def __init__(self, setup: Setup, profile: Profile, ray: bool) -> None:
        ready = profile.boot + RAY_SECONDS / 2 if ray else 0.0
        self._free = [ready] * setup.parallel
        self._after = RAY_SECONDS / 2 if ray else 0.0

    def add(self, seconds: float) -> float:
        """Hands out a job; returns its end."""
        end = heapq.heappop(self._free) + seconds
        heapq.heappush(self._free, end)
        return end

    @property
    def end(self) -> float:
        return max(self._free) + self._after if max(self._free) > 0 else 0.0


class _Bytes:
    """Bytes by kind of run and seed, each computed once."""

    def __init__(self, loaded: preflight.Loaded) -> None:
        self._loaded = loaded
        self._known: dict[tuple[str, int, int], tuple[int, int]] = {}

    def of(self, run: RunSpec, seed: int) -> tuple[int, int]:
        key = (cost_key(run), rounds_of(run), seed)
        if key not in self._known:
            towers: Towers = self._loaded.towers_of(run)
            dataset: Dataset = self._loaded.dataset_of(run)
            self._known[key] = bytes_of(run, seed, towers, dataset)
        return self._known[key]


def _reasons(items: Sequence[Item], setup: Setup) -> list[str]:
    """Why the plan cannot run on this machine."""
    peak = max((item.peak_memory_bytes for item in items), default=0)
    if setup.address is None and peak * setup.parallel > _MEMORY_SHARE * memory():
        fits = max(1, int(_MEMORY_SHARE * memory() // peak))
        return [
            f"{setup.parallel} trials at once need {peak * setup.parallel / 1e9:.1f} GB of memory, but this machine "
            f"has {memory() / 1e9:.1f} GB. Set execution.parallel={fits}, or execution.block to train fewer clients "
            "at once."
        ]
    return []
