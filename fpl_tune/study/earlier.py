"""Cells and seeds of earlier runs of a study, which stay in its results when it is run with other axes or seeds.

A cell stays if its settings differ from those of a current cell only in fields that vary, and its label is not taken.
Cells of other settings (other rounds, other data) stay on disk but out of the results: their figures do not compare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.core.files import write_text
from fpl_tune.core.formatting import counted, listed
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import COUNTED

if TYPE_CHECKING:
    from fpl_tune.study.store import Store

_FILE = "earlier.json"
_BROUGHT = {"method": "stages", "data": "partition"}
"""Group -> what choosing one of its options may set besides."""


def find(store: Store, cells: Sequence[Cell]) -> list[Cell]:
    """Finds the cells with results that stay beside the cells that a study has now; trials of searches do not."""
    ids, labels = {cell.id for cell in cells}, {cell.label for cell in cells}
    before = [
        cell for cell in [*store.cells(), *store.earlier_cells()] if cell.id not in ids and cell.label not in labels
    ]
    found: dict[str, Cell] = {}
    for cell in before:
        if cell.role != "trial" and cell.label not in found and store.seeds(cell) and _belongs(cell, cells):
            found[cell.label] = cell
    return list(found.values())


def mark(store: Store, cells: Sequence[Cell]) -> None:
    """Stores which cells are of earlier runs."""
    path = store.folder / _FILE
    if cells or path.is_file():
        write_text(path, json.dumps([cell.id for cell in cells]))


def marked(store: Store) -> set[str]:
    """Ids of the cells of earlier runs."""
    try:
        return {str(key) for key in json.loads((store.folder / _FILE).read_text())}
    except (OSError, ValueError, TypeError):  # not there, or damaged: the mark alone is lost
        return set()


def seeds(store: Store, cell: Cell) -> list[int]:
    """Lists the seeds of a cell in the results: the study's, and those of earlier runs that are done or pruned."""
    wanted = store.spec().seed_list()
    return [s for s, result in store.seed_results(cell).items() if s in wanted or result["status"] in COUNTED]


def note(store: Store) -> str:
    """Names the cells and seeds of earlier runs; empty where there are none."""
    cells, own = len(marked(store)), store.spec().seed_list()
    others = sorted({seed for cell in store.cells() for seed in seeds(store, cell)}.difference(own))
    parts = [*([counted(cells, "cell")] if cells else []), *([listed("seed", others)] if others else [])]
    return f"{' and '.join(parts)} of earlier runs, not in the last one" if parts else ""


def _belongs(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Whether a cell differs from one of the cells only in fields that vary in either."""
    own = config.flatten(config.as_dict(cell.run))
    for other in cells:
        varied = _names(cell.varied) | _names(other.varied)
        theirs = config.flatten(config.as_dict(other.run))
        differing = (name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
        if all(any(name == free or name.startswith(f"{free}.") for free in varied) for name in differing):
            return True
    return False


def _names(varied: Mapping[str, Any]) -> set[str]:
    """Names of the fields and groups that may differ, those within bundles included."""
    names = set(varied)
    for name, value in varied.items():
        if isinstance(value, Mapping) and name not in config.GROUPS:
            names |= set(value) | set(config.flatten(value))
    return names | {_BROUGHT[name] for name in names & _BROUGHT.keys()}
