"""Search inside the cells of the axes, with the same budget in each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fpl_tune.config import RunSpec, Study
from fpl_tune.core.errors import ConfigError, did_you_mean
from fpl_tune.core.metrics import objectives
from fpl_tune.study.cells import Cell, expand, grid

if TYPE_CHECKING:  # Optuna and its database, a third of a second, are for studies that search
    from fpl_tune.search.suggest import CellSearch, Results
    from fpl_tune.simulation.simulation import Record


class Search:
    """All searches of a study: one per cell of the axes."""

    def __init__(self, parts: Sequence[CellSearch], references: list[Cell]) -> None:
        self.parts, self.references = list(parts), references

    @classmethod
    def plan(cls, spec: Study, fits: Callable[[RunSpec], object] | None = None) -> Search | None:
        """The searches of a study; None where it has no sampler.

        Args:
            spec: the study.
            fits: raises `ConfigError` for a run that cannot run, whose trial then costs nothing; None: all fit.

        Raises:
            ConfigError: the sampler, space or an objective is wrong.
        """
        search = spec.search
        if search.sampler is None:
            return None
        from fpl_tune.search.samplers import named
        from fpl_tune.search.suggest import CellSearch

        if not search.objectives:
            raise ConfigError("A search needs an objective. Write search.objectives=[val/acc_mean].")
        for name in search.objectives:
            if name not in objectives():
                hint = "Test figures choose nothing." if name.startswith("test/") else did_you_mean(name, objectives())
                raise ConfigError(f"search.objectives: {name!r} is not a validation metric or a cost. {hint}")
        named(search.sampler)  # before spaces are read
        references = [cell for cell in expand(spec) if cell.role == "reference"]
        points = list(grid(spec))
        if any(not run.data.val for _, run in points):
            raise ConfigError("A search reads validation figures, but data.val is 0. Set it above 0, such as 0.25.")
        parts = []
        for i, (varied, run) in enumerate(points):
            numbers = range(len(references) + i, sys.maxsize, len(points))  # the parts take turns
            parts.append(CellSearch(spec, varied, run, numbers, fits))
        return cls(parts, references)

    @property
    def runs(self) -> list[RunSpec]:
        """The run of each cell of the axes, which its search varies."""
        return [part.run for part in self.parts]

    @cached_property
    def published(self) -> set[str]:
        """Ids of the cells of the published points that can run."""
        return set[str]().union(*(part.published for part in self.parts))

    def open(self, folder: Path) -> list[Cell]:
        """Opens the study's database; cells of the trials that it holds."""
        from fpl_tune.search.record import open_storage

        folder.mkdir(parents=True, exist_ok=True)
        cells: dict[str, Cell] = {}
        storage = open_storage(folder)
        for cell in (cell for part in self.parts for cell in part.open(storage)):
            cells.setdefault(cell.id, cell)
        return list(cells.values())

    @property
    def unfinished(self) -> int:
        """Trials that are not over."""
        return sum(part.unfinished for part in self.parts)

    @property
    def remaining(self) -> int:
        """Trials that were not suggested yet."""
        return sum(part.remaining for part in self.parts)

    def request(self) -> Cell | None:
        """The cell of a new trial, of the part with the fewest trials; None if none is left."""
        parts = sorted(self.parts, key=lambda part: part.suggested)
        return next((cell for part in parts if (cell := part.suggest()) is not None), None)

    def report(self, cell: Cell, results: Results) -> None:
        """Reports a complete cell to every trial that it belongs to."""
        for part in self.parts:
            part.report(cell, results)

    def waits_for(self, cell: Cell) -> bool:
        """Whether a trial that is not over has this cell."""
        return any(part.waiting(cell) for part in self.parts)

    def pause(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> None:
        """Pauses a cell at its rung: its values so far count for the sampler.

        Args:
            cell: the cell.
            rounds: its records so far, one per seed in each round.
        """
        for part in self.parts:
            part.pause(cell, rounds)

    def should_prune(self, cell: Cell, step: int, value: float) -> bool | None:
        """Reports a round of a cell and asks the pruner of Optuna; None for a cell that is not a running trial."""
        decisions = [stop for part in self.parts for stop in part.should_prune(cell, step, value)]
        return all(decisions) if decisions else None
