"""One of our values beside one that a paper prints, in one unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from fpl_tune.core.formatting import percent
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import LEARNED, aggregate


class Figure(NamedTuple):
    """A value that a paper prints."""

    method: str
    """As the paper names it."""
    place: str
    """As the study file names it: `data`, `data/target domain`, `data/target domain<client's domain`, `average`."""
    mean: float
    std: float
    """NaN where none is printed."""

    @property
    def data(self) -> str:
        """Data set, or `average` over data sets."""
        return self.place.partition("/")[0]

    @property
    def target(self) -> str:
        """Domain that is tested on; `` or `average`: all."""
        return self.place.partition("/")[2].partition("<")[0]

    @property
    def source(self) -> str:
        """Domain of the client whose model is tested; ``: all."""
        return self.place.partition("<")[2]


@dataclass(frozen=True)
class Printed:
    """One of our values beside what the paper prints, in the unit that it prints."""

    label: str
    ours: float
    spread: float
    method: str
    dataset: str
    mean: float
    std: float
    comparable: bool
    """The paper's value is of the data set that the cell ran on, with the paper's backbone class, and not a time."""
    note: str = ""
    """What the label does not say of ours."""

    @property
    def gap(self) -> float:
        """Ours minus printed; NaN where they are not comparable."""
        return self.ours - self.mean if self.comparable else math.nan


@dataclass(frozen=True)
class Quantity:
    """A quantity of which the paper prints one or more values."""

    name: str
    unit: str
    """`%`, `M` (millions), `s` or nothing."""
    rows: list[Printed]

    @property
    def order(self) -> float:
        """Kendall's rank correlation between our values and the printed ones; NaN below three rows."""
        pairs = pd.DataFrame([(row.ours, row.mean) for row in self.rows], columns=pd.Index(["ours", "mean"]))
        return float(pairs["ours"].corr(pairs["mean"], method="kendall")) if len(pairs) > 2 else math.nan


def unit_of(metric: str) -> str:
    """The unit that both are shown in."""
    return "%" if percent(metric) else "s" if metric.startswith("time/") else "M" if metric == LEARNED else ""


_SCALE = {"%": 100.0, "M": 1e-6}
"""What a value of ours is multiplied by."""


def set_beside(
    cell: Cell, name: str, ours: Sequence[float], unit: str, shown: Sequence[Figure], same: bool, note: str = ""
) -> Printed:
    """Sets values of ours over seeds beside one printed value, or the mean of several; seconds add up."""
    alone, summed, scale = len(shown) == 1, unit == "s", _SCALE.get(unit, 1.0)
    found, total = aggregate(ours), math.fsum(figure.mean for figure in shown)
    return Printed(
        label=name, ours=scale * found["mean"], spread=scale * found["std"],
        method=shown[0].method, mean=total if summed else total / len(shown),
        dataset=shown[0].place if alone else f"{'sum' if summed else 'mean'} over {_several(shown)}",
        std=shown[0].std if alone else math.nan,
        comparable=same and cell.run.clip.name != "compact" and not summed, note=note,
    )  # fmt: skip


def _several(shown: Sequence[Figure]) -> str:
    """What several printed values are of."""
    one = len({figure.data for figure in shown}) == 1 and len({figure.target for figure in shown}) == len(shown)
    return f"{len(shown)} domains of {shown[0].data}" if one else f"{len(shown)} data sets"
