"""A study's results as the page shows them, read once from its store: tables, curves, names and colours of cells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fpl_tune.analysis import t_half_width
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import numeric
from fpl_tune.core.metrics import check_rule, of_method
from fpl_tune.report.reference import Reference
from fpl_tune.search.gains import searches
from fpl_tune.simulation.evaluate import harmonic_mean
from fpl_tune.study import results
from fpl_tune.study.cells import axes_of, label, shown
from fpl_tune.study.results import aggregate, as_rows
from fpl_tune.study.selection import Choice, choose

if TYPE_CHECKING:
    from fpl_tune.search.suggest import CellSearch
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store

BASE, NOVEL = "test/base/acc_mean", "test/novel/acc_mean"
BASE_NOVEL = "test/base+novel/harmonic_mean"
"""Harmonic mean of base and novel classes, as KgCoOp and PromptSRC report it; `test/harmonic_mean` of three sets is
FedPGP's."""

LONG = 40
"""Letters from which on a cell's label takes too much room in a chart."""
DATA = ("data", "partition.held_out", "set")
"""Fields that say where a cell ran, and not what."""


class Facts:
    """A study as tables: one row per cell, curves per seed, accuracies per client; and what cells are compared with.

    Args:
        store: the study's store.
        metric, rule: what is shown, `test/acc_mean` of the `final` round unless the study's report says otherwise.
        reference: what others are compared with; None: what the study's report says.

    Raises:
        ConfigError: an asked for metric, rule or reference is not in the study.
    """

    def __init__(
        self, store: Store, *, metric: str | None = None, rule: str | None = None, reference: str | None = None
    ) -> None:
        self.store = store
        self.spec = store.spec()
        self.metric = metric or self.spec.report.metric
        self.rule = rule or self.spec.report.rule
        cells = sorted(store.cells(), key=lambda cell: cell.number)
        self.cells: list[Cell] = [cell for cell in cells if cell.role != "ablation"]
        self.ablated = len(self.cells) < len(cells) or self.spec.ablate is not None
        self.own = [cell for cell in self.cells if cell.candidate]  # cells and trials, without the references
        self.references = [cell for cell in self.cells if cell.role == "reference"]
        self.searched = any(cell.role == "trial" for cell in self.own)
        self.by_id = {cell.id: cell for cell in self.cells}
        self.by_label = {cell.label: cell for cell in self.cells}
        self.keys = {cell.id: i for i, cell in enumerate(self.cells)}
        """Numbers of the cells in the page's data, by id: a study numbers its trials and its references apart."""
        self.gridded = list(axes_of(self.spec.axes))
        """Dotted names of the study's axes, what is searched left out."""
        store.check()  # leaves out what is damaged
        self.frame = store.frame(self.metric)
        if metric is not None and len(self.frame) and self.frame[metric].isna().all():
            raise ConfigError(f"A metric is a name in the records, such as test/acc_mean, but none holds {metric!r}.")
        check_rule(self.rule)
        self.reference = Reference(self, reference or self.spec.report.reference)
        if reference is not None:
            self.reference.check()

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
    def _recorded(self) -> list[str]:
        """Names of the scalars in the last records."""
        last = [self.store.history(cell, seed)[-1] for cell in self.cells for seed in self.seeds(cell)[:1]]
        return list(dict.fromkeys(name for record in last for name, v in record.items() if isinstance(v, float)))

    @cached_property
    def extra(self) -> list[str]:
        """What records hold beyond accuracies, costs and lists: metrics of a method, such as `privacy/epsilon`."""
        return [name for name in self._recorded if of_method(name) and name != self.metric]

    @cached_property
    def whole(self) -> list[str]:
        """Metrics of `extra` that have a column: those of a part, such as a domain, have none."""
        return [name for name in self.extra if name.count("/") == 1]

    @cached_property
    def sets(self) -> list[str]:
        """Accuracies of the test sets beside the main one, and harmonic means over sets."""
        found = [
            name
            for name in dict.fromkeys(["test/acc_mean", *self._recorded])
            if name.startswith("test/") and name.endswith(("acc_mean", "harmonic_mean")) and "/domain/" not in name
        ]
        if {BASE, NOVEL} <= set(found):
            found.append(BASE_NOVEL)
        return [name for name in found if name != self.metric]

    @property
    def basis(self) -> str:
        """How many seeds and which round a value of the page rests on, for captions."""
        n = sorted({int(n) for n in self.table["n"] if n})
        seeds = "–".join(str(v) for v in ([n[0], n[-1]] if len(n) > 1 else n)) or "no"
        return f"n = {seeds} {'seed' if n == [1] else 'seeds'}, rule “{self.rule}”"

    @cached_property
    def finished(self) -> list[Cell]:
        """Cells with a seed that has the metric."""
        return [cell for cell in self.cells if self.table.loc[cell.id, "n"] > 0]

    @cached_property
    def listed(self) -> list[Cell]:
        """Cells as tables list them: in the study's order, but trials from the best on validation down."""
        if not self.searched:
            return self.cells
        val = self.table["val"].fillna(-1.0)
        return [*sorted(self.own, key=lambda cell: -val[cell.id]), *self.references]

    def part(self, cell: Cell) -> str:
        """Where a cell stands on the study's axes, whatever was searched there; empty where there are none."""
        place = {name: value for name, value in cell.varied.items() if name in self.gridded}
        return label(place) if place else ""

    def name(self, cell: Cell) -> str:
        """What the page calls a cell: its label or, where that is long, its part of the axes and its number."""
        kind = "trial" if cell.role == "trial" else "cell"
        return cell.label if len(cell.label) <= LONG else f"{self.part(cell)[:LONG]} {kind} {cell.number}".strip()

    @staticmethod
    def column(axis: str) -> str:
        """A field's name in the page's data: Vega-Lite reads dots as nesting."""
        return axis.replace(".", "_")

    @cached_property
    def parts(self) -> list[CellSearch]:
        """The searches of the study, one for each cell of its axes."""
        return searches(self.spec) if self.searched else []

    @cached_property
    def published(self) -> set[str]:
        """Ids of the trials that a search takes from the papers."""
        return {key for part in self.parts for key in part.published}

    def logarithmic(self, axis: str) -> bool:
        """Whether a field is searched on a log scale, or its values in a grid span a factor of 50."""
        known = [param.distribution for part in self.parts for param in part.space.params if param.name == axis]
        if known:
            return any(getattr(distribution, "log", False) for distribution in known)
        values = [v for v in self.table[axis] if v is not None and v == v]
        return numeric(values) and min(values) > 0 and max(values) >= 50 * min(values)

    def spread(self, cell: Cell, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of a metric over seeds; NaN where there are too few."""
        found = aggregate(list(self.by_seed(cell, metric).values()))
        return found["mean"], found["std"]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per cell, index `cell`: label, role, axes, status, n, val, mean, std, sem,
        half (of the 95 % t interval), bytes (both ways) and seconds per seed, and the means of `sets` and `extra`.
        """
        rows = pd.DataFrame(
            results.summarise(as_rows(self.frame), self.cells, self.spec.seed_list(), self.rule, self.metric)
        )
        rows = rows.set_index("cell").rename(columns={results.VAL: "val", "time/seconds": "seconds"})
        rows["half"] = [t_half_width(sem, n) for sem, n in zip(rows["sem"], rows["n"], strict=True)]
        rows["bytes"] = rows["comm/up_bytes"] + rows["comm/down_bytes"]
        axes = {axis: [self.scalar(cell, axis) for cell in self.cells] for axis in self.axes}
        extra = {name: [self.spread(cell, name)[0] for cell in self.cells] for name in (*self.sets, *self.extra)}
        fixed = ["status", "n", "mean", "std", "sem", "val", "half", "bytes", "seconds"]
        columns = dict.fromkeys(["label", "role", *axes, *fixed, *extra])
        return rows.assign(**axes, **extra).reindex(columns=list(columns))

    @cached_property
    def _tabled(self) -> dict[tuple[str, str], dict[int, float]]:
        """Values of the result table under the rule: metric and cell -> seed -> value."""
        found: dict[tuple[str, str], dict[int, float]] = {}
        rows = self._ended.loc[self._ended["rule"] == self.rule]
        for metric in {results.VAL, self.metric}:
            for cell, seed, value in zip(rows["cell"], rows["seed"], rows[metric].astype(float), strict=True):
                found.setdefault((metric, str(cell)), {})[int(seed)] = float(value)
        return found

    def by_seed(self, cell: Cell, metric: str) -> dict[int, float]:
        """A metric by seed, in the round that the rule chose; of seeds that ended well and whose records hold it."""
        if metric == BASE_NOVEL:
            base, novel = self.by_seed(cell, BASE), self.by_seed(cell, NOVEL)
            return {seed: harmonic_mean([base[seed], novel[seed]]) for seed in base.keys() & novel.keys()}
        if metric in (results.VAL, self.metric):
            found = self._tabled.get((metric, cell.id), {})
        else:
            seeds = self.seeds(cell)
            found = {seed: results.figure(self.store.history(cell, seed), metric, self.rule) for seed in seeds}
        return {seed: value for seed, value in found.items() if not math.isnan(value)}

    def long(self, metric: str = results.VAL) -> pd.DataFrame:
        """A metric of all cells as `fpl_tune.analysis` reads it: `cell`, `seed`, `value`, in the round of the rule."""
        return results.values(self.frame, self.rule, metric)

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

    def result(self, cell: Cell, seed: int) -> dict[str, Any]:
        """What the store holds of a seed."""
        return self.store.result(cell, seed) or {}

    def results(self) -> list[dict[str, Any]]:
        """What the store holds of all seeds that ended well."""
        return [self.result(cell, seed) for cell in self.cells for seed in self.seeds(cell)]

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
        chosen = self.result(cell, seed).get("rules", {}).get(self.rule, {}).get("round")
        for record in reversed(self.store.history(cell, seed)):
            if (chosen is None or record["round"] <= chosen) and f"clients/{name}" in record:
                return np.array([math.nan if a is None else a for a in record[f"clients/{name}"]], float)
        return np.array([])

    @cached_property
    def values(self) -> pd.DataFrame:
        """The metric as `fpl_tune.analysis` compares it: columns `cell`, `seed`, `client`, `value`, `split`.

        Accuracies that records hold by client have a row per client (numbered from 0), others one row per seed.
        """
        rows = []
        for cell in self.cells:
            for seed, value in self.by_seed(cell, self.metric).items():
                clients = self.clients(cell, seed) if self.metric.endswith("/acc_mean") else np.array([])
                split = str(self.result(cell, seed).get("split_hash"))
                rows += [(cell.id, seed, i, v, split) for i, v in enumerate(clients if len(clients) else [value])]
        return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "client", "value", "split"]))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The page's data: the table's rows, in the order of the page."""
        found = []
        for cell in self.listed:
            row = self.table.loc[cell.id].to_dict()
            found.append({
                "number": self.keys[cell.id], "trial": cell.number,
                "label": self.name(cell), "role": cell.role, "status": row["status"],
                "series": self.part(cell) or ("references" if cell.role == "reference" else "cells"),
                "best": cell.id in self.chosen, "published": cell.id in self.published, "seeds": int(row["n"]),
                **{self.column(axis): row[axis] for axis in self.axes}, "validation": row["val"],
                **{name: row[name] for name in ("mean", "std", "seconds", *self.sets, *self.extra)},
                "MB": row["bytes"] / 1e6,
            })  # fmt: skip
        return found

    @cached_property
    def ages(self) -> dict[str, int]:
        """Ranks of the cells by the time of their first result: a later run of the study adds to the end."""
        first = {cell.id: min((str(self.result(cell, seed).get("finished")) for seed in self.seeds(cell)), default="~")
                 for cell in self.cells}  # fmt: skip
        return {key: rank for rank, key in enumerate(sorted(first, key=lambda key: (first[key], self.keys[key])))}

    def notable(self, limit: int) -> list[Cell]:
        """At most about `limit` cells to draw, in the study's order: one of each reference, and the best by validation.

        Of a reference that stands at several places of the axes, the one at the best cell's place.
        """
        near = self.reference.place(self.best) if self.best is not None else {}
        shown_references: dict[str, Cell] = {}
        for cell in self.finished:
            here = all(near.get(name) == value for name, value in self.reference.place(cell).items())
            if cell.role == "reference" and (here or self.reference.family(cell) not in shown_references):
                shown_references[self.reference.family(cell)] = cell
        own = sorted((c for c in self.finished if c.candidate), key=lambda c: -self.table.loc[c.id, "val"])
        kept = own[: max(limit - len(shown_references), 1)] + list(shown_references.values())[: max(limit - 1, 1)]
        return sorted(kept, key=lambda cell: cell.number)

    def rules(self, cells: Iterable[Cell]) -> pd.DataFrame:
        """Mean of the metric over seeds of cells (rows, by name) under every reporting rule (columns)."""
        wide = self._ended.pivot_table(index="cell", columns="rule", values=self.metric, aggfunc="mean", sort=False)
        kept = [cell for cell in cells if cell.id in wide.index]
        return wide.loc[[cell.id for cell in kept]].set_axis([self.name(cell) for cell in kept])


def without_data(cell: Cell, *more: str) -> str:
    """A cell's label as it is where one data set, or one domain to hold out, is all there is; without `more` too."""
    return label({n: v for n, v in cell.varied.items() if n not in (*DATA, *more)})
