"""Overtuning: the bias that selecting the best cell adds to its result."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fpl_tune.analysis.selection import scores_of, select_by
from fpl_tune.analysis.tables import Bools, Floats, present, read, seed_means


@dataclass(frozen=True)
class Overtuning:
    """The validation winner on the test set."""

    winner: str
    validation: float
    """Mean validation value of the winner: optimistic, since it was chosen by it."""
    test: float
    """Mean test value of the winner."""
    best: str
    """Cell of the highest mean test value, for comparison only: test values select nothing."""
    loss: float
    """Test value that the winner loses against `best`; too large by the noise that made `best` the best."""
    corrected: float
    """Test value of the winner corrected for selection: for every seed, the winner by the validation values of the
    other seeds is tested on that seed (nested selection). NaN below two seeds."""
    cells: int
    seeds: int
    note: str = ""


def overtuning(validation: pd.DataFrame, test: pd.DataFrame, *, rule: str = "mean") -> Overtuning:
    """Measures what selection by validation costs and how optimistic the winner's test value is.

    A seed shares its noise between validation and test values of a cell (one trained model gives both), so that even
    the test value of the winner is optimistic; the nested estimate is not, and is a little pessimistic instead, since
    it selects by one seed less.

    Args:
        validation: see `tables.read`.
        test: likewise. Cells that lack a seed of the others are left out.
        rule: of selection, one of `selection.RULES`.

    Returns:
        The figures.

    Raises:
        ValueError: no cell has validation and test values of all seeds.
    """
    val, out = read(validation), read(test)
    cells = [c for c in val.cells if c in out.cells]
    seeds = [s for s in val.seeds if s in out.seeds]
    v, t = (_means(table.values, table.cells, table.seeds, cells, seeds) for table in (val, out))
    ran = present(v + t)
    seeds_kept: Bools = np.asarray(ran.any(axis=0))
    whole: Bools = np.asarray(ran[:, seeds_kept].all(axis=1) & seeds_kept.any())
    if not whole.any():
        raise ValueError("No cell has validation and test values of all seeds.")
    note = f"{int((~whole).sum())} of {len(cells)} cells left out: seeds missing" if not whole.all() else ""
    v, t = v[whole][:, seeds_kept], t[whole][:, seeds_kept]
    names = [c for c, w in zip(cells, whole, strict=True) if w]
    winner = _chosen(v, rule)
    best = int(t.mean(1).argmax())
    n = v.shape[1]
    nested = math.nan
    if n > 1:
        nested = float(np.mean([t[_chosen(np.delete(v, s, 1), rule), s] for s in range(n)]))
    else:
        note = "; ".join(filter(None, [note, "1 seed: no correction"]))
    means = t.mean(1)
    return Overtuning(
        names[winner], float(v[winner].mean()), float(means[winner]), names[best], float(means[best] - means[winner]),
        nested, len(names), n, note,
    )  # fmt: skip


def _means(values: Floats, own: tuple[str, ...], ran: tuple[int, ...], cells: list[str], seeds: list[int]) -> Floats:
    rows, columns = [own.index(c) for c in cells], [ran.index(s) for s in seeds]
    return seed_means(values[rows][:, columns])


def _chosen(values: Floats, rule: str) -> int:
    if rule == "mean":
        return int(values.mean(1).argmax())
    return int(select_by(scores_of(values, [str(cell) for cell in range(len(values))]), rule))
