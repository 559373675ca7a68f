"""One of our figures beside one that a paper prints, in one unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fpl_tune.report import words
from fpl_tune.study.cells import Cell


@dataclass(frozen=True)
class Printed:
    """One of our figures beside what the paper prints, in the unit that it prints."""

    label: str
    ours: float
    spread: float
    method: str
    dataset: str
    mean: float
    std: float
    comparable: bool
    """The paper's figure is of the data set that the cell ran on, with the paper's backbone class, and no time."""
    note: str = ""
    """What the label does not say of ours."""

    @property
    def gap(self) -> float:
        """Ours minus printed; nan where they are not comparable."""
        return self.ours - self.mean if self.comparable else math.nan


@dataclass(frozen=True)
class Quantity:
    """A figure of which the paper prints one or more values."""

    name: str
    unit: str
    """`%`, `M` (millions), `s` or nothing."""
    rows: list[Printed]

    @cached_property
    def order(self) -> float:
        """Kendall's rank correlation between our values and the printed ones; nan below three rows."""
        pairs = pd.DataFrame([(row.ours, row.mean) for row in self.rows], columns=pd.Index(["ours", "mean"]))
        return float(pairs["ours"].corr(pairs["mean"], method="kendall")) if len(pairs) > 2 else math.nan


def unit_of(metric: str, printed: pd.DataFrame) -> str:
    """The unit that both are shown in."""
    if words.percent(metric):
        return "%"
    if metric.startswith("time/"):
        return "s"
    return "M" if len(printed) and str(printed["metric"].iloc[0]).endswith("(M)") else ""


_SCALE = {"%": 100.0, "M": 1e-6}
"""What a figure of ours is multiplied with."""


def set_beside(
    cell: Cell, name: str, ours: Sequence[float], unit: str, shown: pd.DataFrame, same: bool, note: str = ""
) -> Printed:
    """Values of ours over seeds beside one printed figure, or the mean of several; seconds add up."""
    alone, summed, scale = len(shown) == 1, unit == "s", _SCALE.get(unit, 1.0)
    return Printed(
        label=name, ours=scale * float(np.mean(ours)),
        spread=scale * float(np.std(ours, ddof=1)) if len(ours) > 1 else math.nan,
        method=str(shown["method"].iloc[0]), mean=float(shown["mean"].sum() if summed else shown["mean"].mean()),
        dataset=str(shown["dataset"].iloc[0]) if alone else f"{'sum' if summed else 'mean'} over {_several(shown)}",
        std=float(shown["std"].iloc[0]) if alone else math.nan,
        comparable=same and cell.run.clip.name != "compact" and not summed, note=note,
    )  # fmt: skip


def _several(shown: pd.DataFrame) -> str:
    """What several printed figures are of."""
    one = shown["base"].nunique() == 1 and shown["target"].nunique() == len(shown)
    return f"{len(shown)} domains of {shown['dataset'].iloc[0].partition('/')[0]}" if one else f"{len(shown)} data sets"
