"""Variance components: hyper-parameters, partition, seed, client and residual."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune.analysis.tables import Floats, Table, present, read

LEAST_SEEDS = 5
"""Seeds below which components are not estimated: at three, a true share of 16 % reads 0 to 43 %."""

CONFOUNDED = "seed and partition"
"""Name of the component if every seed has its own partition."""


def variance_split(frame: pd.DataFrame) -> pd.DataFrame:
    """Splits the variance of values into components by the method of moments (ANOVA of unweighted means).

    The model is value = mean + cell + partition + seed in partition + cell x seed + client in partition + residual, all
    random. Seeds of one split share their clients. Negative estimates are set to 0.

    Args:
        frame: see `tables.read`; without `split` every seed counts as a partition of its own.

    Returns:
        Index `component`: `hyper-parameters`, `partition` and `seed` (or `seed and partition` where every seed draws
        its own), `hyper-parameters x seed`, `client`, `residual`; columns `variance`, `sd`, `share`. A component that
        cannot be estimated is NaN. `attrs["note"]` says what was left out and what could not be estimated.
    """
    table = read(frame)
    kept, splits, notes = _complete(table)
    cells, seeds = kept.shape[:2]
    if cells < 2 or seeds < LEAST_SEEDS:
        empty = pd.DataFrame(columns=["variance", "sd", "share"]).rename_axis("component")
        empty.attrs["note"] = f"too little to split: {cells} complete cells, {seeds} seeds of at least {LEAST_SEEDS}"
        return empty
    by_seed = [kept[:, s][:, present(kept[:, s]).all(axis=0)] for s in range(seeds)]
    clients = np.array([v.shape[1] for v in by_seed])
    means = np.array([v.mean(1) for v in by_seed]).T  # [cells, seeds]
    inverse = float((1 / clients).mean())
    grand, of_cell, of_seed = means.mean(), means.mean(1), means.mean(0)
    residual, client = _within(by_seed)
    known = 0.0 if np.isnan(residual) else inverse * residual
    crossed = float(((means - of_cell[:, None] - of_seed + grand) ** 2).sum()) / ((cells - 1) * (seeds - 1))
    between = seeds * float(((of_cell - grand) ** 2).sum()) / (cells - 1)
    names = list(dict.fromkeys(splits))
    group = np.array([names.index(split) for split in splits])
    shared = 0.0 if np.isnan(client) else inverse * max(client, 0.0)
    found = {"hyper-parameters": (between - crossed) / seeds}
    if len(names) == seeds:
        spread = cells * float(of_seed.var(ddof=1))
        found[CONFOUNDED] = (spread - crossed) / cells - shared
    else:
        size = np.bincount(group)
        centre = np.bincount(group, of_seed) / size
        inside = cells * float(((of_seed - centre[group]) ** 2).sum()) / (seeds - len(names))
        if len(names) > 1:
            typical = (seeds - float((size**2).sum()) / seeds) / (len(names) - 1)
            outside = cells * float((size * (centre - of_seed.mean()) ** 2).sum()) / (len(names) - 1)
            found["partition"] = (outside - inside) / (cells * typical) - shared
        else:
            notes.append("one partition for all seeds: its variance is not in the table")
        found["seed"] = (inside - crossed) / cells
    found |= {"hyper-parameters x seed": crossed - known, "client": client, "residual": residual}
    if np.isnan(client):
        notes.append("1 client: its variance is part of the others")
    variance = pd.Series(found, name="variance").clip(lower=0.0)
    result = pd.DataFrame({"variance": variance, "sd": np.sqrt(variance)}).rename_axis("component")
    total = float(variance.sum())
    result["share"] = variance / total if total > 0 else np.nan
    result.attrs["note"] = "; ".join(notes)
    return result


def _complete(table: Table) -> tuple[Floats, list[object], list[str]]:
    """Values and splits of the cells that have all seeds, or else of the seeds that all cells have."""
    ran = pd.DataFrame(present(table.values).any(axis=2))
    rows, columns = ran.all(axis=1).to_numpy(), np.full(len(table.seeds), True)
    if rows.sum() < 2:
        rows = ran.any(axis=1).to_numpy()
        columns = ran.loc[rows].all().to_numpy()
    notes = []
    if out := int((~rows).sum()):
        notes.append(f"{out} of {len(rows)} cells left out: seeds missing")
    if out := int((~columns).sum()):
        notes.append(f"{out} of {len(columns)} seeds left out: not in all cells")
    picked = table.splits[rows][:, columns]
    same = [len(set(column)) == 1 for column in picked.T]
    if not all(same):
        notes.append(f"{same.count(False)} seeds left out: cells have different splits")
    values = table.values[rows][:, columns][:, same]
    together: Any = present(values).all(axis=0)
    usable = together.any(axis=1)  # seeds of which all cells share a client
    splits = [split if split is not None else s for s, split in enumerate(picked[0][same])] if len(picked) else []
    return values[:, usable], list(itertools.compress(splits, usable)), notes


def _within(by_seed: list[Floats]) -> tuple[float, float]:
    """Variance of residuals and of clients inside seeds; NaN where no seed has two clients."""
    cells = by_seed[0].shape[0]
    freedom = sum(v.shape[1] - 1 for v in by_seed)
    if freedom == 0:
        return float("nan"), float("nan")
    rest = clients = 0.0
    for v in by_seed:
        client = v.mean(0)
        clients += cells * float(((client - client.mean()) ** 2).sum())
        rest += float(((v - v.mean(1, keepdims=True) - client + v.mean()) ** 2).sum())
    residual = rest / (freedom * (cells - 1))
    return residual, (clients / freedom - residual) / cells
