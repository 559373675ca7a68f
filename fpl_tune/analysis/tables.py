"""Conversion of a data frame of values to arrays by cell, seed and client."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Values:
    """Values of cells, seeds and clients as one array."""

    values: Floats
    """[cells, seeds, clients]; NaN for missing and infinite values."""
    cells: tuple[str, ...]
    seeds: tuple[int, ...]
    splits: npt.NDArray[np.object_]
    """[cells, seeds] name of the data split, None where it is not known."""

    def by_split(self) -> Floats:
        """Means over clients [cells, columns], a column for each seed and split, so that cells of a column compare.

        A mean is that of the clients which all cells of the column have, or else of the cell's own.
        """
        ran = present(self.values).any(axis=2)
        seed = np.broadcast_to(np.arange(len(self.seeds)), ran.shape)
        columns = pd.Series(list(zip(seed[ran], self.splits[ran], strict=True)), dtype=object).factorize()[0]
        cell = np.nonzero(ran)[0]
        values = np.full((len(self.cells), int(columns.max(initial=-1)) + 1, self.values.shape[2]), np.nan)
        values[cell, columns] = self.values[ran]
        exists = present(values)
        common = (exists | ~exists.any(axis=2, keepdims=True)).all(axis=0)
        return seed_means(np.where(common | ~np.any(common, axis=1, keepdims=True), values, np.nan))


def read(frame: pd.DataFrame) -> Values:
    """Arranges a frame by cell, seed and client; cells keep the order in which they occur.

    Args:
        frame: columns `cell`, `seed`, `value`, and optionally `client` (without it a seed has one value) and `split`
            (the name of the data split that a seed of a cell was run on). NaN and infinite values count as missing.

    Returns:
        The values and splits.

    Raises:
        ValueError: a column is missing, a cell has two values of one seed and client, or a seed or value is no number.
    """
    if missing := {"cell", "seed", "value"} - set(frame.columns):
        raise ValueError(f"The table must have the columns cell, seed and value, but {sorted(missing)} is missing.")
    keys = ["cell", "seed", "client"] if "client" in frame else ["cell", "seed"]
    if frame.duplicated(keys).any():
        first = frame.loc[frame.duplicated(keys), keys].iloc[0].to_dict()
        raise ValueError(f"The table must have one value per {', '.join(keys)}, but has several for {first}.")
    numbers = {name: _numbers(frame[name], whole=name == "seed") for name in ("seed", "value")}
    row, cells = pd.factorize(frame["cell"])
    column, seeds = pd.factorize(numbers["seed"], sort=True)
    client, clients = pd.factorize(frame.get("client", pd.Series(0, frame.index)), sort=True)
    values = np.full((len(cells), len(seeds), max(len(clients), 1)), np.nan)
    values[row, column, client] = np.where(np.isfinite(numbers["value"]), numbers["value"], np.nan)
    splits = np.full(values.shape[:2], None, object)
    if "split" in frame:
        splits[row, column] = frame["split"]
    return Values(values, tuple(map(str, cells)), tuple(int(seed) for seed in seeds), splits)


def _numbers(column: pd.Series, *, whole: bool) -> Floats:
    """A column as numbers.

    Raises:
        ValueError: it holds something else.
    """
    numbers = pd.Series(pd.to_numeric(column, errors="coerce"), dtype=float)
    wrong = numbers.isna() & column.notna() | (whole & (numbers % 1 != 0))
    if wrong.any():
        what = "A seed must be an integer" if whole else "A value must be a number"
        raise ValueError(f"{what}, but one is {column.loc[wrong].tolist()[0]!r}.")
    return numbers.to_numpy()


def present(values: Floats) -> Bools:
    """True where a value is known."""
    return np.logical_not(np.isnan(values))


def seed_means(values: Floats) -> Floats:
    """Means over clients [..., seeds] of values [..., seeds, clients]; NaN for seeds without a value."""
    exists = present(values)
    count = exists.sum(-1)
    total = np.where(exists, values, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def t_half_width(sem: float, n: int, level: float = 0.95) -> float:
    """Half width of Student's interval of a mean of n values; NaN for fewer than two."""
    return float(special.stdtrit(n - 1, (1 + level) / 2) * sem) if n > 1 else math.nan
