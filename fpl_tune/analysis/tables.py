"""Conversion of a data frame of values to arrays by cell, seed and client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """Values of cells, seeds and clients as one array."""

    values: Floats
    """[cells, seeds, clients]; NaN for missing and infinite values."""
    cells: tuple[str, ...]
    seeds: tuple[int, ...]
    splits: npt.NDArray[np.object_]
    """[cells, seeds] name of the data split, None where it is not known."""

    def of(self, cell: str) -> Floats:
        """Values [seeds, clients] of a cell.

        Raises:
            KeyError: the cell is unknown.
        """
        if cell not in self.cells:
            raise KeyError(cell)
        return self.values[self.cells.index(cell)]


def read(frame: pd.DataFrame) -> Table:
    """Arranges a frame by cell, seed and client; cells keep the order in which they occur.

    Args:
        frame: columns `cell`, `seed`, `value`, and optionally `client` (without it a seed has one value) and `split`
            (the name of the data split that a seed of a cell was run on). NaN and infinite values count as missing.

    Returns:
        The values and splits.

    Raises:
        ValueError: a column is missing, or a cell has two values of one seed and client.
    """
    if missing := {"cell", "seed", "value"} - set(frame.columns):
        raise ValueError(f"The table must have the columns cell, seed and value, but {sorted(missing)} is missing.")
    keys = ["cell", "seed", "client"] if "client" in frame else ["cell", "seed"]
    if frame.duplicated(keys).any():
        first = frame.loc[frame.duplicated(keys), keys].iloc[0].to_dict()
        raise ValueError(f"The table must have one value per {', '.join(keys)}, but has several for {first}.")
    row, cells = pd.factorize(frame["cell"])
    column, seeds = pd.factorize(frame["seed"], sort=True)
    client, clients = pd.factorize(frame.get("client", pd.Series(0, frame.index)), sort=True)
    values = np.full((len(cells), len(seeds), max(len(clients), 1)), np.nan)
    values[row, column, client] = frame["value"].astype(float).replace([np.inf, -np.inf], np.nan)
    splits = np.full(values.shape[:2], None, object)
    if "split" in frame:
        splits[row, column] = frame["split"]
    return Table(values, tuple(map(str, cells)), tuple(int(seed) for seed in seeds), splits)


def present(values: Floats) -> Bools:
    """True where a value is known."""
    return np.logical_not(np.isnan(values))


def seed_means(values: Floats) -> Floats:
    """Means over clients [..., seeds] of values [..., seeds, clients]; NaN for seeds without a value."""
    known = present(values)
    count = known.sum(-1)
    total = np.where(known, values, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def by_seed(frame: pd.DataFrame) -> pd.DataFrame:
    """Means over clients of a frame as `read` takes it: a row per cell, a column per seed."""
    table = read(frame)
    return pd.DataFrame(seed_means(table.values), pd.Index(table.cells, name="cell"), table.seeds)
