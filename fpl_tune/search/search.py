"""Search inside the cells of the axes, with the same budget in each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fpl_tune import config
from fpl_tune.config import RunSpec, SearchSpec, Study
from fpl_tune.core.errors import ConfigError, did_you_mean
from fpl_tune.core.files import digest
from fpl_tune.core.metrics import objectives
from fpl_tune.study.cells import Cell, axes_of, expand, grid, variant
from fpl_tune.study.fingerprints import method_source
from fpl_tune.study.selection import selecting_rule

if TYPE_CHECKING:  # Optuna and its database, a third of a second, are for studies that search
    from fpl_tune.search.space import Space
    from fpl_tune.search.suggest import CellSearch, Results
    from fpl_tune.simulation.simulation import Record


class Search:
    """All searches of a study: one per cell of the axes."""

    def __init__(self, parts: Sequence[CellSearch], references: list[Cell]) -> None:
        self.parts, self.references = list(parts), references
        self._waiting: dict[str, list[tuple[CellSearch, int]]] = {}

    @classmethod
    def plan(cls, spec: Study, fits: Callable[[RunSpec], object] | None = None) -> Search | None:
        """The searches of a study; None where it has no sampler, or confirms another study.

        Args:
            spec: the study.
            fits: raises `ConfigError` for a run that cannot run, whose trial then costs nothing; None: all fit.

        Raises:
            ConfigError: the sampler, space or an objective is wrong.
        """
        search = spec.search
        if search.sampler is None or spec.confirm is not None:
            return None
        from fpl_tune.search.pruning import make_pruner
        from fpl_tune.search.samplers import SamplerFactory
        from fpl_tune.search.space import names_of, read_space
        from fpl_tune.search.suggest import CellSearch

        if not search.objectives:
            raise ConfigError("A search needs an objective. Write search.objectives=[val/acc_mean].")
        for name in search.objectives:
            if name not in objectives():
                hint = "Test figures choose nothing." if name.startswith("test/") else did_you_mean(name, objectives())
                raise ConfigError(f"search.objectives: {name!r} is not a validation metric or a cost. {hint}")
        samplers = SamplerFactory(search)
        references = [cell for cell in expand(spec) if cell.role == "reference"]
        points = list(grid(spec))
        if any(not run.data.val for _, run in points):
            raise ConfigError("A search reads validation figures, but data.val is 0. Set it above 0, such as 0.25.")
        parts = []
        for i, (varied, run) in enumerate(points):
            base = config.as_dict(run)
            space = read_space(names_of(base["method"], varied.get("method")), search, list(axes_of(spec.axes)), base)
            part = CellSearch(
                search=search,
                samplers=samplers,
                fits=fits,
                rule=selecting_rule(spec.report.rule),
                pruner=make_pruner(spec.prune),
                base=spec.node,
                varied=varied,
                space=space,
                node=base,
                numbers=range(len(references) + i, sys.maxsize, len(points)),  # the parts take turns
                key=_key(config.identity(run), method_source(run), search, space),
            )
            parts.append(part)
        return cls(parts, references)

    @property
    def runs(self) -> list[RunSpec]:
        """The run of each cell of the axes, which its search varies."""
        return [variant(part.base, part.varied) for part in self.parts]

    def open(self, folder: Path) -> list[Cell]:
        """Opens the study's database; cells of the trials that it holds."""
        from fpl_tune.search.record import is_over, open_storage

        folder.mkdir(parents=True, exist_ok=True)
        cells: dict[str, Cell] = {}
        storage = open_storage(folder)
        for part in self.parts:
            for number, cell in part.open(storage):
                cells.setdefault(cell.id, cell)
                if not is_over(part.trials()[number]):
                    self._waiting.setdefault(cell.id, []).append((part, number))
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
        for part in sorted(self.parts, key=lambda part: part.suggested):
            if (made := part.suggest()) is not None:
                number, cell = made
                self._waiting.setdefault(cell.id, []).append((part, number))
                return cell
        return None

    def report(self, cell: Cell, results: Results) -> None:
        """Reports a complete cell to every trial that it belongs to."""
        for part, number in self._waiting.pop(cell.id, []):
            part.report(number, cell, results)

    def pause(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> None:
        """Pauses a cell at its rung: its values so far count for the sampler.

        Args:
            cell: the cell.
            rounds: its records so far, one per seed in each round.
        """
        for part, number in self._waiting.get(cell.id, []):
            part.pause(number, rounds)

    def should_prune(self, cell: Cell, step: int, value: float) -> bool | None:
        """Reports a round of a cell and asks the pruner of Optuna; None for a cell that is not a running trial."""
        decisions = [part.should_prune(number, step, value) for part, number in self._waiting.get(cell.id, [])]
        return all(decisions) if decisions else None


def _key(identity: str, source: str, search: SearchSpec, space: Space) -> str:
    """Name of a part in the database: a digest of the settings that are fixed within one search. Ranges may change."""
    fixed = {
        "record": 2,
        "source": source,
        "sampler": search.sampler,
        "seed": search.seed,
        "objectives": search.objectives,
        "choices": {p.name: [repr(c) for c in p.choices] for p in space.params if p.choices},
    }
    return f"{identity}-{digest(json.dumps(fixed, sort_keys=True), 4)}"
