"""Which cells differ significantly: values by seed and client, group letters, and the plateau of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.findings.choice import setting_of
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import Run
from fpl_tune.study.standing import Row

MOST = 40
"""Maximum number of cells of a setting; with more, no group letters are shown."""


@dataclass(frozen=True)
class SweptAxis:
    """The values of a swept axis. With several settings, the first cell of a value stands for all its cells."""

    cells_by_value: Sequence[Sequence[Cell]]
    """The compared cells of each value that has one in every setting, in ascending order of the values."""
    means: dict[str, float]
    """Mean of the metric, by the id of the first cell of each value."""
    best: str | None
    """Id of the first cell of the chosen value."""
    result: analysis.Sweep | None
    """The values that are as good as the best; None if nothing is chosen, or only one value has results."""
    seeds: int


def clients_of(run: Run, metric: str, rule: str) -> np.ndarray:
    """[N] accuracy of each client on a metric's set under a reporting rule; empty if records have none."""
    name = metric.split("/")[-2] if "/" in metric else "test"
    chosen = run.rules.get(rule, {}).get("round", math.inf)
    records = [r for r in run.records() if r["round"] <= chosen and f"clients/{name}" in r]
    last = records[-5:] if rule == "mean_last5" else records[-1:]
    return np.mean([record[f"clients/{name}"] for record in last], axis=0) if last else np.array([])


def values_of(rows: Iterable[Row], metric: str, rule: str) -> pd.DataFrame:
    """A metric of the cells that are compared, in the form that `fpl_tune.analysis` takes.

    Returns:
        Columns `cell`, `seed`, `client`, `value`, `split`. Accuracies that records have by client get a row per client
        (numbered from 0), other metrics one row per seed.
    """
    values = []
    for row in rows:
        for seed, value in row.values(metric, rule).items() if row.compared else ():
            run, key = row.results[seed], row.cell.id
            clients = clients_of(run, metric, rule) if metric.endswith("/acc_mean") else np.array([])
            values += [(key, seed, i, v, run.split_hash) for i, v in enumerate(clients if len(clients) else [value])]
    return pd.DataFrame(values, columns=pd.Index(["cell", "seed", "client", "value", "split"]))


def sweep_of(
    values: pd.DataFrame, cells: Iterable[Cell], axis: str, chosen: Sequence[str], options: Mapping[str, Any]
) -> SweptAxis:
    """Compares the values of a swept axis; with several settings, their means over the settings.

    Args:
        values: see `values_of`.
        cells: the cells that are compared.
        axis: the swept field.
        chosen: ids of the chosen cells.
        options: further arguments of `analysis.sweep`.
    """
    groups: dict[float, dict[str, Cell]] = {}
    for cell in cells:
        groups.setdefault(float(cell.varied[axis]), {})[setting_of(cell)] = cell
    settings = dict.fromkeys(setting for group in groups.values() for setting in group)
    by_value = [[groups[value][setting] for setting in settings]
                for value in sorted(groups) if groups[value].keys() == settings.keys()]  # fmt: skip
    frame = analysis.mean_over(values, {group[0].id: [cell.id for cell in group] for group in by_value})
    means: dict[str, float] = frame.groupby("cell", sort=False)["value"].mean().to_dict()  # in the axis' order
    best = next((group[0].id for group in by_value if {cell.id for cell in group} <= {*chosen}), None)
    if best not in means or best is None or len(means) < 2:
        return SweptAxis(by_value, means, best if best in means else None, None, 0)
    if len(settings) == 1:
        frame = values.loc[values["cell"].isin(means)]
    result = analysis.sweep(frame, list(means), best, **options)
    return SweptAxis(by_value, means, best, result, frame["seed"].nunique())


def letters_of(values: pd.DataFrame, settings: Iterable[Sequence[str]], **options: Any) -> dict[str, str]:
    """Group letters of cells by id, from `analysis.letters` over the cells of each setting.

    Args:
        values: see `values_of`.
        settings: the ids of the cells of each setting. One with a single cell, with more than 40, or with one seed has
            no letters.
        options: further arguments of `analysis.letters`.
    """
    letters: dict[str, str] = {}
    for ids in settings:
        frame = values.loc[values["cell"].isin(ids)]
        if 2 <= len(ids) <= MOST and frame.groupby("cell")["seed"].nunique().max() > 1:
            letters |= {str(key): text for key, text in analysis.letters(frame, **options).items()}
    return letters
