"""A study's cells against their references, and what the seeds of the study can say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.report.facts import Facts
from fpl_tune.report.words import percent

if TYPE_CHECKING:
    from fpl_tune.study.cells import Cell


def values(facts: Facts, cells: list[Cell] | None = None) -> pd.DataFrame:
    """Values of the report's metric as `fpl_tune.analysis` reads them.

    Returns:
        Columns `cell`, `seed`, `client`, `value`, `split`. Accuracies that records hold by client have a row per client
        (numbered from 0), other metrics one row per seed.
    """
    rows = []
    for cell in facts.cells if cells is None else cells:
        by_seed = facts.by_seed(cell, facts.metric)
        for seed, value in by_seed.items():
            clients = facts.clients(cell, seed) if facts.metric.endswith("/acc_mean") else np.array([])
            split = str((facts.store.result(cell, seed) or {}).get("split_hash"))
            rows += [(cell.id, seed, i, v, split) for i, v in enumerate(clients if len(clients) else [value])]
    return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "client", "value", "split"]))


def against_reference(facts: Facts) -> pd.DataFrame:
    """Compares every cell that has results with its reference; see `analysis.compare`.

    Returns:
        The comparisons, index cell id. `attrs["advice"]` holds how many more seeds decide what is open.
    """
    frame = values(facts)
    present = set(frame["cell"])
    pairs = {
        cell.id: base.id
        for cell in facts.cells
        if cell.id in present and (base := facts.reference_of(cell)) is not None and base.id in present - {cell.id}
    }
    names = {cell.id: facts.name(cell) for cell in facts.cells}
    rope, shares = facts.spec.report.rope / 100, percent(facts.metric)
    found = analysis.compare(frame, pairs, rope=rope, names=names, shares=shares)
    found.attrs["advice"] = analysis.advise(frame, found, study=facts.spec.name, rope=rope if shares else 0.0)
    return found
