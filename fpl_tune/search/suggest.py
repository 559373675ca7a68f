"""The search in one cell of the axes: the next trial, and the results that the sampler receives.

Without `search.batch` a trial is suggested as soon as a slot is free. With it, trials come in batches of that size and
are reported in the order of their numbers: suggestions then depend neither on the machine nor on the order of ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from fpl_tune import config
from fpl_tune.config import RunSpec, SearchSpec
from fpl_tune.errors import ConfigError
from fpl_tune.search.objective import Constraint
from fpl_tune.search.pruning import standard_error
from fpl_tune.search.record import WARM, TrialRecord, Verdict, verdict_of
from fpl_tune.search.samplers import SamplerFactory
from fpl_tune.search.space import Space
from fpl_tune.study.cells import Cell, Composer, label
from fpl_tune.study.results import aggregate, figure
from fpl_tune.study.status import Status
from fpl_tune.trial import Record

Results = Mapping[int, tuple[Mapping[str, Any], Sequence[Record]]]
"""Seed -> (result, history)."""


@dataclass
class Part:
    """The search in one cell of the axes."""

    search: SearchSpec
    samplers: SamplerFactory
    rule: str
    constraints: tuple[Constraint, ...]
    composer: Composer
    varied: dict[str, Any]
    """The cell of the axes."""
    space: Space
    node: dict[str, Any]
    """The run that the space varies, as a plain dict."""
    index: int
    of: int
    """Number of parts."""
    first: int
    """Cells before those of the search."""
    key: str
    """Name in the database."""
    warm: Sequence[FrozenTrial] = ()
    """Trials of other studies."""
    pending: dict[int, Verdict | None] = field(default_factory=dict)
    """Running trials, and the verdict of those that are over but not reported yet."""
    paused: dict[int, float] = field(default_factory=dict)
    """Paused trials -> training seconds so far. Batches do not wait for them."""
    used: float = 0.0
    """Seconds of the trials that are over."""
    suggested: int = 0
    """Trials suggested so far."""

    def check(self) -> None:
        """Raises `ConfigError` for a field that the run lacks, or a space that the sampler cannot search."""
        for param in self.space.params:
            value = param.choices[0] if param.choices else param.distribution.low  # type: ignore[union-attr]
            known = {**self.varied, **{f: v[0] for f, v in param.when}}
            try:
                self.composer.at({**known, param.name: value})
            except ConfigError as problem:
                if "no field" in str(problem):
                    raise ConfigError(f"search.space.{param.name}: {problem}") from None
        complete = (self.space.complete(point, self.node, self.varied) for point in self.space.published)
        self._points = list({repr(point): point for point in complete}.values())
        if self.search.sampler == "grid":
            self._points = list(self.space.grid(self.node, self.varied))
        self.samplers.probe(self.space, self.node, self.varied)

    def holds(self, cell: Cell) -> bool:
        """Whether a cell is a trial of this search."""
        return cell.role == "trial" and all(cell.varied.get(name) == value for name, value in self.varied.items())

    def open(self, storage: BaseStorage | None) -> None:
        """Reads the trials so far."""
        self.record = TrialRecord(storage, self.key, self.samplers.directions)
        if self.warm and not self.record.trials():
            self.record.add(self.warm)
        self._offset = sum(WARM in trial.user_attrs for trial in self.record.trials())
        self.suggested = len(self.record.trials()) - self._offset
        for frozen in self.record.trials():
            if frozen.state == TrialState.RUNNING:
                self.pending[frozen.number] = None
            elif WARM not in frozen.user_attrs:
                self.used += float(frozen.user_attrs.get("seconds", 0.0))

    def known(self) -> list[tuple[int, Cell]]:
        """Trials that were suggested before, by number."""
        cells = []
        for frozen in self.record.trials()[self._offset :]:
            cell = self._cell(frozen.number, frozen.user_attrs["params"])
            if cell is not None:
                cells.append((frozen.number, cell))
            elif frozen.number in self.pending:
                self._settle(frozen.number, Verdict(TrialState.FAIL))
        return cells

    def draw(self) -> list[RunSpec]:
        """Draws a run for each trial: the fixed points, then random points. Refused points are left out."""
        random = TrialRecord(None, self.key, self.samplers.directions)
        factory = SamplerFactory(SearchSpec(sampler="random", seed=self.search.seed))
        made: list[RunSpec] = []
        for number in range(2 * self.total):
            point = self._points[number] if number < len(self._points) else None
            if point is None:
                _, point = random.suggest(factory.make(number, self.key), self._suggest)
            with suppress(ConfigError):
                made.append(self.composer.at({**self.varied, **point}))
            if len(made) == self.total:
                break
        return made or [self.composer.at(self.varied)]

    @property
    def published(self) -> set[str]:
        """Ids of the cells of the published points."""
        found = set()
        for point in self._points if self.search.sampler != "grid" else ():
            with suppress(ConfigError):
                found.add(config.identity(self.composer.at({**self.varied, **point})))
        return found

    @property
    def total(self) -> int:
        return len(self._points) if self.search.sampler == "grid" else self.search.trials

    @property
    def remaining(self) -> int:
        return 0 if self._spent() else max(0, self.total - self.suggested)

    @property
    def left(self) -> int:
        """Trials that are not over."""
        return self.remaining + len(self.pending) + len(self.paused)

    def _spent(self) -> bool:
        limit = self.search.seconds
        return limit is not None and self.used + sum(self.paused.values()) >= limit

    @property
    def room(self) -> int:
        """Trials that may be suggested now: those missing from the open batch, or those of the next one."""
        if self.search.batch is None or not self.remaining:
            return self.remaining
        batch = self.search.batch
        whole = -(-self.suggested // batch) if self.pending else self.suggested // batch + 1
        return max(0, min(self.total, whole * batch) - self.suggested)

    def suggest(self) -> tuple[int, Cell] | None:
        """Suggests the next trial; None while none may be. Combinations that the method refuses fail and count."""
        while self.room:
            index = self.suggested
            number, params = self._draw(self.record, index)
            self.suggested += 1
            self.pending[number] = None
            cell = self._cell(number, params)
            if cell is not None:
                return number, cell
            self._settle(number, Verdict(TrialState.FAIL))
        return None

    def _draw(self, record: TrialRecord, index: int) -> tuple[int, dict[str, Any]]:
        """The next trial of a record: a fixed point, or what the sampler suggests."""
        point = self.space.stored(self._points[index]) if index < len(self._points) else None
        return record.suggest(self.samplers.make(index, self.key), self._suggest, point)

    def _suggest(self, trial: Any) -> dict[str, Any]:
        return self.space.suggest(trial, self.node, self.varied)

    def _cell(self, number: int, params: Mapping[str, Any]) -> Cell | None:
        """The cell of a trial; None where the method refuses the combination."""
        varied = {**self.varied, **params}
        try:
            run = self.composer.at(varied)
        except ConfigError:
            return None
        place = self.first + self.index + (number - self._offset) * self.of
        return Cell(config.identity(run), place, label(varied), "trial", varied, run)

    # -- results ---------------------------------------------------------------------------------------------

    def report(self, number: int, cell: Cell, results: Results) -> None:
        """Reports a trial that is over. With batches the sampler receives it when its batch is complete."""
        verdict = self.verdict(cell, results)
        if number in self.paused:
            del self.paused[number]
            self._finish(number, verdict)
        else:
            self._settle(number, verdict)

    def pause(self, number: int, seconds: float) -> None:
        """Pauses a trial at its rung. It counts as running until it is over."""
        self.pending.pop(number, None)
        self.paused[number] = seconds
        self._flush()

    def _settle(self, number: int, verdict: Verdict) -> None:
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

    def _finish(self, number: int, verdict: Verdict) -> None:
        self.used += verdict.seconds
        self.record.report(number, verdict, self.samplers.make(number - self._offset, self.key))

    def verdict(self, cell: Cell, results: Results) -> Verdict:
        """The verdict on a cell from its results, read at the round that the study's rule chooses."""
        states = {Status(result["status"]) for result, _ in results.values()}
        histories = {seed: history for seed, (_, history) in results.items() if history}
        kept = list(histories.values())
        seconds = math.fsum(float(history[-1]["time/seconds"]) for history in kept)
        attrs: dict[str, Any] = {"cell": cell.id, "seconds": seconds, "seeds": sorted(histories)}
        if not kept or Status.FAILED in states:
            return Verdict(TrialState.FAIL, attrs=attrs, seconds=seconds)
        figures = {
            name: aggregate([figure(history, name, self.rule) for history in kept])
            for name in {*self.search.objectives, *(c.metric for c in self.constraints)}
        }
        attrs["sem"] = {name: standard_error(name, f["sem"], kept) for name, f in sorted(figures.items())}
        attrs["n"] = len(kept)
        constraints = {
            text: c.excess(figures[c.metric]["mean"])
            for text, c in zip(self.search.constraints, self.constraints, strict=True)
        }
        if constraints:
            attrs |= {"excess": list(constraints.values()), "constraints": constraints}
        values = [figures[name]["mean"] for name in self.search.objectives]
        if any(math.isnan(v) for v in values):
            return Verdict(TrialState.FAIL, attrs=attrs, seconds=seconds)
        early = bool(states & {Status.PRUNED, Status.DIVERGED})
        rounds = _by_round(self.search.objectives[0], kept)
        if early:  # the sampler takes the last round's value for the trial's
            rounds[min(len(history) for history in kept)] = values[0]
        state = TrialState.PRUNED if early else TrialState.COMPLETE
        return Verdict(state, values, rounds, constraints, attrs, seconds)

    def replay(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Reproduces every suggestion from the record: yields the recorded and the reproduced parameters."""
        trials = self.record.trials()
        again = TrialRecord(None, self.key, self.samplers.directions)
        again.add(trials[: self._offset])
        results = sorted(
            (t for t in trials if t.state.is_finished() and "reported_as" in t.user_attrs),
            key=lambda t: t.user_attrs["reported_as"],
        )
        for index, trial in enumerate(trials[self._offset :]):
            for over in results[again.reported : trial.user_attrs["reported_before"]]:
                again.report(over.number, verdict_of(over), self.samplers.make(over.number - self._offset, self.key))
            _, params = self._draw(again, index)
            yield trial.user_attrs["params"], params


def _by_round(metric: str, histories: Sequence[Sequence[Record]]) -> dict[int, float]:
    """Mean of a metric over seeds after each round in which all of them have it."""
    found: dict[int, list[float]] = {}
    for history in histories:
        for record in history:
            if metric in record and math.isfinite(record[metric]):
                found.setdefault(int(record["round"]), []).append(float(record[metric]))
    return {number: math.fsum(v) / len(v) for number, v in sorted(found.items()) if len(v) == len(histories)}
