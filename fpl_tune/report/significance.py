"""Is a cell better than the reference? Paired over seeds and clients, with Holm's correction (1979) for many cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from fpl_tune.analysis import paired_t
from fpl_tune.report.facts import Facts, interval

if TYPE_CHECKING:
    from fpl_tune.study.cells import Cell


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction of a family of p-values; nan (no test possible) stays nan and is not counted."""
    values = np.asarray(p, float)
    corrected = np.full_like(values, math.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def wilcoxon(differences: np.ndarray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; nan without differences, 1 if all are zero."""
    if not len(differences):
        return math.nan
    if not differences.any():
        return 1.0
    exact = len(differences) <= 50 and len(np.unique(np.abs(differences))) == len(differences) and differences.all()
    return float(np.asarray(stats.wilcoxon(differences, method="exact" if exact else "asymptotic"))[1])


def against_reference(facts: Facts) -> pd.DataFrame:
    """Every finished cell against the reference, index `cell`.

    Columns: `difference` and `half` (mean over common seeds and its 95 % t interval), `p_clients` (Wilcoxon over
    clients, each client's difference averaged over the common seeds), `p_seeds` (paired t over the seeds' means),
    both corrected by Holm over all cells, and the numbers of pairs `clients` and `seeds`.

    A seed is paired where both cells saw the same split. The two tests answer two questions: whether it holds for
    the clients of this federation, and whether it holds for another draw of the seed.
    """
    columns = ["difference", "half", "p_clients", "p_seeds", "clients", "seeds"]
    known: dict[str, _Clients] = {}
    rows = {}
    for cell in facts.cells:
        base = facts.reference_of(cell)
        if base is not None and base.id != cell.id and facts.table.loc[cell.id, "n"] > 0:
            if base.id not in known:
                known[base.id] = _by_seed(facts, base)
            rows[cell.id] = _pair(_by_seed(facts, cell), known[base.id])
    found = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    for name in ("p_clients", "p_seeds"):
        found[name] = holm(found[name].astype(float).tolist())
    return found


_Clients = dict[tuple[int, str], np.ndarray]
"""[N] accuracies by seed and hash of its split."""


def _by_seed(facts: Facts, cell: Cell) -> _Clients:
    found = {}
    for seed in facts.seeds(cell):
        result = facts.store.result(cell, seed) or {}
        found[seed, str(result.get("split_hash"))] = facts.clients(cell, seed)
    return found


def _pair(ours: _Clients, theirs: _Clients) -> tuple[float, float, float, float, int, int]:
    common = [key for key in ours if key in theirs and len(ours[key]) == len(theirs[key]) > 0]
    if not common:
        return (math.nan, math.nan, math.nan, math.nan, 0, 0)
    differences = np.stack([ours[key] - theirs[key] for key in common])  # [seeds, clients]
    differences = differences[:, ~np.isnan(differences).any(0)]
    by_seed = differences.mean(1)
    sem = by_seed.std(ddof=1) / len(by_seed) ** 0.5 if len(by_seed) > 1 else math.nan
    return (
        float(by_seed.mean()),
        interval(float(sem), len(by_seed)),
        wilcoxon(differences.mean(0)),
        paired_t(by_seed.tolist()),
        differences.shape[1],
        len(by_seed),
    )
