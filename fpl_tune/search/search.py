"""Search inside the cells of the axes, with the same budget in each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.config import RunSpec, Study
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import check_chosen_by
from fpl_tune.findings.choice import most_points
from fpl_tune.findings.crossed import settings_of
from fpl_tune.study.cells import Cell, Suggestion, axes_of, confirming_id, label
from fpl_tune.study.design import confirming_seeds
from fpl_tune.study.grid import Points, expand
from fpl_tune.study.schema import CellFile, Effective

if TYPE_CHECKING:  # Optuna, a third of a second, is for studies that search
    from fpl_tune.search.cell_search import CellSearch


class Search:
    """The search of a study: a `CellSearch` in each cell of the axes.

    Args:
        parts: the search in each cell.
        references: cells that are not searched.
    """

    def __init__(self, parts: Sequence[CellSearch], references: list[Cell]) -> None:
        self.parts, self.references = list(parts), references

    @classmethod
    def plan(
        cls,
        spec: Study,
        fits: Callable[[RunSpec], object] | None = None,
        files: Mapping[str, dict[str, Any]] | None = None,
        points: Points | None = None,
    ) -> Search | None:
        """The search of a study; None if it has no sampler.

        Args:
            spec: the study.
            fits: raises `ConfigError` for a run that cannot run, whose trial then costs nothing; None: all can run.
            files: contents of the files of the spaces, from a stored study; None: the files are read.
            points: the points of the study's axes and references, if they are known.

        Raises:
            ConfigError: the sampler, space or an objective is invalid.
        """
        search = spec.search
        if search.sampler is None:
            return None
        from fpl_tune.search import limits
        from fpl_tune.search.cell_search import CellSearch, space_file
        from fpl_tune.search.space import check_names

        if not search.objectives:
            raise ConfigError("A search needs an objective. Write search.objectives=[val/acc_mean].")
        for name in search.objectives:
            check_chosen_by(name, "search.objectives")
        limits.check_names(search)
        settings = settings_of(axes_of(spec.axes))
        if search.across and (not settings or len(search.objectives) > 1):
            needs = "one objective" if settings else "an axis of settings, of data, partition or protocol"
            raise ConfigError(f"search.across={search.across} needs {needs}. Add it, or remove search.across.")
        points = points or Points.of(spec)
        cells = expand(spec, points)
        confirmed = bool(confirming_seeds(spec, ()))
        references = [
            replace(cell, id=confirming_id(cell.id) if confirmed else cell.id, role="reference",
                    label=cell.reference or cell.label, reference="")
            for cell in cells
            if cell.is_reference
        ]  # fmt: skip
        if any(not run.data.val for _, run in points.grid):
            raise ConfigError("A search needs validation metrics, but data.val is 0. Set it above 0, such as 0.25.")
        stored = files or {}
        spaces = [stored[name] if (name := label(varied)) in stored else space_file(varied, run)
                  for varied, run in points.grid]  # fmt: skip
        check_names(search, [config.as_dict(run) for _, run in points.grid], spaces)
        parts = []
        most, n_parts = most_points(search.objectives), len(points.grid)
        first = len(cells) + n_parts * (2 * most - 1) * confirmed  # what is confirmed comes before
        for i, (varied, run) in enumerate(points.grid):
            numbers = range(first + i, sys.maxsize, n_parts)  # the parts take turns
            further = range(len(cells) + i, first, n_parts) if confirmed else range(0)  # but for its own, the first
            confirming = ((i, *further[most:]), further[:most])
            parts.append(CellSearch(spec, varied, run, spaces[i], numbers, confirming, fits))
        for part in parts if search.across else ():
            method = {axis: value for axis, value in part.varied.items() if axis not in settings}
            part.settings = [other for other in parts if method.items() <= other.varied.items()]
        return cls(parts, references)

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Contents of the files of the spaces, by the label of the cell of the axes."""
        return {part.label: dict(part.file) for part in self.parts}

    @property
    def runs(self) -> list[RunSpec]:
        """The run of each cell of the axes, which its search varies."""
        return [part.run for part in self.parts]

    def restore(self, stored: Iterable[Cell | CellFile]) -> list[Cell]:
        """The configurations of a study's store that are trials of this search, in the order of their numbers.

        Raises:
            ConfigError: trials are shared by settings now, but were not when they were suggested.
        """
        restored = [cell for each in stored for part in self.parts if (cell := part.restore(each)) is not None]
        restored.sort(key=lambda cell: cell.number)  # as they were suggested, which decides ties
        for part in self.parts:
            by_number = dict[int, Suggestion]()
            for cell in restored if part.settings else ():
                if part.shares(cell) and cell.suggestion is not None:
                    first = by_number.setdefault(cell.trial_number, cell.suggestion)
                    if first.params != cell.suggestion.params:
                        raise ConfigError(
                            f"search.across=settings continues trials that ran in all settings, but trial "
                            f"{cell.trial_number} of {part.spec.name} differs between them. Run it under another name: "
                            f"name={part.spec.name}_2."
                        )
        return restored


def stored_searches(spec: Study, effective: Effective) -> list[CellSearch]:
    """The searches of a stored study, with the spaces of its last run. They do not need the sampler's package."""
    sampled = replace(spec, search=replace(spec.search, sampler="random"))
    search = Search.plan(sampled, files=effective.spaces)
    assert search is not None
    return search.parts
