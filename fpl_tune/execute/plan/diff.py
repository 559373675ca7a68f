"""Differences between a study and its store: cells that are new, stale, done, or no longer in the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpl_tune import config
from fpl_tune.config import RunSpec, StudySpec
from fpl_tune.core.formatting import listed
from fpl_tune.execute.plan.costs import Basis
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.fingerprints import fingerprints, stale
from fpl_tune.study.store import Store


@dataclass
class Item:
    """What a run of the study would do for a cell, or for the search in a cell of the axes, and its cost."""

    label: str
    status: str
    """done, new, stale or partial (some seeds are missing)"""
    missing: list[int]
    """Seeds that would run."""
    runs: list[RunSpec]
    """The runs; for a search, as many points of its space as it has trials."""
    why: str = ""
    """Why the cell is stale or partial; for a new cell, the fields that differ from the cell that it replaces."""
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    peak_memory_bytes: int = 0
    basis: Basis = "earlier runs"
    """What `seconds` are estimated from."""

    @property
    def trials(self) -> int:
        """1, or the number of trials of the search in this cell."""
        return len(self.runs)


class Differ:
    """Compares the cells of a study with those in its store.

    Args:
        spec: the study as it is now.
        store: its results.
        cells: its cells now.
    """

    def __init__(self, spec: StudySpec, store: Store, cells: Sequence[Cell]) -> None:
        self._spec, self._store = spec, store
        ids = {cell.id for cell in cells}
        self._gone = [cell for cell in store.cells() if cell.id not in ids]
        self._left = [cell for cell in store.earlier_cells() if cell.id not in ids and store.seeds(cell)]
        self._before = {cell.label: cell for cell in self._gone}

    def item(self, cell: Cell) -> Item:
        """Compares one of the study's cells with the store."""
        seeds, missing = self._spec.seed_list(), self._store.missing(cell, self._spec)
        if reasons := stale(self._store, cell, fingerprints(cell.run)):
            return Item(cell.label, "stale", seeds, [cell.run], ", ".join(reasons))
        if not missing:
            return Item(cell.label, "done", [], [cell.run])
        if len(missing) < len(seeds):
            return Item(cell.label, "partial", missing, [cell.run], f"without {listed('seed', missing)}")
        before = self._before.get(cell.label)
        return Item(cell.label, "new", missing, [cell.run], ", ".join(_changed(before, cell)) if before else "")

    def outside(self) -> list[tuple[Cell, str, str]]:
        """Lists the cells with results that the study no longer has: cell, state, reason.

        A cell is `gone` if it is in the result table, and `left` if it is of other settings and only on disk.
        """
        gone = [(cell, "gone", "not in the study") for cell in self._gone if self._store.seeds(cell)]
        return [*gone, *((cell, "left", "of other settings") for cell in self._left)]


def _changed(old: Cell, new: Cell) -> list[str]:
    """Fields in which two cells' runs differ: `method.n_ctx 16 -> 8`."""
    a, b = (config.flatten(config.as_dict(cell.run)) for cell in (old, new))
    return [f"{name} {shown(a.get(name))} -> {shown(b.get(name))}" for name in {**a, **b} if a.get(name) != b.get(name)]
