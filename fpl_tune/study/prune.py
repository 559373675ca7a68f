"""Pruning in rounds."""

from __future__ import annotations

from collections.abc import Sequence

from fpl_tune.config import PruneSpec
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.trial import Record


class Pruner:
    """Decides after each round whether a cell goes on."""

    def __init__(self, spec: PruneSpec, store: Store) -> None:
        self.spec, self.store = spec, store

    def keep(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> bool:
        return True
