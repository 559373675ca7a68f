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
from fpl_tune.core.formatting import interval, numeric, percent, signed
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


def neighbours(facts: Facts) -> list[Cell]:
    """Cells that lie next to the best one: the nearest numbers and all names along one axis, the others being equal.

    In a search, where no two cells differ in one field alone, the three that follow on validation.
    """
    if facts.best is None:
        return []
    best, found = facts.best, list[Cell]()
    done = [c for c in facts.finished if c.candidate and c.id != best.id]
    for axis in facts.axes:
        alike = [c for c in done if axis in c.varied and {**c.varied, axis: 0} == {**best.varied, axis: 0}]
        if axis in best.varied and numeric([c.varied[axis] for c in (best, *alike)]):
            gap = {c.id: c.varied[axis] - best.varied[axis] for c in alike}
            below, above = ([c for c in alike if sign * gap[c.id] > 0] for sign in (-1, 1))
            alike = [min(side, key=lambda c: abs(gap[c.id])) for side in (below, above) if side]
        found += alike
    if not found and facts.searched:
        found = [c for c in facts.listed if c in done][:3]
    return found


def against_neighbours(facts: Facts) -> pd.DataFrame:
    """Compares the best cell with its neighbours: a row per neighbour, `difference` being best minus neighbour.

    Returns:
        Index: the neighbours' names. Columns: `difference`, `low`, `high`, `verdict` (of the best cell), `seeds`.
    """
    cells = neighbours(facts)
    columns = ["difference", "low", "high", "verdict", "seeds"]
    if facts.best is None or not cells:
        return pd.DataFrame(columns=pd.Index(columns))
    found = compared(facts, values(facts, [facts.best, *cells]), {cell.id: facts.best.id for cell in cells})
    turned = found.assign(
        difference=-found["difference"], low=-found["high"], high=-found["low"],
        verdict=found["verdict"].replace({"better": "worse", "worse": "better"}),
    )  # fmt: skip
    return turned.loc[:, columns].set_axis([facts.name(cell) for cell in cells])


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
