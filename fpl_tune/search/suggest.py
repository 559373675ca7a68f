"""One cell of the axes searched with Optuna. The only file that imports optuna.

Suggestions are asked for in batches of fixed size and told in the order of their numbers, and the sampler is seeded
anew for every trial: what is suggested depends on figures alone, neither on who finished first nor on kills.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from fpl_tune import config
from fpl_tune.config import RunSpec, SearchSpec
from fpl_tune.engine import derive
from fpl_tune.errors import ConfigError
from fpl_tune.search.objective import Constraint
from fpl_tune.search.samplers import NAMED_CONSTRAINTS, outward, sample, sampler
from fpl_tune.search.space import Space
from fpl_tune.study.cells import Cell, Composer, label
from fpl_tune.study.results import MAXIMISED, figure
from fpl_tune.study.statistics import aggregate
from fpl_tune.study.status import Status
from fpl_tune.trial import Record

Results = Mapping[int, tuple[Mapping[str, Any], Sequence[Record]]]
"""Seed -> (result, history)."""


@dataclass
class Part:
    """The search in one cell of the axes."""

    search: SearchSpec
    rule: str
    constraints: tuple[Constraint, ...]
    composer: Composer
    varied: dict[str, Any]
    space: Space
    node: dict[str, Any]
    index: int
    of: int
    first: int = 0
    key: str = ""
    pending: dict[int, _Verdict | None] = field(default_factory=dict)
    """Trials of the open batch by number; what to tell, once it is known."""
    used: float = 0.0
    """Seconds of the trials that are over."""

    def check(self) -> None:
        """Raises `ConfigError` for a space with a field that the run does not have."""
        point = {p.name: p.choices[0] if p.choices else int(p.low) if p.whole else p.low for p in self.space.params}
        for name, value in point.items():
            known = {**self.varied, **{f: v[0] for p in self.space.params if p.name == name for f, v in p.when}}
            try:
                self.composer.at({**known, name: value})
            except ConfigError as problem:
                if "no field" in str(problem):
                    raise ConfigError(f"search.space.{name}: {problem}") from None
        self._grid = list(self.space.grid(self.node, self.varied)) if self.search.sampler == "grid" else []

    def open(self, storage: optuna.storages.BaseStorage) -> None:
        way = optuna.study.StudyDirection
        directions = [way.MAXIMIZE if name in MAXIMISED else way.MINIMIZE for name in self.search.objectives]
        self.study = optuna.create_study(
            storage=storage, study_name=self.key, directions=directions, load_if_exists=True
        )
        self._asked = 0
        self._trials: dict[int, optuna.trial.Trial] = {}
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state == TrialState.WAITING:
                continue
            self._asked += 1
            self.used += float(frozen.user_attrs.get("seconds", 0.0))
            if frozen.state == TrialState.RUNNING:
                self.pending[frozen.number] = None
                self.study.sampler = self._sampler(frozen.number)
                self._trials[frozen.number] = trial = optuna.trial.Trial(self.study, frozen._trial_id)  # pyright: ignore[reportPrivateUsage]
                if "params" not in frozen.user_attrs:
                    self._suggest(trial)
        if not self.study.get_trials(deepcopy=False):
            for point in self._grid or self.space.published:
                self.study.enqueue_trial({name: outward(value) for name, value in point.items()})

    def known(self) -> list[tuple[int, Cell]]:
        """Trials that were asked for before, by number."""
        cells = []
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state != TrialState.WAITING and "params" in frozen.user_attrs:
                cell = self._cell(frozen.number, frozen.user_attrs["params"])
                if cell is not None:
                    cells.append((frozen.number, cell))
                elif frozen.number in self.pending:
                    self._settle(frozen.number, _Verdict(TrialState.FAIL))
        return cells

    def draw(self) -> list[RunSpec]:
        """Runs such as the search will try: the published ones, then points drawn at random; none that is refused."""
        rng, made = random.Random(self.key), []
        points: list[dict[str, Any]] = list(self._grid or self.space.published)
        while len(points) < 2 * self.total:
            points.append(self.space.draw(rng, self.node, self.varied))
        for point in points:
            with suppress(ConfigError):
                made.append(self.composer.at({**self.varied, **point}))
            if len(made) == self.total:
                break
        return made or [self.composer.at(self.varied)]

    @property
    def total(self) -> int:
        return len(self._grid) or self.search.trials

    @property
    def unasked(self) -> int:
        return 0 if self._spent() else max(0, self.total - self._asked)

    def _spent(self) -> bool:
        return self.search.seconds is not None and self.used >= self.search.seconds

    def ask(self) -> list[tuple[int, Cell]]:
        """The trials that are missing from the open batch, or the next batch if there is none."""
        made: list[tuple[int, Cell]] = []
        while not made and self._asked < self._until() and not self._spent():
            for _ in range(self._until() - self._asked):
                number = self._asked
                self.study.sampler = self._sampler(number)
                trial = self.study.ask()
                params = self._suggest(trial)
                self._asked += 1
                self._trials[trial.number] = trial
                self.pending[trial.number] = None
                cell = self._cell(trial.number, params)
                if cell is not None:
                    made.append((trial.number, cell))
                else:
                    self._settle(trial.number, _Verdict(TrialState.FAIL))
        return made

    def _until(self) -> int:
        """Trials that may have been asked for: the open batch's, or those of one batch more."""
        batch = self.search.batch
        whole = -(-self._asked // batch) if self.pending else self._asked // batch + 1
        return min(self.total, whole * batch)

    def _suggest(self, trial: optuna.trial.Trial) -> dict[str, Any]:
        """Samples the active parameters and notes them with the trial."""
        chosen: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ranges may have been widened since earlier trials
            for param in self.space.params:
                if self.space.active({**self.varied, **chosen}, self.node, param):
                    chosen[param.name] = sample(trial, param)
        trial.set_user_attr("params", chosen)
        return chosen

    def _sampler(self, number: int) -> BaseSampler:
        seed = derive("search", self.search.seed, self.key, number) % 2**32
        return sampler(self.search.sampler, seed, trials=self.total, constrained=bool(self.constraints))

    def _cell(self, number: int, params: Mapping[str, Any]) -> Cell | None:
        """The cell of a trial; None where the method refuses the combination."""
        varied = {**self.varied, **params}
        try:
            run = self.composer.at(varied)
        except ConfigError:
            return None
        place = self.first + self.index + number * self.of
        return Cell(config.identity(run), place, label(varied), "trial", varied, run)

    def tell(self, number: int, cell: Cell, results: Results) -> None:
        """What a trial gave; told to Optuna when the batch is complete, in the order of numbers."""
        self._settle(number, self._verdict(cell, results))

    def _settle(self, number: int, verdict: _Verdict) -> None:
        self.pending[number] = verdict
        done = [v for v in self.pending.values() if v is not None]
        full = self._asked % self.search.batch == 0 or self._asked >= self.total
        if len(done) < len(self.pending) or not (full or self._spent()):
            return
        for n in sorted(self.pending):
            settled = self.pending[n]
            assert settled is not None
            self.used += settled.seconds
            self._tell(n, settled)
        self.pending.clear()

    def _verdict(self, cell: Cell, results: Results) -> _Verdict:
        states = {Status(result["status"]) for result, _ in results.values()}
        histories = [history for _, history in results.values() if history]
        seconds = sum(float(history[-1]["time/seconds"]) for history in histories)
        attrs: dict[str, Any] = {"cell": cell.id, "seconds": seconds}
        if not histories or Status.FAILED in states:
            return _Verdict(TrialState.FAIL, attrs=attrs, seconds=seconds)
        figures = {
            name: aggregate([figure(history, name, self.rule) for history in histories])
            for name in {*self.search.objectives, *(c.metric for c in self.constraints)}
        }
        attrs["sem"] = {name: None if math.isnan(f["sem"]) else f["sem"] for name, f in figures.items()}
        attrs["n"] = len(histories)
        if self.constraints:
            attrs["excess"] = [c.excess(figures[c.metric]["mean"]) for c in self.constraints]
        values = [figures[name]["mean"] for name in self.search.objectives]
        if any(math.isnan(v) for v in values):
            return _Verdict(TrialState.FAIL, attrs=attrs, seconds=seconds)
        early = bool(states & {Status.PRUNED, Status.DIVERGED})
        return _Verdict(
            TrialState.PRUNED if early else TrialState.COMPLETE,
            values,
            round=min(len(history) for history in histories),
            attrs=attrs,
            seconds=seconds,
        )

    def _tell(self, number: int, verdict: _Verdict) -> None:
        trial = self._trials.pop(number)
        for name, value in verdict.attrs.items():
            trial.set_user_attr(name, value)
        if verdict.state == TrialState.PRUNED and len(verdict.values) == 1:
            trial.report(verdict.values[0], verdict.round)
        if NAMED_CONSTRAINTS:
            for text, excess in zip(self.search.constraints, verdict.attrs.get("excess", []), strict=False):
                trial.set_constraint(text, excess)
        complete = verdict.state == TrialState.COMPLETE
        self.study.tell(trial, verdict.values if complete else None, verdict.state)


@dataclass(frozen=True)
class _Verdict:
    """What Optuna is told of a trial."""

    state: TrialState
    values: list[float] = field(default_factory=list)
    round: int = 0
    attrs: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
