"""A study's results as tables, read once from its store."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fpl_tune.analysis import t_half_width
from fpl_tune.errors import ConfigError
from fpl_tune.evaluate import check_rule
from fpl_tune.formatting import numeric
from fpl_tune.search.gains import searches
from fpl_tune.study import earlier, results
from fpl_tune.study.cells import axes_of, label, shown
from fpl_tune.study.results import aggregate
from fpl_tune.study.selection import Choice, choose

if TYPE_CHECKING:
    from fpl_tune.search.suggest import Part
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store

_USUAL = ("val", "test", "train", "comm", "time", "clients", "diagnosis", "seed", "round")

LONG = 40
"""Letters from which on a cell's label takes too much room in a figure."""


class Readings:
    """A study as tables: one row per cell, curves per seed, accuracies per client.

    Args:
        store: the study's store.
        metric, rule: what is shown, `test/acc_mean` of the `final` round unless the study's report says otherwise.

    Raises:
        ConfigError: an asked for metric or rule is not in the study.
    """

    def __init__(self, store: Store, *, metric: str | None = None, rule: str | None = None) -> None:
        self.store = store
        self.spec = store.spec()
        self.metric = metric or self.spec.report.metric
        self.rule = rule or self.spec.report.rule
        cells = sorted(store.cells(), key=lambda cell: cell.number)
        self.cells: list[Cell] = [cell for cell in cells if cell.role != "ablation"]
        self.ablated = len(self.cells) < len(cells) or self.spec.ablate is not None
        self.by_label = {cell.label: cell for cell in self.cells}
        store.check()  # leaves out what is damaged
        self.frame = store.frame(self.metric)
        if metric is not None and len(self.frame) and self.frame[metric].isna().all():
            raise ConfigError(f"A metric is a name in the records, such as test/acc_mean, but none holds {metric!r}.")
        check_rule(self.rule)

    @cached_property
    def _ended(self) -> pd.DataFrame:
        """Rows of seeds that ended well."""
        return results.counted(self.frame)

    @cached_property
    def _seeds(self) -> dict[str, list[int]]:
        pairs = self._ended[["cell", "seed"]].drop_duplicates()
        return {str(key): sorted(map(int, seeds)) for key, seeds in pairs.groupby("cell")["seed"]}

    @cached_property
    def axes(self) -> list[str]:
        """Dotted fields in which the study's own cells differ, in the study's order."""
        names = dict.fromkeys(name for cell in self.own for name in cell.varied)
        return [n for n in names if len({repr(cell.varied.get(n)) for cell in self.own}) > 1]

    @cached_property
    def extra(self) -> list[str]:
        """What records hold beyond accuracies, costs and lists: figures of a method, such as `privacy/epsilon`."""
        last = [self.store.history(cell, seed)[-1] for cell in self.cells for seed in self.seeds(cell)[:1]]
        named = dict.fromkeys(name for record in last for name, value in record.items() if isinstance(value, float))
        return [name for name in named if name.partition("/")[0] not in _USUAL and name != self.metric]

    @property
    def basis(self) -> str:
        """How many seeds and which round a figure of the page rests on, for captions."""
        n = sorted({int(n) for n in self.table["n"] if n})
        seeds = "–".join(str(v) for v in ([n[0], n[-1]] if len(n) > 1 else n)) or "no"
        return f"n = {seeds} {'seed' if n == [1] else 'seeds'}, rule “{self.rule}”"

    @property
    def own(self) -> list[Cell]:
        """Cells and trials, without the references."""
        return [cell for cell in self.cells if cell.candidate]

    @property
    def references(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.role == "reference"]

    @cached_property
    def searched(self) -> bool:
        return any(cell.role == "trial" for cell in self.own)

    @cached_property
    def listed(self) -> list[Cell]:
        """Cells as tables list them: in the study's order, but trials from the best on validation down."""
        if not self.searched:
            return self.cells
        val = self.table["val"].fillna(-1.0)
        return [*sorted(self.own, key=lambda cell: -val[cell.id]), *self.references]

    @cached_property
    def gridded(self) -> list[str]:
        """Dotted names of the study's axes, what is searched left out."""
        return list(axes_of(self.spec.axes))

    def part(self, cell: Cell) -> str:
        """Where a cell stands on the study's axes, whatever was searched there; empty where there are none."""
        place = {name: value for name, value in cell.varied.items() if name in self.gridded}
        return label(place) if place else ""

    def name(self, cell: Cell) -> str:
        """What the page calls a cell: its label or, where that is long, its part of the axes and its number."""
        kind = "trial" if cell.role == "trial" else "cell"
        return cell.label if len(cell.label) <= LONG else f"{self.part(cell)[:LONG]} {kind} {cell.number}".strip()

    @cached_property
    def keys(self) -> dict[str, int]:
        """Numbers of the cells in the page's data, by id: a study numbers its trials and its references apart."""
        return {cell.id: i for i, cell in enumerate(self.cells)}

    @staticmethod
    def column(axis: str) -> str:
        """A field's name in the page's data: Vega-Lite reads dots as nesting."""
        return axis.replace(".", "_")

    @cached_property
    def earlier(self) -> set[str]:
        """Ids of the cells of earlier runs of the study."""
        return earlier.marked(self.store)

    @cached_property
    def _parts(self) -> list[Part]:
        return searches(self.spec, self.store.node()) if self.searched else []

    @cached_property
    def published(self) -> set[str]:
        """Ids of the trials that a search takes from the papers."""
        return {key for part in self._parts for key in part.published}

    def logarithmic(self, axis: str) -> bool:
        """Whether a field is searched on a log scale, or its values in a grid span a factor of 50."""
        known = [param.distribution for part in self._parts for param in part.space.params if param.name == axis]
        if known:
            return any(getattr(distribution, "log", False) for distribution in known)
        values = [v for v in self.table[axis] if v is not None and v == v]
        return numeric(values) and min(values) > 0 and max(values) >= 50 * min(values)

    def spread(self, cell: Cell, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of a metric over seeds; NaN where there are too few."""
        found = aggregate(self.values(cell, metric))
        return found["mean"], found["std"]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per cell, index `cell`: label, role, axes, status, n, val, mean, std, sem,
        half (of the 95 % t interval), bytes (both ways) and seconds per seed, and the means of `extra`.
        """
        rows = results.summary(self.frame, self.cells, self.spec.seed_list(), self.rule, self.metric)
        rows = rows.set_index("cell")
        table = rows[["label", "role"]].assign(**{n: [self.scalar(c, n) for c in self.cells] for n in self.axes})
        table = table.assign(
            **{name: rows[name] for name in ("status", "n", "mean", "std", "sem")}, val=rows[results.VAL]
        )
        table["half"] = [t_half_width(sem, n) for sem, n in zip(table["sem"], table["n"], strict=True)]
        table["bytes"] = (rows["comm/up_bytes"] + rows["comm/down_bytes"]).astype(float)
        table["seconds"] = rows["time/seconds"].astype(float)
        for name in self.extra:
            table[name] = [self.spread(cell, name)[0] for cell in self.cells]
        return table

    def values(self, cell: Cell, metric: str) -> list[float]:
        """A metric of every seed that ended well, in the round that the rule chose; of seeds whose records hold it."""
        return list(self.by_seed(cell, metric).values())

    def by_seed(self, cell: Cell, metric: str) -> dict[int, float]:
        """The same by seed."""
        if metric == self.metric:
            rows = self._ended[(self._ended["rule"] == self.rule) & (self._ended["cell"] == cell.id)]
            found = {int(seed): float(value) for seed, value in zip(rows["seed"], rows[metric], strict=True)}
        else:
            seeds = self.seeds(cell)
            found = {seed: results.figure(self.store.history(cell, seed), metric, self.rule) for seed in seeds}
        return {seed: value for seed, value in found.items() if not math.isnan(value)}

    def validation(self, metric: str = results.VAL) -> pd.DataFrame:
        """A metric of all cells as `fpl_tune.analysis` reads it: `cell`, `seed`, `value`, in the round of the rule."""
        rows = self._ended.loc[self._ended["rule"] == self.rule, ["cell", "seed", metric]]
        return rows.rename(columns={metric: "value"}).astype({"value": float})

    @staticmethod
    def scalar(cell: Cell, axis: str) -> Any:
        """A cell's place on an axis: numbers as they are, all else as labels show it, None where it has no place."""
        if axis not in cell.varied:
            return None
        value = cell.varied[axis]
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else shown(value)

    @cached_property
    def choice(self) -> Choice | None:
        """What validation chooses among the study's own finished cells; None where nothing compares."""
        return choose(self.frame, self.own, self.spec, self.rule)

    @property
    def best(self) -> Cell | None:
        """The chosen cell; where there is one per data set, the first."""
        return self.choice.cell if self.choice else None

    @property
    def chosen(self) -> list[str]:
        """Ids of the chosen cells: one, or one per data set."""
        return [cell.id for cell in self.choice.cells] if self.choice else []

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
