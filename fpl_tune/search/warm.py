"""Warm start: the finished cells of another study in the same space as first trials of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState, create_trial

from fpl_tune import config
from fpl_tune.errors import ConfigError
from fpl_tune.search.record import WARM
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    from fpl_tune.search.suggest import Part, Results


class WarmStart:
    """Finished cells of a stored study, as trials of another.

    Args:
        name: the stored study's name.
        root: the folder of all studies.

    Raises:
        ConfigError: the study does not exist, or has no finished cells.
    """

    def __init__(self, name: str, root: Path | None) -> None:
        if root is None:
            raise ConfigError(f"search.warm_start={name} needs the folder of the studies, which is not known here.")
        self.name, store = name, Store.open(root, name)
        self._cells: list[tuple[Cell, Results]] = []
        for cell in (cell for cell in store.cells() if cell.candidate):
            found = {seed: (store.result(cell, seed) or {}, store.history(cell, seed)) for seed in store.seeds(cell)}
            if found and all(result["status"] == Status.DONE for result, _ in found.values()):
                self._cells.append((cell, found))
        if not self._cells:
            raise ConfigError(f"search.warm_start={name} needs finished cells, but {name} has none. Run it first.")

    def trials(self, part: Part) -> list[FrozenTrial]:
        """The cells that lie in a part's space: same method, every searched field within its distribution."""
        found = []
        for cell, results in self._cells:
            node = config.as_dict(cell.run)
            if node["method"].get("name") != part.node["method"].get("name") and not part.space.searches_methods:
                continue
            given = {n: v for n, v in part.varied.items() if n != "method"}
            point = part.space.point_of(node, given)
            if point is None:
                continue
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
