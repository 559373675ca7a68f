"""Values of ours that a test needs in the records."""

from typing import Any

from fpl_tune.study.cells import Cell
from fpl_tune.study.results import rules_of
from fpl_tune.study.store import Store


def put(store: Store, cell: Cell, seed: int, **changes: Any) -> None:
    """Stores the result of a seed again with changed fields."""
    store.put(cell, seed, store.history(cell, seed), {**(store.result(cell, seed) or {}), **changes})


def amend(store: Store, **figures: Any) -> None:
    """Adds figures to the last record of every seed; a callable is given the cell."""
    for cell in store.cells():
        for seed in store.seeds(cell):
            history = store.history(cell, seed)
            history[-1] |= {name.replace("__", "/"): f(cell) if callable(f) else f for name, f in figures.items()}
            store.put(cell, seed, history, {**(store.result(cell, seed) or {}), "rules": rules_of(history)})
