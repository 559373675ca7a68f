"""Warm start: the finished cells of another study in the same space as first trials of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState, create_trial

from fpl_tune import config
from fpl_tune.config import SearchSpec
from fpl_tune.errors import ConfigError
from fpl_tune.search.objective import Constraint
from fpl_tune.search.record import WARM
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    from fpl_tune.search.suggest import Part


class WarmStart:
    """Finished cells of a stored study, as trials of another.

    Args:
        name: the stored study's name.
        root: the folder of all studies.
        search, rule, constraints: of the new study.

    Raises:
        ConfigError: the study does not exist, or has no finished cells.
    """

    def __init__(
        self, name: str, root: Path | None, search: SearchSpec, rule: str, constraints: tuple[Constraint, ...]
    ) -> None:
        if root is None:
            raise ConfigError(f"search.warm_start={name} needs the folder of the studies, which is not known here.")
        self.name, self._store = name, Store.open(root, name)
        self._cells = [cell for cell in self._store.cells() if cell.candidate and self._done(cell)]
        if not self._cells:
            raise ConfigError(f"search.warm_start={name} needs finished cells, but {name} has none. Run it first.")

    def _done(self, cell: Cell) -> bool:
        results = [self._store.result(cell, seed) for seed in self._store.seeds(cell)]
        return bool(results) and all(result is not None and result["status"] == Status.DONE for result in results)

    def trials(self, part: Part) -> list[FrozenTrial]:
        """The cells that lie in a part's space: same method, every searched field within its distribution."""
        found = []
        for cell in self._cells:
            node = config.as_dict(cell.run)
            if node["method"].get("name") != part.node["method"].get("name") and not part.space.searches_methods:
                continue
            given = {n: v for n, v in part.varied.items() if n != "method"}
            point = part.space.point_of(node, given)
            if point is None:
                continue
            results = {
                seed: (result, self._store.history(cell, seed))
                for seed in self._store.seeds(cell)
                if (result := self._store.result(cell, seed)) is not None
            }
            verdict = part.verdict(cell, results)
            if verdict.state != TrialState.COMPLETE:
                continue
            found.append(
                create_trial(
                    values=verdict.values,
                    params=part.space.stored(point),
                    distributions={p.name: p.distribution for p in part.space.params if p.name in point},
                    user_attrs={**verdict.attrs, "params": point, WARM: self.name},
                )
            )
        return found

    def check(self, parts: Sequence[Part]) -> None:
        """Raises `ConfigError` if no cell of the study lies in the space of any part."""
        if not any(part.warm for part in parts):
            fields = ", ".join(param.name for param in parts[0].space.params)
            raise ConfigError(
                f"search.warm_start={self.name} needs a study of the same method and space, but none of its "
                f"{len(self._cells)} finished cells lies in that of {fields}. Name another study, or widen the space."
            )
