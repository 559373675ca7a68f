"""Search inside the cells of the axes, with the same budget in each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.config import RunSpec, SearchSpec, StudySpec
from fpl_tune.errors import ConfigError, did_you_mean
from fpl_tune.evaluate import CHOICES
from fpl_tune.search.objective import check_metric, parse_constraint
from fpl_tune.search.space import Space, names_of, read_space
from fpl_tune.study.cells import Cell, Composer, axes_of, expand, grid
from fpl_tune.study.fingerprints import method_source

if TYPE_CHECKING:  # Optuna and its database, a third of a second, are for studies that search
    from fpl_tune.search.suggest import Part, Results

SAMPLERS = ("grid", "random", "tpe")


class Search:
    """All searches of a study: one per cell of the axes."""

    def __init__(self, parts: Sequence[Part], references: list[Cell]) -> None:
        self.parts, self.references = list(parts), references
        self._waiting: dict[str, list[tuple[Part, int]]] = {}

    @classmethod
    def plan(cls, spec: StudySpec, node: dict[str, Any]) -> Search | None:
        """The searches of a study; None where it has no sampler.

        Raises:
            ConfigError: a sampler, space, objective or constraint that cannot be.
        """
        search = spec.search
        if search.sampler is None:
            return None
        from fpl_tune.search.suggest import Part

        if search.sampler not in SAMPLERS:
            raise ConfigError(f"There is no sampler {search.sampler!r}. {did_you_mean(search.sampler, SAMPLERS)}")
        if search.trials < 1 or search.batch < 1 or (search.seconds is not None and search.seconds <= 0):
            raise ConfigError("search.trials and search.batch must be >= 1, and search.seconds above 0.")
        if not search.objectives:
            raise ConfigError("A search needs an objective. Write search.objectives=[val/acc_mean].")
        for name in search.objectives:
            check_metric(name, "search.objectives")
        constraints = tuple(parse_constraint(text) for text in search.constraints)
        axes = list(axes_of(spec.axes))
        references = [cell for cell in expand(spec, node) if cell.role == "reference"]
        composer = Composer(node)
        rule = spec.report.rule if spec.report.rule in CHOICES else "final"
        points = list(grid(spec, node))
        if any(not run.data.val for _, run in points):
            raise ConfigError("A search reads validation figures, but data.val is 0. Set it above 0, such as 0.25.")
        parts = []
        for i, (varied, run) in enumerate(points):
            space = read_space(names_of(run.method, varied.get("method")), search, axes)
            part = Part(search, rule, constraints, composer, varied, space, config.as_dict(run), i, len(points))
            part.first = len(references)
            part.key = _key(config.identity(run), method_source(run), search, space)
            part.check()
            parts.append(part)
        return cls(parts, references)

    def draw(self) -> dict[str, list[RunSpec]]:
        """Cell of the axes -> as many runs as its search has trials, the published ones and points of its space."""
        return {config.identity(part.composer.at(part.varied)): part.draw() for part in self.parts}

    def open(self, folder: Path) -> list[Cell]:
        """Opens the study's database; cells of the trials that it knows."""
        from fpl_tune.search.samplers import open_storage

        folder.mkdir(parents=True, exist_ok=True)
        cells: dict[str, Cell] = {}
        storage = open_storage(folder)
        for part in self.parts:
            part.open(storage)
            for number, cell in part.known():
                cells.setdefault(cell.id, cell)
                if number in part.pending:
                    self._waiting.setdefault(cell.id, []).append((part, number))
        return list(cells.values())

    @property
    def left(self) -> int:
        """Trials that are not over."""
        return sum(part.unasked + len(part.pending) for part in self.parts)

    @property
    def unasked(self) -> int:
        """Trials that were not asked for yet."""
        return sum(part.unasked for part in self.parts)

    def ask(self) -> list[Cell]:
        """Cells of new trials: the next batch of every part whose last batch is over."""
        cells = []
        for part in self.parts:
            for number, cell in part.ask():
                cells.append(cell)
                self._waiting.setdefault(cell.id, []).append((part, number))
        return cells

    def tell(self, cell: Cell, results: Results) -> None:
        """A cell is complete: every trial that it stands for is over."""
        for part, number in self._waiting.pop(cell.id, []):
            part.tell(number, cell, results)


def _key(identity: str, source: str, search: SearchSpec, space: Space) -> str:
    """Name of one part in the database: what may not change within one search. Ranges may."""
    fixed = {
        "source": source,
        "sampler": search.sampler,
        "seed": search.seed,
        "objectives": search.objectives,
        "choices": {p.name: [repr(c) for c in p.choices] for p in space.params if p.choices},
    }
    digest = hashlib.blake2b(json.dumps(fixed, sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{identity}-{digest}"
