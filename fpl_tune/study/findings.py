"""What is said of a study under a metric and a rule: the figures of the report page, computed once.

`Findings` reads one snapshot of the store and nothing else; the page, its tables, notebooks, claims and
`seeds=until_decided` read the findings. What the study compares its cells with is in `comparisons`, which reads this.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import numeric, percent, short, titles
from fpl_tune.core.metrics import TOTAL_BYTES, check_rule
from fpl_tune.study import rates
from fpl_tune.study.cells import SETTING, Cell, axes_label, axes_of, label, shown
from fpl_tune.study.claims import Judged, evaluate
from fpl_tune.study.foresight import Foresight, foresight
from fpl_tune.study.partition import ClassCounts, shares
from fpl_tune.study.results import COSTS, VAL, figure
from fpl_tune.study.selection import Choice, choose, objectives_of, setting_of, sign
from fpl_tune.study.standing import Row, State
from fpl_tune.study.table import StoredCell, StudyTable

if TYPE_CHECKING:
    from fpl_tune.config import Study

LONG = 40
"""Characters of a cell's label from which on charts and sentences name it by its number."""
MOST = 40
"""Cells of a setting from which on no letters are given."""
DATA = ("data", "partition.held_out", "set")
"""Fields that say where a cell ran, and not what."""


@dataclass(frozen=True)
class Searched:
    """The search in one cell of the axes, by its trials that are compared."""

    part: str
    """Label of the cell of the axes, such as the method's name; empty where the study has no axes."""
    trials: Sequence[Cell]
    best: Cell | None
    """The trial that the objective chooses; None where there is none, or with several objectives."""
    published: Cell | None
    """The published point that the objective chooses; likewise."""


@dataclass(frozen=True)
class Sweep:
    """The values of a swept axis. Of several settings, the first cell of a value stands for all of them."""

    places: Sequence[Sequence[Cell]]
    """Cells that are compared, those of one value together, from the smallest value on."""
    means: dict[str, float]
    """By the id of the first cell of each value."""
    best: str | None
    """That of the chosen value."""
    told: analysis.Sweep | None
    """Which values are as good as the best; None where nothing is chosen, or one value alone has results."""
    seeds: int


class Findings:
    """The figures of a study: one row per cell, the choice, and what is told of it.

    Args:
        spec: the study as it was run last.
        table: its results.
        metric, rule: what is shown, `test/acc_mean` of the `final` round unless the study's report says otherwise.

    Raises:
        ConfigError: the study has no cells, or a metric or rule that is asked for is not in it.
    """

    def __init__(self, spec: Study, table: StudyTable, *, metric: str | None = None, rule: str | None = None) -> None:
        self.spec, self.table = spec, table
        self.metric = metric or spec.report.metric
        self.rule = rule or spec.report.rule
        check_rule(self.rule)
        cells = sorted((stored.cell for stored in table.cells.values()), key=lambda cell: cell.number)
        if not cells:
            raise ConfigError(f"{spec.name} has no cells yet. Run fpl-tune study {spec.name}.")
        self.cells: list[Cell] = [cell for cell in cells if cell.role != "ablation"]
        self.own = [cell for cell in self.cells if cell.candidate]
        """Cells and trials, without the references."""
        self.references = [cell for cell in self.cells if cell.is_reference]
        self.searched = any(cell.role == "trial" for cell in self.own)
        self.by_id = {cell.id: cell for cell in self.cells}
        self.numbers = {cell.id: i for i, cell in enumerate(self.cells)}
        """Numbers of the cells on the page, by id: a study numbers its trials and its references apart."""
        self.objectives = objectives_of(spec)
        """Metrics that choose: validation accuracy, or what the study's search optimises."""
        self.gridded = list(axes_of(spec.axes))
        """Dotted names of the study's axes, what is searched left out."""
        names = dict.fromkeys(name for cell in self.own for name in cell.varied)
        self.axes = [n for n in names if len({repr(cell.varied.get(n)) for cell in self.own}) > 1]
        """Dotted fields in which the study's own cells differ, in the study's order."""
        self.titles = titles(self.axes)
        """What tables and charts call the axes."""
        self._shares: dict[str, ClassCounts] = {}
        self.looks = spec.declared_looks()
        """Numbers of seeds after which comparisons are looked at; empty: the seeds are fixed."""
        self.level = 1 - 0.05 / max(len(self.looks), 1)
        """Of the intervals of one look."""
        self.sure = f"{100 * self.level:.3g} %"
        """The same in words."""
        known = (VAL, self.metric, *COSTS, TOTAL_BYTES)
        self.beside = [name for name in dict.fromkeys([*table.metrics, *self.objectives]) if name not in known]
        """Metrics that tables show beside: other test sets, a method's own, objectives."""
        ran = any(self.stored(cell).results for cell in self.cells)
        if metric is not None and ran and not any(self.by_seed(cell, metric) for cell in self.cells):
            raise ConfigError(f"A metric is a name in the records, such as test/acc_mean, but none holds {metric!r}.")

    # -- cells -----------------------------------------------------------------------------------------------

    def stored(self, cell: Cell) -> StoredCell:
        """What is stored of a cell; nothing of one that a study would run next."""
        return self.table.cells.get(cell.id) or StoredCell(self.table.design, Row(cell), State.QUEUED, False, {})

    def compared(self, cell: Cell) -> bool:
        """Whether a cell is compared with others; see `StoredCell.compared`."""
        return self.stored(cell).compared

    def by_seed(self, cell: Cell, metric: str) -> dict[int, float]:
        """A metric by seed, in the round that the rule chose, of the seeds over which means are taken."""
        return self.stored(cell).values(metric, self.rule)

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds over which means of a cell are taken."""
        return self.stored(cell).seeds(self.rule)

    def spread(self, cell: Cell, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of a metric over seeds; NaN where there are too few."""
        found = self.stored(cell).over_seeds(metric, self.rule)
        return found["mean"], found["std"]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per cell, index `cell`: label, role, axes, status, n, mean, std, sem, val, bytes (both ways) and
        seconds per seed, and the means of `beside`."""
        rows = pd.DataFrame(self.table.summary(self.rule, self.metric, *self.beside)).set_index("cell")
        rows = rows.loc[[cell.id for cell in self.cells]].rename(columns={VAL: "val", "time/seconds": "seconds"})
        rows["bytes"] = rows["comm/up_bytes"] + rows["comm/down_bytes"]
        axes = {axis: [self.scalar(cell, axis) for cell in self.cells] for axis in self.axes}
        fixed = ["status", "n", "mean", "std", "sem", "val", "bytes", "seconds"]
        columns = dict.fromkeys(["label", "role", *axes, *fixed, *self.beside])
        return rows.assign(**axes).reindex(columns=list(columns))

    @cached_property
    def pruned(self) -> set[str]:
        """Ids of the cells that were stopped early."""
        return {cell.id for cell in self.cells if self.stored(cell).state is State.PRUNED}

    @cached_property
    def published(self) -> set[str]:
        """Ids of the trials that a search takes from the papers."""
        return {cell.id for cell in self.own if cell.published}

    @cached_property
    def finished(self) -> list[Cell]:
        """Cells with a seed that has the metric."""
        return [cell for cell in self.cells if self.frame.loc[cell.id, "n"] > 0]

    @cached_property
    def whole(self) -> list[Cell]:
        """The study's own cells that are compared and have the metric."""
        return [cell for cell in self.finished if cell.candidate and self.compared(cell)]

    @cached_property
    def listed(self) -> list[Cell]:
        """Cells as tables list them: in the study's order, but trials by the objective, a front before the others and
        those that are not compared after them."""
        if not self.searched:
            return self.cells
        front = self.marked if self.choice and self.choice.front else []
        ranked = sorted(self.best_first(self.own), key=lambda cell: (cell.id in self.pruned, cell.id not in front))
        return [*ranked, *(cell for cell in self.references if not cell.candidate)]

    # -- names -----------------------------------------------------------------------------------------------

    @property
    def settings(self) -> list[str]:
        """The study's axes that say where a cell ran, and not what: data, partition, protocol."""
        return [axis for axis in self.gridded if axis.split(".")[0] in SETTING or axis in DATA]

    def title(self, name: str) -> str:
        """What tables and charts call a field."""
        return self.titles.get(name, short(name))

    def part(self, cell: Cell) -> str:
        """Where a cell stands on the study's axes, whatever was searched there; empty where there are none."""
        return axes_label(cell, self.gridded)

    def name(self, cell: Cell) -> str:
        """What charts and sentences call a cell: its label or, where that is long, its part of the axes and number."""
        kind, number = ("trial", cell.trial) if cell.role == "trial" else ("cell", cell.number)
        return cell.label if len(cell.label) <= LONG else f"{self.part(cell)[:LONG]} {kind} {number}".strip()

    @cached_property
    def taken(self) -> dict[str, set[str]]:
        """Per axis, also one of a single value, the values that the study's own cells take, as shown."""
        found: dict[str, set[str]] = {}
        for cell in self.own:
            for axis, value in cell.varied.items():
                found.setdefault(axis, set()).add(shown(value))
        return found

    def place(self, cell: Cell) -> dict[str, str]:
        """Where a cell stands on the axes, as shown; a value that only a reference has is its name and no place."""
        return {n: shown(v) for n, v in cell.varied.items() if n in self.axes and shown(v) in self.taken.get(n, ())}

    def family(self, cell: Cell) -> str:
        """A reference's name whatever the axes are: references stand at every value of the axes they leave open."""
        if cell.candidate and cell.reference:
            return cell.reference
        rest = {n: v for n, v in cell.varied.items() if shown(v) not in self.taken.get(n, ())}
        return label(rest) if rest else ""

    def named(self, cell: Cell) -> list[str]:
        """Names of the values of axes that one of the study's own cells takes: `lam=0`, `promptfl`."""
        return [label({axis: cell.varied[axis]}) for axis in self.place(cell)] if cell.candidate else []

    @staticmethod
    def scalar(cell: Cell, axis: str) -> Any:
        """A cell's place on an axis: numbers as they are, all else as labels show it, None where it has no place."""
        value = cell.varied.get(axis)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if number or axis not in cell.varied else shown(value)

    def logarithmic(self, axis: str) -> bool:
        """Whether the values of a field span a factor of 10."""
        values = [v for v in self.frame[axis] if v is not None and v == v]
        return numeric(values) and min(values) > 0 and max(values) >= 10 * min(values)

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

    @property
    def basis(self) -> str:
        """How many seeds and which round a value rests on, for captions."""
        n = sorted({int(n) for n in self.frame.loc[~self.frame.index.isin(self.pruned), "n"] if n})
        seeds = "–".join(map(str, dict.fromkeys([n[0], n[-1]]))) if n else "no"
        return f"n = {seeds} {'seed' if n == [1] else 'seeds'}, rule “{self.rule}”"

    @cached_property
    def rates(self) -> str:
        """Where learning rates come from, if methods have them from different sources; see `rates.note`."""
        try:
            return rates.note(self.spec, self.cells)
        except ConfigError:  # a stored run that this release refuses: its results can still be read
            return ""

    # -- the choice ------------------------------------------------------------------------------------------

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
            return figure(self.stored(cell).history(self.spec.seed_list()[0]), self.objectives[0])
        return value

    @cached_property
    def _scores(self) -> dict[str, float]:
        """The first objective, negated where less is better, by cell."""
        means = {cell.id: sign(self.objectives[0]) * self.objective(cell) for cell in self.cells}
        return {key: -math.inf if math.isnan(mean) else mean for key, mean in means.items()}

    def best_first(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells by the first objective."""
        return sorted(cells, key=lambda cell: -self._scores[cell.id])

    @cached_property
    def choice(self) -> Choice | None:
        """What the objectives choose among the study's own finished cells; None where nothing compares."""
        return choose(self.table, self.own, self.rule)

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

    @cached_property
    def shared(self) -> str:
        """Name of the value that the best cells of several settings have in common; empty unless there is one."""
        first, *others = [self.named(cell) for cell in self.own if cell.id in self.chosen] or [[]]
        found = [name for name in first if all(name in other for other in others)]
        return found[0] if others and len(found) == 1 else ""

    @property
    def tied(self) -> list[Cell]:
        """Own cells whose objective is that of the best cell."""
        if self.best is None:
            return []
        best = self.objective(self.best)
        return [cell for cell in self.whole if cell.id != self.best.id and abs(self.objective(cell) - best) < 1e-9]

    @cached_property
    def searches(self) -> list[Searched]:
        """The searches of the study, one for each cell of its axes."""
        found = []
        axes = axes_of(self.spec.axes)
        for values in itertools.product(*axes.values()) if self.searched else ():
            varied = dict(zip(axes, values, strict=True))
            trials = [cell for cell in self.own if cell.is_trial_at(varied)]
            best, published = (
                choice.cell if (choice := choose(self.table, cells, self.rule)) and not choice.front else None
                for cells in (trials, [cell for cell in trials if cell.published])
            )
            found.append(Searched(label(varied) if varied else "", trials, best, published))
        return found

    @property
    def tuned(self) -> list[tuple[Searched, Cell]]:
        """The searches that have a best trial, with it."""
        return [(search, search.best) for search in self.searches if search.best is not None]

    @cached_property
    def foresights(self) -> list[Foresight]:
        """How well the rungs foresee the end, of the searches with enough hedged trials."""
        several, objective = len(self.searches) > 1, self.objectives[0]
        found = (foresight(self.table, each.trials, objective, each.part if several else "") for each in self.searches)
        return [each for each in found if each is not None]

    @cached_property
    def costs(self) -> dict[str, float]:
        """What its search had cost when a trial ended, in full trials, by the trial's id.

        Rounds of all seeds count, those of pruned trials too.
        """
        found = {}
        for search in self.searches:
            spent, seeds = 0.0, len(self.spec.seed_list())
            tuned = "protocol.rounds" in {*self.axes} - {*self.gridded}
            trials = [(cell, [*self.stored(cell).results.values()]) for cell in search.trials]
            ended = [(max(r["finished"] for r in ran), cell.number, cell, ran) for cell, ran in trials if ran]
            for _, _, cell, ran in sorted(ended, key=lambda trial: trial[:2]):
                spent += sum(int(r["rounds"]) for r in ran) / (seeds * (self.spec.rounds if tuned else cell.rounds))
                found[cell.id] = spent
        return found

    @cached_property
    def ages(self) -> dict[str, int]:
        """Ranks of the cells by the time of their first result: a later run of the study adds to the end."""
        first = {cell.id: min((result["finished"] for result in self.stored(cell).results.values()), default="~")
                 for cell in self.cells}  # fmt: skip
        return {key: rank for rank, key in enumerate(sorted(first, key=lambda key: (first[key], self.numbers[key])))}

    @cached_property
    def claims(self) -> list[Judged]:
        """The study's claims with their verdicts."""
        return evaluate(self.table, self.spec.report, self.rule)

    # -- significance ----------------------------------------------------------------------------------

    def clients(self, cell: Cell, seed: int) -> np.ndarray:
        """[N] accuracy on the metric's set under the rule; empty where none was kept."""
        name = self.metric.split("/")[-2] if "/" in self.metric else "test"
        stored = self.stored(cell)
        chosen = stored.results[seed]["rules"].get(self.rule, {}).get("round", math.inf)
        kept = [r for r in stored.history(seed) if r["round"] <= chosen and f"clients/{name}" in r]
        last = kept[-5:] if self.rule == "mean_last5" else kept[-1:]
        return np.mean([record[f"clients/{name}"] for record in last], axis=0) if last else np.array([])

    @property
    def equality(self) -> dict[str, Any]:
        """What decides verdicts beside the values: arguments of `analysis.compare` and the like."""
        rope, metric = self.spec.report.rope / 100, self.metric
        return {"rope": rope, "shares": percent(metric), "higher": sign(metric) >= 0}

    def shares(self, cell: Cell, seed: int) -> ClassCounts:
        """The partition that a seed of a cell was trained on; see `partition.shares`."""
        key = repr((cell.run.data, cell.run.partition, seed))
        if key not in self._shares:
            self._shares[key] = shares(cell.run, seed)
        return self._shares[key]

    @cached_property
    def values(self) -> pd.DataFrame:
        """The metric of the cells that are compared, as `fpl_tune.analysis` compares it.

        Columns `cell`, `seed`, `client`, `value`, `split`. Accuracies that records hold by client have a row per client
        (numbered from 0), others one row per seed.
        """
        rows = []
        for cell in filter(self.compared, self.cells):
            for seed, value in self.by_seed(cell, self.metric).items():
                clients = self.clients(cell, seed) if self.metric.endswith("/acc_mean") else np.array([])
                split = str(self.stored(cell).results[seed]["split_hash"])
                rows += [(cell.id, seed, i, v, split) for i, v in enumerate(clients if len(clients) else [value])]
        return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "client", "value", "split"]))

    @cached_property
    def sweep(self) -> Sweep:
        """What is known of the values of the swept axis; over several settings by the mean over them."""
        groups: dict[float, list[Cell]] = {}
        for cell in self.whole:
            groups.setdefault(float(cell.varied[str(self.swept)]), []).append(cell)
        most = max(map(len, groups.values()), default=0)
        places = [groups[value] for value in sorted(groups) if len(groups[value]) == most]
        frame = analysis.mean_over(self.values, [[cell.id for cell in group] for group in places])
        means: dict[str, float] = frame.groupby("cell", sort=False)["value"].mean().to_dict()  # in the axis' order
        best = next((group[0].id for group in places if any(cell.id in self.chosen for cell in group)), None)
        if best not in means or best is None or len(means) < 2:
            return Sweep(places, means, best if best in means else None, None, 0)
        if most == 1:
            frame = self.values.loc[self.values["cell"].isin(means)]
        told = analysis.sweep(frame, list(means), best, looks=self.looks, ran=self.ran, **self.equality)
        return Sweep(places, means, best, told, frame["seed"].nunique())

    @cached_property
    def ran(self) -> dict[str, int]:
        """The last look all of whose seeds a cell has run, by the cell's id; 0 before the first."""
        ended = {cell.id: self.stored(cell).results.keys() for cell in self.cells if self.looks}
        return {key: max((n for n in self.looks if own >= {*range(1, n + 1)}), default=0) for key, own in ended.items()}

    @cached_property
    def letters(self) -> dict[str, str]:
        """Letters of the cells by id, from `analysis.letters` for the cells of each setting; empty where none are told.

        Only of studies that ask which cell wins, with two seeds and two cells in a setting, and 40 at most.
        """
        found: dict[str, str] = {}
        settings: dict[str, list[str]] = {}
        for cell in self.finished if self.kind == "table" else ():
            if self.compared(cell):
                settings.setdefault(setting_of(cell, self.gridded), []).append(cell.id)
        for ids in settings.values():
            seeds = max((int(self.frame.loc[key, "n"]) for key in ids), default=0)
            if 2 <= len(ids) <= MOST and seeds > 1:
                frame = self.values.loc[self.values["cell"].isin(ids)]
                told = analysis.letters(frame, level=self.level, **self.equality)
                found |= {str(key): text for key, text in told.items()}
        return found

    @property
    def same_group(self) -> list[Cell]:
        """Own cells that share a letter with the best one, the best first."""
        if self.best is None or self.best.id not in self.letters:
            return []
        mine = set(self.letters[self.best.id])
        near = [cell for cell in self.own if cell.id != self.best.id and mine & set(self.letters.get(cell.id, ""))]
        return self.best_first(near)


def without_data(cell: Cell, axes: Collection[str] = ()) -> str:
    """A cell's label as it is in one setting: without data set, domain to hold out, and axes of settings."""
    return label({n: v for n, v in cell.varied.items() if n not in DATA and n not in axes})
