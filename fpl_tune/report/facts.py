"""What a report needs to know of a study, read once from its store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from fpl_tune.study import results
from fpl_tune.study.cells import label, shown

if TYPE_CHECKING:
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store

SELECTED_BY = "val/acc_mean"
"""The metric that the best cell is chosen by: never a test figure."""


class Facts:
    """A study as tables: one row per cell, curves per seed, accuracies per client.

    Args:
        store: the study's store.
        metric, rule: what is shown, `test/acc_mean` of the `final` round unless the study's report says otherwise.
    """

    def __init__(self, store: Store, *, metric: str | None = None, rule: str | None = None) -> None:
        self.store = store
        self.spec = store.spec()
        self.metric = metric or self.spec.report.metric
        self.rule = rule or self.spec.report.rule
        self.cells: list[Cell] = sorted(store.cells(), key=lambda cell: cell.number)
        self.by_label = {cell.label: cell for cell in self.cells}
        self.frame = self._with_metric(store.frame())

    def _with_metric(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The store's rows with a column of the metric, read from histories where the store has none."""
        if self.metric not in frame.columns:
            by_id = {cell.id: cell for cell in self.cells}
            frame[self.metric] = [
                results.figure(history, self.metric, rule)
                if (history := self.store.history(by_id[key], seed))
                else math.nan
                for key, seed, rule in zip(frame["cell"], frame["seed"], frame["rule"], strict=True)
            ]
        return frame

    @cached_property
    def _ended(self) -> pd.DataFrame:
        """Rows of seeds that ended well."""
        return self.frame.loc[self.frame["status"].isin(["done", "pruned"])]

    @cached_property
    def _seeds(self) -> dict[str, list[int]]:
        pairs = self._ended[["cell", "seed"]].drop_duplicates()
        return {str(key): sorted(map(int, seeds)) for key, seeds in pairs.groupby("cell")["seed"]}

    @cached_property
    def axes(self) -> list[str]:
        """Dotted fields in which the study's own cells differ, in the study's order."""
        names = dict.fromkeys(name for cell in self.own for name in cell.varied)
        return [n for n in names if len({repr(cell.varied.get(n)) for cell in self.own}) > 1]

    @property
    def own(self) -> list[Cell]:
        """Cells and trials, without the references."""
        return [cell for cell in self.cells if cell.role != "reference"]

    @property
    def references(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.role == "reference"]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per cell, index `cell`: label, role, axes, status, n, val, mean, std, sem,
        half (of the 95 % t interval), bytes (both ways) and seconds per seed.
        """
        done = self._ended[self._ended["rule"] == self.rule]
        over_seeds = pd.DataFrame(done).astype({SELECTED_BY: float, self.metric: float}).groupby("cell")
        seen = self.frame[["cell", "seed", "status"]].drop_duplicates()
        states = {str(key): list(map(str, rows)) for key, rows in seen.groupby("cell")["status"]}
        table = pd.DataFrame(
            {
                "label": [cell.label for cell in self.cells],
                "role": [cell.role for cell in self.cells],
                **{axis: [self.scalar(cell, axis) for cell in self.cells] for axis in self.axes},
            },
            index=pd.Index([cell.id for cell in self.cells], name="cell"),
        )
        wanted = len(self.spec.seed_list())
        table["status"] = [_status(states.get(key, []), wanted) for key in table.index]
        table["n"] = over_seeds[self.metric].count().reindex(table.index).fillna(0).astype(int)
        table["val"] = over_seeds[SELECTED_BY].mean()
        table["mean"] = over_seeds[self.metric].mean()
        table["std"] = over_seeds[self.metric].std(ddof=1)
        table["sem"] = table["std"] / table["n"].clip(lower=1) ** 0.5
        table["half"] = [interval(sem, n) for sem, n in zip(table["sem"], table["n"], strict=True)]
        table["bytes"] = (over_seeds["comm/up_bytes"].mean() + over_seeds["comm/down_bytes"].mean()).astype(float)
        table["seconds"] = over_seeds["time/seconds"].mean().astype(float)
        return table

    @staticmethod
    def scalar(cell: Cell, axis: str) -> Any:
        """A cell's place on an axis: numbers as they are, all else as labels show it, None where it has no place."""
        if axis not in cell.varied:
            return None
        value = cell.varied[axis]
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else shown(value)

    @cached_property
    def best(self) -> Cell | None:
        """The study's own finished cell of the highest validation accuracy; the first of equals."""
        return self._best([cell.id for cell in self.own])

    def _best(self, ids: Sequence[str]) -> Cell | None:
        val = self.table.loc[list(ids), "val"].dropna()
        if val.empty:
            return None
        chosen = val.index[int(np.argmax(val.to_numpy()))]
        return next(cell for cell in self.cells if cell.id == chosen)

    def family(self, cell: Cell) -> str:
        """A reference's name whatever the axes are: references stand at every value of the axes they leave open."""
        return label({name: value for name, value in cell.varied.items() if name not in self.axes})

    @cached_property
    def reference(self) -> str | None:
        """Name of what others are tested against: the study's choice, else the first reference, else the best cell."""
        finished = [c for c in self.cells if self.table.loc[c.id, "n"] > 0]
        names = [self.family(c) for c in finished if c.role == "reference"]
        named = self.spec.report.reference
        if named is not None and (named in names or named in [c.label for c in finished]):
            return named
        return names[0] if names else self.best.label if self.best is not None else None

    def reference_of(self, cell: Cell) -> Cell | None:
        """The cell that a cell is tested against: of the reference, the one at the same place of the axes."""
        for other in self.references:
            places = {name: shown(value) for name, value in other.varied.items() if name in self.axes}
            if self.family(other) == self.reference and all(
                name in cell.varied and shown(cell.varied[name]) == place for name, place in places.items()
            ):
                return other
        return self.by_label.get(str(self.reference))

    def notable(self, limit: int) -> list[Cell]:
        """At most about `limit` cells to draw, in the study's order: one of each reference, and the best by validation.

        Of a reference that stands at several places of the axes, the one at the best cell's place.
        """
        finished = [cell for cell in self.cells if self.table.loc[cell.id, "n"] > 0]
        near = self.best.varied if self.best is not None else {}
        shown_references: dict[str, Cell] = {}
        for cell in finished:
            here = all(near.get(name) == value for name, value in cell.varied.items() if name in self.axes)
            if cell.role == "reference" and (here or self.family(cell) not in shown_references):
                shown_references[self.family(cell)] = cell
        own = sorted((c for c in finished if c.role != "reference"), key=lambda c: -self.table.loc[c.id, "val"])
        kept = own[: max(limit - len(shown_references), 1)] + list(shown_references.values())[: max(limit - 1, 1)]
        return sorted(kept, key=lambda cell: cell.number)

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds of a cell that ended well."""
        return self._seeds.get(cell.id, [])

    def curve(self, cell: Cell, metric: str) -> pd.DataFrame:
        """A metric by round (rows) and seed (columns); rounds that were not evaluated are left out."""
        series = {}
        for seed in self.seeds(cell):
            records = [r for r in self.store.history(cell, seed) if r.get(metric) is not None]
            series[seed] = pd.Series({r["round"]: float(r[metric]) for r in records}, dtype=float)
        return pd.DataFrame(series).sort_index()

    def clients(self, cell: Cell, seed: int) -> np.ndarray:
        """[N] accuracy on the metric's set in the round that the rule chose; empty where none was kept."""
        name = self.metric.split("/")[-2] if "/" in self.metric else "test"
        result = self.store.result(cell, seed) or {}
        chosen = result.get("rules", {}).get(self.rule, {}).get("round")
        for record in reversed(self.store.history(cell, seed)):
            if (chosen is None or record["round"] <= chosen) and f"clients/{name}" in record:
                return np.array([math.nan if a is None else a for a in record[f"clients/{name}"]], float)
        return np.array([])

    def habits(self, cells: Iterable[Cell]) -> pd.DataFrame:
        """Mean figure of cells (rows, by label) under every reporting rule (columns)."""
        wide = self._ended.pivot_table(index="cell", columns="rule", values=self.metric, aggfunc="mean", sort=False)
        kept = [cell for cell in cells if cell.id in wide.index]
        return wide.loc[[cell.id for cell in kept]].set_axis([cell.label for cell in kept])


def interval(sem: float, n: int, level: float = 0.95) -> float:
    """Half width of Student's interval of a mean of n values; nan below two values."""
    return float(stats.t.ppf((1 + level) / 2, n - 1) * sem) if n > 1 else math.nan


def numeric(values: Iterable[Any]) -> bool:
    """Whether all values (None aside) are numbers, so that they make an axis of a plot."""
    present = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    return bool(present) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in present)


def _status(states: Sequence[str], wanted: int) -> str:
    """Of a cell from its seeds': the worst of them; `running` or `pending` where some are missing."""
    for status in ("failed", "diverged", "pruned"):
        if status in states:
            return status
    return "done" if len(states) >= wanted else "running" if states else "pending"
