"""A study's cells against their references, and what the seeds of the study can say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.formatting import interval, percent, signed
from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import Cell, axes_of


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
            split = str(facts.result(cell, seed).get("split_hash"))
            rows += [(cell.id, seed, i, v, split) for i, v in enumerate(clients if len(clients) else [value])]
    return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "client", "value", "split"]))


def compared(
    facts: Facts, frame: pd.DataFrame, pairs: Mapping[str, str], names: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Compares cells as the study's report asks for; see `analysis.compare`."""
    rope, shares = facts.spec.report.rope / 100, percent(facts.metric)
    return analysis.compare(frame, pairs, rope=rope, names=names, shares=shares)


def against_reference(facts: Facts) -> pd.DataFrame:
    """Compares every cell that has results with its reference; see `analysis.compare`.

    Returns:
        The comparisons, index cell id. `attrs["advice"]` holds how many more seeds decide what is open, and
        `attrs["apart"]` the number of cells that have no partition in common with their reference, and no row.
    """
    frame = values(facts)
    present = set(frame["cell"])
    every = {
        cell.id: base.id
        for cell in facts.cells
        if cell.id in present and (base := facts.reference_of(cell)) is not None and base.id in present - {cell.id}
    }
    splits = {str(cell): set(zip(rows["seed"], rows["split"], strict=True)) for cell, rows in frame.groupby("cell")}
    seeds = {cell: {seed for seed, _ in found} for cell, found in splits.items()}
    pairs = {a: b for a, b in every.items() if splits[a] & splits[b] or not seeds[a] & seeds[b]}
    names = {cell.id: facts.name(cell) for cell in facts.cells}
    found = compared(facts, frame, pairs, names)
    rope = facts.spec.report.rope / 100 if percent(facts.metric) else 0.0
    found.attrs["advice"] = analysis.advise(
        frame, found, study=facts.spec.name, rope=rope, narrow=lambda cells: narrowed(facts, cells)
    )
    found.attrs["apart"] = len(every) - len(pairs)
    return found


def judged(facts: Facts, row: Mapping[Any, Any]) -> list[str]:
    """Difference, interval and verdict of a comparison as texts."""
    return [signed(row["difference"], facts.metric), interval(row, facts.metric), str(row["verdict"])]


def narrowed(facts: Facts, cells: Sequence[str]) -> str:
    """Overrides that leave the values of the axes which some cells take, such as `axes.method.lam=[0.25,0.5]`.

    Args:
        facts: the study.
        cells: ids; references run whatever the axes are.

    Returns:
        Overrides for a shell; empty where the study is searched, where the cells take all values of all axes, or where
        one that is left out cannot be written plainly.
    """
    if facts.spec.search.sampler is not None:
        return ""
    wanted = [cell.varied for cell in facts.own if cell.id in cells]
    found: list[str] = []
    for axis, values in axes_of(facts.spec.axes).items():
        taken = {repr(varied[axis]) for varied in wanted if axis in varied}
        kept = [value for value in values if repr(value) in taken]
        if not kept or len(kept) == len(values):
            continue
        if not all(isinstance(v, int | float) or (isinstance(v, str) and _PLAIN.fullmatch(v)) for v in kept):
            return ""
        written = ",".join(json.dumps(v) if isinstance(v, bool) else str(v) for v in kept)
        found.append(shlex.quote(f"axes.{axis}=[{written}]"))
    return " ".join(found)


_PLAIN = re.compile(r"(?!(true|false|null|none|yes|no|on|off)$)[a-z][a-z0-9_]*", re.IGNORECASE)
