"""The search in one cell of the axes: its space, published points and sampler, and the cells of its trials."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from optuna.distributions import CategoricalDistribution

from fpl_tune import config
from fpl_tune.config import GROUPS, RunSpec, Study
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.files import digest
from fpl_tune.core.metrics import comparable
from fpl_tune.core.pareto import spread
from fpl_tune.findings.choice import Choice, choose, selecting_rule, sign
from fpl_tune.search.halving import FULL_TRIALS, expected_cost, resolved, spent
from fpl_tune.search.samplers import SamplerFactory
from fpl_tune.search.space import Param, names_of, read_file, read_space
from fpl_tune.study.cells import Cell, Suggestion, axes_of, confirming_id, fields_of, label, shown
from fpl_tune.study.design import Design
from fpl_tune.study.grid import variant
from fpl_tune.study.schema import CellFile
from fpl_tune.study.standing import Row


def space_file(varied: Mapping[str, Any], run: RunSpec) -> dict[str, Any]:
    """The content of the file of a run's space; `varied`: the values of the axes in its cell."""
    return read_file(names_of(config.as_dict(run)["method"], fields_of(varied).get("method")), type(run.method))


@dataclass
class CellSearch:
    """The search in one cell of the axes.

    Raises:
        ConfigError: the space has a field that the run lacks, or the sampler does not support the space.
    """

    spec: Study
    varied: dict[str, Any]
    """The values of the axes in their cell."""
    run: RunSpec
    """The run of that cell, which the search varies."""
    file: dict[str, Any]
    """Content of the space's file."""
    numbers: range
    """Numbers of the trials' cells in the study, indexed by the trials' numbers."""
    confirming: tuple[Sequence[int], Sequence[int]]
    """Numbers of the cells that confirm the chosen and the published points; as many are confirmed at most."""
    fits: Callable[[RunSpec], object] | None = None
    """Raises `ConfigError` for a run that cannot run."""
    settings: Sequence[CellSearch] = field(default=(), repr=False, compare=False)
    """The searches in all settings if they share their trials (`search.across`), this one included. The first one asks
    the sampler, the others repeat its suggestions."""

    def __post_init__(self) -> None:
        self.search, self.node = self.spec.search, config.as_dict(self.run)
        self.rule = selecting_rule(self.spec.report.rule)
        given = fields_of(self.varied)
        names = names_of(self.node["method"], given.get("method"))
        bundled = [name for name in given if name not in GROUPS]
        try:
            self.space = read_space(names, self.search, [*axes_of(self.spec.axes), *bundled], self.node, self.file)
        except ConfigError as problem:
            raise ConfigError(f"{self.name}: {problem}" if self.varied else str(problem)) from None
        for param in self.space.params:
            for value in param.ends:
                try:
                    self.at({**{name: values[0] for name, values in param.when.items()}, param.name: value})
                except ConfigError as problem:  # a value that is only rejected with other values costs no trial
                    own = (f"{param.name} ", f"There is no {param.name} ")
                    if str(problem).startswith(own) or "no field" in str(problem):
                        raise ConfigError(f"search.space.{param.name}: {problem}") from None
        points = (self.space.complete(point, self.node, self.varied) for point in self.space.published)
        self.points = list({repr(point): point for point in points}.values())
        """Published points, or the run's own values where there are none. They are tried first."""
        self.prune = resolved(self.spec)
        self.samplers = SamplerFactory(self.search, self.space)
        self.samplers.check(self.node, self.varied)

    def at(self, point: Mapping[str, Any]) -> RunSpec:
        """The run of a point. Raises `ConfigError` if the method rejects it."""
        return replace(variant(self.spec.node, {**self.varied, **point}), data=self.run.data)

    def widens(self, point: Mapping[str, Any], param: Param) -> bool:
        """True if the space can be wider at the end that is nearest to a point's value of a field.

        It cannot where the method rejects the values beyond, as above a share of 1, nor below a count of 1: zero leaves
        the part out, as another method does.
        """
        low, high, value = min(param.ends), max(param.ends), point[param.name]
        log = getattr(param.distribution, "log", False)
        below = value / low < high / value if log else value - low < high - value
        end, other = (low, high) if below else (high, low)
        count = isinstance(end, int) and not isinstance(config.get_field(self.node, param.name), float)
        if count and below and end <= 1:
            return False
        beyond = [end * (end / other) ** 0.1 if log else end + 0.1 * (end - other)]
        if count:
            beyond = [end - 1, end // 2] if below else [end + 1, 2 * end]  # it may have to divide something
        for further in beyond:
            with suppress(ConfigError):
                self.at({**point, param.name: further})
                return True
        return False

    @cached_property
    def stream(self) -> str:
        """Digest of what is fixed within one search, except ranges and the method's source; it seeds the sampler."""
        fixed = {
            "record": 2,
            "sampler": self.samplers.name,
            "seed": self.search.seed,
            "objectives": self.search.objectives,
            "choices": {
                p.name: [repr(c) for c in p.distribution.choices]
                for p in self.space.params
                if isinstance(p.distribution, CategoricalDistribution)
            },
        }
        return f"{config.identity(self.run)}-{digest(json.dumps(fixed, sort_keys=True), 4)}"

    @property
    def label(self) -> str:
        """The label of its cell of the axes, by which its points name it; see `Cell.search`."""
        return label(self.varied)

    @property
    def name(self) -> str:
        """The name of the search: the label of its cell of the axes, or the method's name."""
        return self.label if self.varied else shown(self.node["method"]["name"])

    def __str__(self) -> str:
        """Identifies everything that suggestions depend on besides results. An exhausted search stays exhausted until
        this changes."""
        points = [repr(param) for param in self.space.params], self.points
        return f"{self.stream}-{digest(json.dumps(points, sort_keys=True, default=repr), 4)}"

    @cached_property
    def first(self) -> RunSpec:
        """A run of the space for checks before the search starts: the first point that can run."""
        return self.at(next(iter(self.published.values()))) if self.published else self.run

    def _run(self, point: Mapping[str, Any]) -> RunSpec:
        """The run of a point. Raises `ConfigError` if it cannot run."""
        run = self.at(point)
        if self.fits is not None:
            self.fits(run)
        if self.settings and self.settings[0] is self:
            for other in self.settings[1:]:
                other._run(point)
        return run

    # -- its trials ------------------------------------------------------------------------------------------

    def holds(self, cell: Cell) -> bool:
        """True if a cell is a trial of this search."""
        return cell.role == "trial" and cell.search == self.label

    def shares(self, cell: Cell) -> bool:
        """True if a cell is a trial of this search or of one that shares its trials."""
        return any(search.holds(cell) for search in self.settings or (self,))

    def to_repeat(self, rows: Sequence[Row]) -> list[Suggestion]:
        """The suggestions that only ran in other settings so far, by number; `rows`: the trials in all settings.

        One that cannot run in this setting, such as one that was added later, is left out, and so is one that was
        rejected in any.
        """
        by_number = {row.cell.trial_number: row.cell.suggestion for row in rows}
        over = {row.cell.trial_number for row in rows if self.holds(row.cell) or row.rejected}
        missing = [s for number, s in sorted(by_number.items()) if number not in over and s is not None]
        return [suggestion for suggestion in missing if self._can_run(suggestion.params)]

    def _can_run(self, point: Mapping[str, Any]) -> bool:
        try:
            self._run(point)
        except ConfigError:
            return False
        return True

    def confirms(self, cell: Cell) -> bool:
        """True if a cell confirms the choice of this search."""
        return cell.role == "tuned" and cell.search == self.label

    def trial(self, suggestion: Suggestion) -> Cell:
        """The cell of a suggestion.

        Raises:
            ConfigError: it cannot run.
        """
        return self._cell(suggestion, self._run(suggestion.params))

    def _cell(self, suggestion: Suggestion, run: RunSpec) -> Cell:
        key, varied = config.identity(run), {**self.varied, **suggestion.params}
        number, first = self.numbers[suggestion.number], self.space.first if key in self.published else ""
        inside = self.space.holds(suggestion.params)
        return Cell(key, number, label(varied), "trial", varied, run, search=self.label, first=first, inside=inside,
                    suggestion=suggestion)  # fmt: skip

    def restore(self, stored: Cell | CellFile) -> Cell | None:
        """A stored configuration as a trial of this search; None if none of its suggestions led to it, or today's study
        would run the point with another configuration."""
        if (suggestion := stored.suggestion) is None:
            return None
        try:
            cell = self._cell(suggestion, self.at(suggestion.params))
        except ConfigError:
            return None
        return cell if cell.id == stored.id else None

    def remaining(self, design: Design, rows: Sequence[Row]) -> int:
        """Number of trials that may still be suggested; with a budget, the number that the rest is expected to pay for.

        Args:
            design: the study's design.
            rows: the trials so far, those in other settings too if they are shared, and those that were rejected.
        """
        repeated, rows = self.to_repeat(rows), [row for row in rows if self.holds(row.cell)]
        if repeated or (self.settings and self.settings[0] is not self):
            return len(repeated)
        tried = {row.cell.id for row in rows}
        untried, rows = len(self.published.keys() - tried), [row for row in rows if not row.rejected]
        if not untried:
            return self._paid(design, rows)
        # after a space was widened, published points that were outside are tried in place of earlier suggestions
        points = [row for row in rows if row.cell.id in self.published]
        return max(self._paid(design, rows), min(untried, self._paid(design, points)))

    def _paid(self, design: Design, rows: Sequence[Row]) -> int:
        """Number of trials that the budget is expected to pay for after these."""
        if self.search.trials:
            return max(0, self.search.trials - len(rows))
        full = len(design.seeds) * self.run.rounds
        left = (self.search.budget or FULL_TRIALS) * full - sum(spent(row) for row in rows)
        return max(0, math.ceil(left / (full * expected_cost(self.prune, self.run, len(design.seeds)))))

    def confirmed(self, rows: Sequence[Row]) -> list[Cell]:
        """The cells that confirm this search once it is over: its chosen and its published points on fresh seeds.

        With one objective these are the best point, and the best published one; with several, as many points of either
        front as there are numbers for, spread over the front, the best in the first objective included.

        Args:
            rows: the trials, those in other settings too if they are shared.

        Returns:
            No cell if none completed. A published point that is chosen too has one cell.
        """
        cells = dict[str, Cell]()
        points = rows, [row for row in rows if row.cell.published]
        for role, numbers, candidates in zip(("tuned", "published"), self.confirming, points, strict=True):
            choice = choose(candidates, self.rule, self.spec, limited=role == "tuned")
            for number, trial in zip(numbers, self._spread(choice) if choice is not None else (), strict=False):
                key, named = confirming_id(trial.id), [trial.first, f"trial {trial.trial_number}"]
                if len(numbers) == 1 and trial.first:  # of several published points, the number tells which
                    named.pop()
                name = f"{self.name} ({', '.join(filter(None, named))})"
                cells.setdefault(
                    key, replace(trial, id=key, number=number, label=name, role=role, reference="", step=False)
                )
        return [*cells.values()]

    def _spread(self, choice: Choice) -> list[Cell]:
        """The chosen trials of this search, in an order of which every beginning is spread over their front."""
        own = [(cell, values) for cell, values in zip(choice.cells, choice.values, strict=True) if self.holds(cell)]
        signs = [sign(name) for name in choice.objectives]
        order = spread([[s * comparable(v) for s, v in zip(signs, values, strict=True)] for _, values in own])
        return [own[place][0] for place in order]

    @cached_property
    def published(self) -> dict[str, dict[str, Any]]:
        """The published points that can run, by the ids of their cells."""
        points = dict[str, dict[str, Any]]()
        for point in self.points:
            with suppress(ConfigError):
                points.setdefault(config.identity(self._run(point)), point)
        return points

    def warn(self) -> None:
        """Warns of published points that are not tried."""
        if self.space.outside:
            points = "; ".join(map(label, self.space.outside))
            warnings.warn(f"Published points outside search.space are not tried: {points}", Notice, stacklevel=2)
        for point in self.points:
            try:
                self._run(point)
            except ConfigError as problem:
                warnings.warn(f"{label(point)} cannot run and is not tried: {problem}", Notice, stacklevel=2)
