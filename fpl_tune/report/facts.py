"""A study's results as the page shows them, read once from its store: tables, curves, names and colours of cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import numeric, percent, short
from fpl_tune.core.metrics import TOTAL_BYTES, check_rule
from fpl_tune.report.reference import Reference
from fpl_tune.search.foresight import Foresight, foresight
from fpl_tune.search.gains import Gain, gains, searches
from fpl_tune.study import rates, results
from fpl_tune.study.cells import SETTING, axes_of, label, shown
from fpl_tune.study.claims import Judged, evaluate
from fpl_tune.study.partition import Shares, shares
from fpl_tune.study.results import VAL
from fpl_tune.study.selection import Choice, choose, objectives_of, rows, setting_of, sign
from fpl_tune.study.standing import State

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store

LONG = 40
"""Letters from which on a cell's label takes too much room in a chart."""
MOST = 40
"""Cells of a setting from which on no letters are given."""
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
        check_rule(self.rule)
        cells = sorted(store.cells(), key=lambda cell: cell.number)
        if not cells:
            raise ConfigError(f"{store.name} has no cells yet. Run fpl-tune study {store.name}.")
        self.cells: list[Cell] = [cell for cell in cells if cell.role != "ablation"]
        self.own = [cell for cell in self.cells if cell.candidate]  # cells and trials, without the references
        self.references = [cell for cell in self.cells if cell.is_reference]
        self.searched = any(cell.role == "trial" for cell in self.own)
        self.by_id = {cell.id: cell for cell in self.cells}
        self.keys = {cell.id: i for i, cell in enumerate(self.cells)}
        """Numbers of the cells in the page's data, by id: a study numbers its trials and its references apart."""
        self.gridded = list(axes_of(self.spec.axes))
        """Dotted names of the study's axes, what is searched left out."""
        names = dict.fromkeys(name for cell in self.own for name in cell.varied)
        self.axes = [n for n in names if len({repr(cell.varied.get(n)) for cell in self.own}) > 1]
        """Dotted fields in which the study's own cells differ, in the study's order."""
        shorts = [short(axis) for axis in self.axes]
        self.titles = {a: s if shorts.count(s) == 1 else a for a, s in zip(self.axes, shorts, strict=True)}
        """What tables and charts call the axes."""
        store.check()  # leaves out what is damaged
        self.objectives = objectives_of(self.spec)
        """Metrics that choose: validation accuracy, or what the study's search optimises."""
        found = rows(store, self.spec, self.metric)
        self.frame = pd.DataFrame(found) if found else store.frame(self.metric).assign(**dict.fromkeys(self.objectives))
        if metric is not None and len(self.frame) and self.frame[metric].isna().all():
            raise ConfigError(f"A metric is a name in the records, such as test/acc_mean, but none holds {metric!r}.")
        known = (VAL, self.metric, *results.COSTS, TOTAL_BYTES)
        self.beside = [name for name in self.frame if "/" in name and name not in known]
        """Metrics that tables show beside: other test sets, a method's own, objectives."""
        self._by_cell: dict[str, dict[int, dict[str, Any]]] = {}
        self.records: list[dict[str, Any]] = self.frame.to_dict("records")  # type: ignore[assignment]
        """The result table as plain rows."""
        for row in self.records:
            if row["rule"] == self.rule and row["status"] in (State.DONE, State.PRUNED):
                self._by_cell.setdefault(row["cell"], {})[int(row["seed"])] = row
        for key, found in self._by_cell.items():
            self._by_cell[key] = {int(row["seed"]): row for row in results.meant([*found.values()])}
        self.states = {cell.id: store.state(cell) for cell in self.cells}
        """The state of each cell's trial, by the cell's id."""
        self.called = store.states()
        """What the page calls these states, by the cell's id."""
        self._shares: dict[str, Shares] = {}
        self.looks = self.spec.declared_looks()
        """Numbers of seeds after which comparisons are looked at; empty: the seeds are fixed."""
        self.level = 1 - 0.05 / max(len(self.looks), 1)
        """Of the intervals of one look."""
        self.sure = f"{100 * self.level:.3g} %"
        """The same in words."""
        self.reference = Reference(self, reference or self.spec.report.reference)
        if reference is not None:
            self.reference.check()

    @cached_property
    def ran(self) -> dict[str, int]:
        """The last look all of whose seeds a cell has run, by the cell's id; 0 before the first."""
        found = {}
        for cell in self.cells if self.looks else ():
            ended = self.store.seed_results(cell).keys()
            found[cell.id] = max((n for n in self.looks if ended >= {*range(1, n + 1)}), default=0)
        return found

    @property
    def settings(self) -> list[str]:
        """The study's axes that say where a cell ran, and not what: data, partition, protocol."""
        return [axis for axis in self.gridded if axis.split(".")[0] in SETTING or axis in DATA]

    @cached_property
    def swept(self) -> str | None:
        """The field of numbers that alone varies, settings aside; None: the study is no sweep."""
        fields = [axis for axis in self.axes if axis not in self.settings]
        alone = len(fields) == 1 and not self.searched and not self.spec.report.claims
        swept = fields[0] if alone and all(fields[0] in cell.varied for cell in self.own) else None
        numbers = swept is not None and numeric(self.scalar(cell, swept) for cell in self.own)
        return swept if numbers and len(self.objectives) == 1 else None

    @property
    def kind(self) -> Literal["sweep", "search", "table"]:
        """What the study asks: which values matter, what tuning gains, or which cell wins."""
        return "search" if self.searched else "sweep" if self.swept else "table"

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds of a cell that ended well."""
        return sorted(self._by_cell.get(cell.id, {}))

    def by_seed(self, cell: Cell, metric: str) -> dict[int, float]:
        """A metric by seed, in the round that the rule chose; of seeds that ended well and whose records hold it."""
        if metric in self.frame:
            found = {seed: row[metric] for seed, row in self._by_cell.get(cell.id, {}).items()}
        else:
            histories = {seed: self.store.history(cell, seed) for seed in self.seeds(cell)}
            found = {seed: results.figure(history, metric, self.rule) for seed, history in histories.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None and not math.isnan(value)}

    def spread(self, cell: Cell, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of a metric over seeds; NaN where there are too few."""
        found = results.aggregate(list(self.by_seed(cell, metric).values()))
        return found["mean"], found["std"]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per cell, index `cell`: label, role, axes, status, n, val, mean, std, sem, bytes (both ways) and
        seconds per seed, and the means of `beside`."""
        found = results.summarise(self.records, self.cells, self.states, self.rule, self.metric)
        rows = pd.DataFrame(found).set_index("cell").rename(columns={VAL: "val", "time/seconds": "seconds"})
        rows["bytes"] = rows["comm/up_bytes"] + rows["comm/down_bytes"]
        axes = {axis: [self.scalar(cell, axis) for cell in self.cells] for axis in self.axes}
        beside = {name: [self.spread(cell, name)[0] for cell in self.cells] for name in self.beside}
        fixed = ["status", "n", "mean", "std", "sem", "val", "bytes", "seconds"]
        return rows.assign(**axes, **beside).reindex(
            columns=list(dict.fromkeys(["label", "role", *axes, *fixed, *beside]))
        )

    @property
    def basis(self) -> str:
        """How many seeds and which round a value of the page rests on, for captions."""
        n = sorted({int(n) for n in self.table.loc[~self.table.index.isin(self.pruned), "n"] if n})
        seeds = "–".join(map(str, dict.fromkeys([n[0], n[-1]]))) if n else "no"
        return f"n = {seeds} {'seed' if n == [1] else 'seeds'}, rule “{self.rule}”"

    @cached_property
    def rates(self) -> str:
        """Where learning rates come from, if methods have them from different sources; see `rates.note`."""
        try:
            return rates.note(self.spec, self.cells)
        except ConfigError:  # a stored run that this release refuses: its results can still be read
            return ""

    @cached_property
    def pruned(self) -> set[str]:
        """Ids of the cells that were stopped early: their values, of fewer rounds or seeds, are not compared."""
        return {key for key, state in self.states.items() if state is State.PRUNED}

    @cached_property
    def claims(self) -> list[Judged]:
        """The study's claims with their verdicts."""
        return evaluate(self.store, self.rule)

    @cached_property
    def finished(self) -> list[Cell]:
        """Cells with a seed that has the metric."""
        return [cell for cell in self.cells if self.table.loc[cell.id, "n"] > 0]

    @cached_property
    def whole(self) -> list[Cell]:
        """The study's own cells that ran whole and have the metric."""
        return [cell for cell in self.finished if cell.candidate and cell.id not in self.pruned]

    @cached_property
    def listed(self) -> list[Cell]:
        """Cells as tables list them: in the study's order, but trials by the objective, a front before the others and
        pruned ones after them."""
        if not self.searched:
            return self.cells
        front = self.marked if self.choice and self.choice.front else []
        ranked = sorted(self.best_first(self.own), key=lambda cell: (cell.id in self.pruned, cell.id not in front))
        return [*ranked, *(cell for cell in self.references if not cell.candidate)]

    @property
    def chosen_on(self) -> str:
        """What chooses the best cell, in sentences: "validation", or the first objective of a search."""
        return "validation" if self.objectives == [VAL] else self.objectives[0]

    def objective(self, cell: Cell) -> float:
        """Mean of the first objective over seeds."""
        return self.spread(cell, self.objectives[0])[0]

    def reached(self, cell: Cell) -> float:
        """The first objective, of a trial that was stopped early where its first seed stood then."""
        value = self.objective(cell)
        if cell.id in self.pruned and math.isnan(value):
            return results.figure(self.store.history(cell, self.spec.seed_list()[0]), self.objectives[0])
        return value

    @cached_property
    def _scores(self) -> dict[str, float]:
        """The first objective, negated where less is better, by cell."""
        means = {cell.id: sign(self.objectives[0]) * self.objective(cell) for cell in self.cells}
        return {key: -math.inf if math.isnan(mean) else mean for key, mean in means.items()}

    def best_first(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells by the first objective."""
        return sorted(cells, key=lambda cell: -self._scores[cell.id])

    def part(self, cell: Cell) -> str:
        """Where a cell stands on the study's axes, whatever was searched there; empty where there are none."""
        place = {name: value for name, value in cell.varied.items() if name in self.gridded}
        return label(place) if place else ""

    def name(self, cell: Cell) -> str:
        """What the page calls a cell: its label or, where that is long, its part of the axes and its number."""
        kind, number = ("trial", cell.trial) if cell.role == "trial" else ("cell", cell.number)
        return cell.label if len(cell.label) <= LONG else f"{self.part(cell)[:LONG]} {kind} {number}".strip()

    @cached_property
    def searches(self) -> list[CellSearch]:
        """The searches of the study, one for each cell of its axes."""
        return searches(self.spec, self.store) if self.searched else []

    @cached_property
    def gains(self) -> list[Gain]:
        """The best trial of each search beside its published setting."""
        return gains(self.store, self.rule, self.metric) if self.searched else []

    @cached_property
    def foresights(self) -> list[Foresight]:
        """How well the rungs foresee the end, of the searches with enough hedged trials."""
        several, found = len(self.searches) > 1, list[Foresight | None]()
        for search in self.searches:
            part = next((self.part(cell) for cell in self.own if search.holds(cell)), "") if several else ""
            found.append(foresight(self.store, search, self.own, part))
        return [each for each in found if each is not None]

    @cached_property
    def costs(self) -> dict[str, float]:
        """What its search had cost when a trial ended, in full trials, by the trial's id.

        Rounds of all seeds count, those of pruned trials too.
        """
        found = {}
        for part in self.searches:
            full, spent = part.run.rounds * len(self.spec.seed_list()), 0.0
            trials = [(cell, [*self.store.seed_results(cell).values()]) for cell in self.own if part.holds(cell)]
            ended = [(max(r["finished"] for r in ran), cell.number, cell.id, ran) for cell, ran in trials if ran]
            for *_, key, ran in sorted(ended, key=lambda trial: trial[:2]):
                spent += sum(int(r["rounds"]) for r in ran) / full
                found[key] = spent
        return found

    @cached_property
    def published(self) -> set[str]:
        """Ids of the trials that a search takes from the papers."""
        return {cell.id for cell in self.own if cell.published}

    def logarithmic(self, axis: str) -> bool:
        """Whether the values of a field span a factor of 10."""
        values = [v for v in self.table[axis] if v is not None and v == v]
        return numeric(values) and min(values) > 0 and max(values) >= 10 * min(values)

    @staticmethod
    def scalar(cell: Cell, axis: str) -> Any:
        """A cell's place on an axis: numbers as they are, all else as labels show it, None where it has no place."""
        value = cell.varied.get(axis)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if number or axis not in cell.varied else shown(value)

    @cached_property
    def choice(self) -> Choice | None:
        """What the objectives choose among the study's own finished cells; None where nothing compares."""
        return choose(self.records, self.own, self.spec, self.rule)

    @property
    def best(self) -> Cell | None:
        """The chosen cell; where there is one per data set, the first; None of a front."""
        return self.choice.cell if self.choice and not self.choice.front else None

    @property
    def lead(self) -> Cell | None:
        """The best cell or, of a front, the first: of which a single cell's partition and diagnoses are shown."""
        return self.choice.cell if self.choice else None

    @property
    def chosen(self) -> list[str]:
        """Ids of the chosen cells: one, or one per data set; none of a front."""
        return self.marked if self.best else []

    @property
    def marked(self) -> list[str]:
        """Ids of the cells that tables and charts mark: the chosen ones, or a front."""
        return [cell.id for cell in self.choice.cells] if self.choice else []

    def result(self, cell: Cell, seed: int) -> dict[str, Any]:
        """What the store holds of a seed."""
        return self.store.result(cell, seed) or {}

    def long(self, metric: str = VAL) -> pd.DataFrame:
        """A metric of all cells by seed under the rule: columns `cell`, `seed`, `value`."""
        return results.values(self.frame, self.rule, metric)

    def curve(self, cell: Cell, metric: str) -> pd.DataFrame:
        """A metric by round (rows) and seed (columns); rounds that were not evaluated are left out."""
        series = {}
        for seed in self.seeds(cell):
            records = [r for r in self.store.history(cell, seed) if r.get(metric) is not None]
            series[seed] = pd.Series({r["round"]: float(r[metric]) for r in records}, dtype=float)
        return pd.DataFrame(series).sort_index()

    def clients(self, cell: Cell, seed: int) -> np.ndarray:
        """[N] accuracy on the metric's set under the rule; empty where none was kept."""
        name = self.metric.split("/")[-2] if "/" in self.metric else "test"
        chosen = self.result(cell, seed).get("rules", {}).get(self.rule, {}).get("round", math.inf)
        kept = [r for r in self.store.history(cell, seed) if r["round"] <= chosen and f"clients/{name}" in r]
        last = kept[-5:] if self.rule == "mean_last5" else kept[-1:]
        return np.mean([record[f"clients/{name}"] for record in last], axis=0) if last else np.array([])

    def shares(self, cell: Cell, seed: int) -> Shares:
        """The partition that a seed of a cell was trained on; see `partition.shares`."""
        key = repr((cell.run.data, cell.run.partition, seed))
        if key not in self._shares:
            self._shares[key] = shares(cell.run, seed)
        return self._shares[key]

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
                "number": self.keys[cell.id], "trial": cell.trial,
                "label": self.name(cell), "role": cell.role, "status": self.called[cell.id],
                "series": self.part(cell) or ("references" if cell.role == "reference" else "cells"),
                "best": cell.id in self.marked, "seeds": int(row["n"]),
                **{column(axis): row[axis] for axis in self.axes}, "validation": row["val"],
                "objective": self.reached(cell), "cost": self.costs.get(cell.id),
                **{name: row[name] for name in ("mean", "std", "seconds", *self.beside)}, "MB": row["bytes"] / 1e6,
            })  # fmt: skip
        return found

    def point(self, cell: Cell, metric: str, mean: float, half: float, seeds: Iterable[int]) -> dict[str, Any]:
        """A mean over seeds with its band, for `charts.lines`; a band of accuracies ends at 0 and 1."""
        low, high = (mean, mean) if math.isnan(half) else (mean - half, mean + half)
        low, high = (max(low, min(mean, 0.0)), min(high, max(mean, 1.0))) if percent(metric) else (low, high)
        return {
            "mean": mean, "low": low, "high": high,
            "label": self.name(cell), "number": self.keys[cell.id], "seeds": ", ".join(map(str, seeds)),
        }  # fmt: skip

    @cached_property
    def ages(self) -> dict[str, int]:
        """Ranks of the cells by the time of their first result: a later run of the study adds to the end."""
        first = {cell.id: min((self.result(cell, seed)["finished"] for seed in self.seeds(cell)), default="~")
                 for cell in self.cells}  # fmt: skip
        return {key: rank for rank, key in enumerate(sorted(first, key=lambda key: (first[key], self.keys[key])))}

    @property
    def tied(self) -> list[Cell]:
        """Own cells whose objective is that of the best cell."""
        if self.best is None:
            return []
        best = self.objective(self.best)
        return [cell for cell in self.own if cell.id != self.best.id and self.states[cell.id] is State.DONE
                and abs(self.objective(cell) - best) < 1e-9]  # fmt: skip

    @cached_property
    def letters(self) -> dict[str, str]:
        """Letters of the cells by id, from `analysis.letters` for the cells of each setting; empty where none are told.

        Only of studies that ask which cell wins, with two seeds and two cells in a setting, and 40 at most.
        """
        found: dict[str, str] = {}
        settings: dict[str, list[str]] = {}
        for cell in self.finished if self.kind == "table" else ():
            if cell.id not in self.pruned:
                settings.setdefault(setting_of(cell, self.gridded), []).append(cell.id)
        for ids in settings.values():
            seeds = max((int(self.table.loc[key, "n"]) for key in ids), default=0)
            if 2 <= len(ids) <= MOST and seeds > 1:
                frame = self.values.loc[self.values["cell"].isin(ids)]
                rope, higher = self.spec.report.rope / 100, sign(self.metric) >= 0
                shares = percent(self.metric)
                told = analysis.letters(frame, rope=rope, level=self.level, shares=shares, higher=higher)
                found |= {str(key): text for key, text in told.items()}
        return found

    @property
    def untold(self) -> list[Cell]:
        """Own cells that share a letter with the best one, the best first."""
        if self.best is None or self.best.id not in self.letters:
            return []
        mine = set(self.letters[self.best.id])
        near = [cell for cell in self.own if cell.id != self.best.id and mine & set(self.letters.get(cell.id, ""))]
        return self.best_first(near)

    def notable(self, limit: int) -> list[Cell]:
        """About `limit` cells to draw, in the study's order: one of each reference, and the best by the objective."""
        families = {self.reference.family(cell): cell for cell in reversed(self.finished) if cell.is_reference}
        own = self.best_first(cell for cell in self.finished if cell.candidate)
        kept = [*own[: max(limit - len(families), 1)], *families.values()]
        return sorted(kept, key=lambda cell: cell.number)


def column(axis: str) -> str:
    """A field's name in the page's data: Vega-Lite reads dots as nesting."""
    return axis.replace(".", "_")


def without_data(cell: Cell, axes: Collection[str] = ()) -> str:
    """A cell's label as it is in one setting: without data set, domain to hold out, and axes of settings."""
    return label({n: v for n, v in cell.varied.items() if n not in DATA and n not in axes})
