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
from fpl_tune.study.trial import State, Trial

if TYPE_CHECKING:  # Optuna and its database, a third of a second, are for studies that search
    from fpl_tune.search.record import TrialJournal
    from fpl_tune.search.suggest import CellSearch, Histories


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
        cells, points = expand(spec), list(grid(spec))
        references = [cell for cell in cells if cell.role == "reference"]
        if any(not run.data.val for _, run in points):
            raise ConfigError("A search reads validation figures, but data.val is 0. Set it above 0, such as 0.25.")
        parts = []
        for i, (varied, run) in enumerate(points):
            numbers = range(len(cells) + i, sys.maxsize, len(points))  # the parts take turns
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

    def hedged(self, cell: Cell) -> bool:
        """Whether a cell is a trial that passes all rungs of rounds."""
        return any(part.hedged(cell) for part in self.parts)

    @staticmethod
    def begun(folder: Path) -> bool:
        """Whether the study's folder has a database of trials."""
        from fpl_tune.search.record import FILE

        return (folder / FILE).is_file()

    def open(self, folder: Path) -> list[Cell]:
        """Opens the study's database; cells of the trials that it holds."""
        from fpl_tune.search.record import open_storage

        folder.mkdir(parents=True, exist_ok=True)
        cells: dict[str, Cell] = {}
        self._storage: TrialJournal = open_storage(folder)
        for cell in (cell for part in self.parts for cell in part.open(self._storage)):
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

    def note(self, cell: Cell, trial: Trial, histories: Histories) -> None:
        """Notes where a cell stands, which samplers receive of every trial that stands for it.

        Args:
            cell: the cell, be it a trial's by now or not.
            trial: its state.
            histories: records by round, by seed: of the seeds that count or, where there are none, of all that began.
        """
        state = State.DONE if trial.counts and not trial.over else trial.state  # reopened for more seeds
        self._storage.outcomes[cell.id] = self.parts[0].outcome(cell.id, state, histories)
        for part in self.parts:
            part.tell(cell.id)

    def should_prune(self, cell: Cell, step: int, value: float) -> bool | None:
        """Reports a round of a cell and asks the pruner of Optuna; None for a cell that is not a running trial."""
        decisions = [stop for part in self.parts for stop in part.should_prune(cell, step, value)]
        return all(decisions) if decisions else None
