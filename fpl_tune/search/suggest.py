"""The search in one cell of the axes: the next trial, and the results that the sampler receives.

Without `search.batch` a trial is suggested as soon as a slot is free. With it, trials come in batches of that size and
are reported in the order of their numbers: suggestions then depend neither on the machine nor on the order of ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from fpl_tune import config
from fpl_tune.config import RunSpec, SearchSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import derive
from fpl_tune.search.objective import parse_constraint
from fpl_tune.search.pruning import standard_error
from fpl_tune.search.record import TrialRecord
from fpl_tune.search.samplers import SamplerFactory, directions_of, in_memory
from fpl_tune.search.space import Space, stored
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, Composer, label
from fpl_tune.study.results import aggregate, figure
from fpl_tune.study.status import Status

Results = Mapping[int, tuple[Mapping[str, Any], Sequence[Record]]]
"""Seed -> (result, history)."""


@dataclass
class CellSearch:
    """The search in one cell of the axes.

    Raises:
        ConfigError: the space has a field that the run lacks, or the sampler cannot search it.
    """

    search: SearchSpec
    samplers: SamplerFactory
    rule: str
    composer: Composer
    varied: dict[str, Any]
    """The cell of the axes."""
    space: Space
    node: dict[str, Any]
    """The run that the space varies, as a plain dict."""
    numbers: range
    """Numbers of its cells in the study."""
    key: str
    """Name in the database."""
    pending: dict[int, FrozenTrial | None] = field(default_factory=dict)
    """Running trials, and the verdicts on those that are over but not reported yet."""
    paused: dict[int, float] = field(default_factory=dict)
    """Paused trials -> training seconds so far. Batches do not wait for them."""

    def __post_init__(self) -> None:
        for param in self.space.params:
            known = {**self.varied, **{name: values[0] for name, values in param.when.items()}}
            try:
                self.composer.at({**known, param.name: param.nearest(None)})
            except ConfigError as problem:
                if "no field" in str(problem):
                    raise ConfigError(f"search.space.{param.name}: {problem}") from None
        points = (self.space.complete(point, self.node, self.varied) for point in self.space.published)
        if self.search.sampler == "grid":
            points = self.space.grid(self.node, self.varied)
        self._points = list({repr(point): point for point in points}.values())
        self.samplers.probe(self.space, self.node, self.varied)

    def holds(self, cell: Cell) -> bool:
        """Whether a cell is a trial of this search."""
        return cell.role == "trial" and all(cell.varied.get(name) == value for name, value in self.varied.items())

    def draw(self) -> list[RunSpec]:
        """Draws a run for each trial: the fixed points, then random points. Refused points are left out."""
        study = in_memory(directions_of(self.search))
        study.sampler = RandomSampler(seed=derive("draw", self.search.seed, self.key) % 2**32)
        drawn = (self.space.suggest(study.ask(), self.node, self.varied) for _ in range(2 * self.total))
        runs = self._runs(itertools.chain(self._points[: self.total], drawn))
        return list(itertools.islice(runs, self.total)) or [self.composer.at(self.varied)]

    @property
    def published(self) -> set[str]:
        """Ids of the cells of the published points."""
        return {config.identity(run) for run in self._runs(self._points if self.search.sampler != "grid" else ())}

    def _runs(self, points: Iterable[Mapping[str, Any]]) -> Iterator[RunSpec]:
        """The runs of points, without those that the method refuses."""
        for point in points:
            with suppress(ConfigError):
                yield self.composer.at({**self.varied, **point})

    # -- suggestions -----------------------------------------------------------------------------------------

    def open(self, storage: BaseStorage) -> list[tuple[int, Cell]]:
        """Reads the trials that were suggested before: their numbers and cells."""
        self.record = TrialRecord(storage, self.key, directions_of(self.search))
        self.pending = {trial.number: None for trial in self.record.trials() if trial.state == TrialState.RUNNING}
        cells = []
        for trial in self.record.trials():
            cell = self._cell(trial.number, trial.user_attrs["params"])
            if cell is not None:
                cells.append((trial.number, cell))
            elif trial.number in self.pending:
                self._settle(trial.number, create_trial(state=TrialState.FAIL))
        return cells

    @property
    def suggested(self) -> int:
        """Trials suggested so far."""
        return len(self.record.trials())

    @property
    def total(self) -> int:
        return len(self._points) if self.search.sampler == "grid" else self.search.trials

    @property
    def remaining(self) -> int:
        return 0 if self._spent() else max(0, self.total - self.suggested)

    @property
    def unfinished(self) -> int:
        """Trials that are not over."""
        return self.remaining + len(self.pending) + len(self.paused)

    def _spent(self) -> bool:
        if self.search.seconds is None:
            return False
        used = sum(float(t.user_attrs.get("seconds", 0.0)) for t in self.record.trials() if t.state.is_finished())
        return used + sum(self.paused.values()) >= self.search.seconds

    @property
    def room(self) -> int:
        """Trials that may be suggested now: those missing from the open batch, or those of the next one."""
        batch, suggested = self.search.batch, self.suggested
        if batch is None or not self.remaining:
            return self.remaining
        whole = -(-suggested // batch) if self.pending else suggested // batch + 1
        return max(0, min(self.total, whole * batch) - suggested)

    def suggest(self) -> tuple[int, Cell] | None:
        """Suggests the next trial; None while none may be. Combinations that the method refuses fail and count."""
        while self.room:
            index = self.suggested
            number, params = self.record.suggest(
                self.samplers.make(index, self.key),
                lambda trial: self.space.suggest(trial, self.node, self.varied),
                stored(self._points[index]) if index < len(self._points) else None,
            )
            self.pending[number] = None
            cell = self._cell(number, params)
            if cell is not None:
                return number, cell
            self._settle(number, create_trial(state=TrialState.FAIL))
        return None

    def _cell(self, number: int, params: Mapping[str, Any]) -> Cell | None:
        """The cell of a trial; None where the method refuses the combination."""
        varied = {**self.varied, **params}
        try:
            run = self.composer.at(varied)
        except ConfigError:
            return None
        place = self.numbers[number]
        return Cell(config.identity(run), place, label(varied), "trial", varied, run)

    # -- results ---------------------------------------------------------------------------------------------

    def report(self, number: int, cell: Cell, results: Results) -> None:
        """Reports a trial that is over. With batches the sampler receives it when its batch is complete."""
        verdict = self.verdict(cell, results)
        if self.paused.pop(number, None) is None:
            self._settle(number, verdict)
        else:
            self._finish(number, verdict)

    def pause(self, number: int, seconds: float) -> None:
        """Pauses a trial at its rung. It counts as running until it is over."""
        self.pending.pop(number, None)
        self.paused[number] = seconds
        self._flush()

    def _settle(self, number: int, verdict: FrozenTrial) -> None:
        self.pending[number] = verdict
        self._flush()

    def _flush(self) -> None:
        """Reports the trials whose batch is complete; without batches, all that are over."""
        done = {number: verdict for number, verdict in self.pending.items() if verdict is not None}
        if self.search.batch is not None:
            full = self.suggested % self.search.batch == 0 or self.suggested >= self.total or self._spent()
            if len(done) < len(self.pending) or not full:
                return
        for number in sorted(done):
            del self.pending[number]
            self._finish(number, done[number])

    def _finish(self, number: int, verdict: FrozenTrial) -> None:
        self.record.report(number, verdict, self.samplers.make(number, self.key))

    def verdict(self, cell: Cell, results: Results) -> FrozenTrial:
        """What the sampler receives of a cell, as a trial without parameters: figures of the round of the rule."""
        states = {Status(result["status"]) for result, _ in results.values()}
        kept = [history for _, history in results.values() if history]
        attrs: dict[str, Any] = {
            "cell": cell.id,
            "seconds": math.fsum(float(history[-1]["time/seconds"]) for history in kept),
            "seeds": sorted(seed for seed, (_, history) in results.items() if history),
        }
        constraints = {text: parse_constraint(text) for text in self.search.constraints}
        figures = {
            name: aggregate([figure(history, name, self.rule) for history in kept])
            for name in sorted({*self.search.objectives, *(c.metric for c in constraints.values())})
        }
        if Status.FAILED in states or any(math.isnan(found["mean"]) for found in figures.values()):
            return create_trial(state=TrialState.FAIL, user_attrs=attrs)
        attrs["sem"] = {name: standard_error(name, found["sem"], kept) for name, found in figures.items()}
        attrs["n"] = len(kept)
        if constraints:
            attrs["constraints"] = {text: c.excess(figures[c.metric]["mean"]) for text, c in constraints.items()}
        values = [figures[name]["mean"] for name in self.search.objectives]
        early = bool(states & {Status.PRUNED, Status.DIVERGED})
        rounds: dict[int, float] = {}
        if len(values) == 1:
            rounds = _by_round(self.search.objectives[0], kept)
            if early:  # Optuna takes the last round's value for the trial's
                rounds[min(map(len, kept))] = values[0]
        return create_trial(
            state=TrialState.PRUNED if early else TrialState.COMPLETE,
            values=None if early else values,
            intermediate_values=rounds,
            user_attrs=attrs,
        )


def _by_round(metric: str, histories: Sequence[Sequence[Record]]) -> dict[int, float]:
    """Mean of a metric over seeds after each round in which all of them have it."""
    found: dict[int, list[float]] = {}
    for history in histories:
        for record in history:
            if metric in record and math.isfinite(record[metric]):
                found.setdefault(int(record["round"]), []).append(float(record[metric]))
    return {number: math.fsum(v) / len(v) for number, v in sorted(found.items()) if len(v) == len(histories)}
