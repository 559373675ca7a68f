"""The findings of a study under a metric and a reporting rule: the figures of the report page, computed once.

`Findings` reads one snapshot of the store and nothing else; the page, its tables, notebooks, claims and
`seeds=until_decided` read the findings. Comparisons with a reference are in `comparisons`, which reads this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fpl_tune.core.errors import ConfigError, did_you_mean
from fpl_tune.core.formatting import few_images, numeric, percent
from fpl_tune.core.metrics import TOTAL_BYTES, check_rule, comparable
from fpl_tune.core.metrics import metric as known_metric
from fpl_tune.findings import limits, rates
from fpl_tune.findings.choice import Choice, choose, objectives_of, selecting_rule, setting_of, sign
from fpl_tune.findings.claims import Judged, evaluate
from fpl_tune.findings.crossed import Crossed, crossed, row_title, setting_title, settings_of
from fpl_tune.findings.foresight import Foresight, foresight
from fpl_tune.findings.names import DATA, Names, without_data
from fpl_tune.findings.partition import ClassCounts, class_counts
from fpl_tune.findings.searches import Searched, costs_of, searches_of
from fpl_tune.findings.significance import SweptAxis, clients_of, letters_of, sweep_of, values_of
from fpl_tune.study.cells import Cell, axes_of, label, shown
from fpl_tune.study.results import COSTS, VAL, Status, value_of
from fpl_tune.study.standing import CellState, Row
from fpl_tune.study.table import StudyTable

if TYPE_CHECKING:
    from fpl_tune.config import Study


class Findings:
    """The figures of a study: one row per cell, the choice, and what follows from them.

    Args:
        spec: the study as it was run last.
        table: its results.
        metric, rule: the metric and the reporting rule to show; None: those of the study's report.

    Raises:
        ConfigError: the study has no cells, or lacks the given metric or rule.
    """

    def __init__(self, spec: Study, table: StudyTable, *, metric: str | None = None, rule: str | None = None) -> None:
        self.spec, self.table = spec, table
        self.metric = metric or spec.report.metric
        self.rule = rule or spec.report.rule
        self.sampled = known_metric(self.metric).sampled
        """False for a metric that seeds do not draw; see `Metric.sampled`."""
        check_rule(self.rule)
        cells = sorted((row.cell for row in table.rows.values()), key=lambda cell: cell.number)
        if not cells:
            raise ConfigError(f"{spec.name} has no cells yet. Run fpl-tune study {spec.name}.")
        self.cells: list[Cell] = [cell for cell in cells if cell.role != "ablation"]
        self.own = [cell for cell in self.cells if cell.role in ("cell", "trial")]
        """Cells and trials, without the references and what confirms a search."""
        self.references = [cell for cell in self.cells if cell.is_reference]
        self.searched = any(cell.searched for cell in self.cells)
        self.confirmed = any(cell.role == "tuned" and self.compared(cell) for cell in self.cells)
        """True if a search has been confirmed on fresh seeds."""
        self.by_id = {cell.id: cell for cell in self.cells}
        self.numbers = {cell.id: i for i, cell in enumerate(self.cells)}
        """Numbers of the cells on the page, by id: a study numbers its trials and its references separately."""
        self.objectives = objectives_of(spec)
        """Metrics that choose: validation accuracy, or the objectives of the study's search."""
        grid = axes_of(spec.axes)
        self.grid_axes = list(grid)
        """Dotted names of the study's axes, without searched fields."""
        names = dict.fromkeys(name for cell in self.own for name in cell.varied)
        self.axes = [n for n in names if len({repr(cell.varied.get(n)) for cell in self.own}) > 1]
        """Dotted fields in which the study's own cells differ, in the study's order."""
        self.names = Names(self.cells, self.own, self.axes, grid)
        self._shares: dict[str, ClassCounts] = {}
        self.looks = spec.declared_looks()
        """Numbers of seeds after which comparisons are looked at; empty: the seeds are fixed."""
        self.level = 1 - 0.05 / max(len(self.looks), 1)
        """Confidence level of the intervals of one look."""
        self.confidence = f"{100 * self.level:.3g} %"
        """The same as text."""
        fixed = (VAL, self.metric, *COSTS, TOTAL_BYTES)
        self.further_metrics = [name for name in dict.fromkeys([*table.metrics, *self.objectives]) if name not in fixed]
        """Further metrics that tables show: other test sets, a method's own, objectives."""
        ran = any(self.seeds(cell) if metric is None else self.row(cell).results for cell in self.cells)
        if ran and not any(self.by_seed(cell, self.metric) for cell in self.cells):
            near = did_you_mean(self.metric, self._recorded)
            raise ConfigError(f"No record holds the metric {self.metric!r}. {near}")

    @property
    def _recorded(self) -> set[str]:
        """Metrics of the records, by which a mistyped one is found."""
        last = (records[-1] for cell in self.cells for seed in self.row(cell).results
                if (records := self.row(cell).history(seed)))  # fmt: skip
        return {TOTAL_BYTES, *(n for record in last for n, value in record.items() if isinstance(value, float))}

    # -- cells -----------------------------------------------------------------------------------------------

    def row(self, cell: Cell) -> Row:
        """A cell with its results; empty for a cell that the study does not have, such as a step of an ablation."""
        return self.table.rows.get(cell.id) or Row(cell, self.table.design)

    def compared(self, cell: Cell) -> bool:
        """True if a cell is compared with others; see `Row.compared`."""
        return self.row(cell).compared

    def by_seed(self, cell: Cell, metric: str) -> dict[int, float]:
        """A metric by seed, at the round that the rule chose, for the seeds over which means are taken."""
        return self.row(cell).values(metric, self.rule)

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds over which means of a cell are taken."""
        return self.row(cell).seeds(self.rule)

    def spread(self, cell: Cell, metric: str) -> tuple[float, float]:
        """Mean and standard deviation of a metric over seeds; NaN if there are too few."""
        statistics = self.row(cell).over_seeds(metric, self.rule)
        return statistics["mean"], statistics["std"]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per cell, indexed by `cell`: label, role, axes, status, n, mean, std, sem, val, bytes (up and down)
        and seconds per seed, and the means of `beside`."""
        rows = pd.DataFrame(self.table.summary(self.rule, self.metric, *self.further_metrics)).set_index("cell")
        rows = rows.loc[[cell.id for cell in self.cells]].rename(columns={VAL: "val", "time/seconds": "seconds"})
        rows["bytes"] = rows["comm/up_bytes"] + rows["comm/down_bytes"]
        axes = {axis: [self.names.scalar(cell, axis) for cell in self.cells] for axis in self.axes}
        fixed = ["status", "n", "mean", "std", "sem", "val", "bytes", "seconds"]
        columns = dict.fromkeys(["label", "role", *axes, *fixed, *self.further_metrics])
        return rows.assign(**axes).reindex(columns=list(columns))

    @cached_property
    def pruned(self) -> set[str]:
        """Ids of the cells that were stopped early."""
        return {cell.id for cell in self.cells if self.row(cell).state is CellState.PRUNED}

    @cached_property
    def outside(self) -> set[str]:
        """Ids of the completed cells that are not within the limits of the search."""
        own = limits.candidates(map(self.row, self.cells))
        return {row.cell.id for row in own if not row.within(self.rule_of_trials)}

    @cached_property
    def published(self) -> set[str]:
        """Ids of the trials that a search takes from the papers."""
        return {cell.id for cell in self.own if cell.published}

    @cached_property
    def finished(self) -> list[Cell]:
        """Cells that have the metric for at least one seed."""
        return [cell for cell in self.cells if self.frame.loc[cell.id, "n"] > 0]

    @cached_property
    def whole(self) -> list[Cell]:
        """The study's own cells that are compared and have the metric."""
        own = {cell.id for cell in self.own}
        return [cell for cell in self.finished if cell.id in own and self.compared(cell)]

    @cached_property
    def entries(self) -> list[Cell]:
        """The cells that are compared with each other, if they have results: all of them or, in a study that searches,
        the tuned and the published points of each search, and the references."""
        if not self.searched:
            return self.cells
        points = [cell for search in self.searches for cell in (*search.points, *search.starts)]
        return list({cell.id: cell for cell in [*points, *self.references]}.values())

    @cached_property
    def listed(self) -> list[Cell]:
        """Cells in the order of tables: the study's. In a search, what is compared comes first, then the trials by the
        objective, those on a front first and those that were pruned last."""
        if not self.searched:
            return self.cells
        front = self.marked if self.choice and self.choice.front else []
        ranked = self.best_first(self.own)
        ranked.sort(key=lambda cell: (cell.id in self.pruned, cell.id in self.outside, cell.id not in front))
        first = [cell for cell in self.entries if cell.role != "trial"] if self.confirmed else []
        return list({cell.id: cell for cell in [*first, *ranked, *self.cells]}.values())

    # -- names -----------------------------------------------------------------------------------------------

    @property
    def settings(self) -> list[str]:
        """The study's axes that say where a cell ran, not what it ran: data, partition, protocol, clients."""
        where = {*settings_of(axes_of(self.spec.axes)), *DATA}
        return [axis for axis in self.grid_axes if axis in where]

    @cached_property
    def places(self) -> list[tuple[str, str, Cell]]:
        """Setting, name within it, and cell, of what the study compares.

        A cell that holds in several settings has an entry in each. In a study with one setting, or that compares
        nothing else, the setting is empty and the name that of the cell.
        """
        if self.crossed is not None:
            rows = self.crossed.rows.items()
            return [(column, name, cell) for name, row in rows for column, cell in row.items()]
        own = [cell for cell in self.entries if not cell.is_reference]
        settings = {setting_title(each): each for each in map(self.setting, own)}
        names = {cell.id: self.family(cell) if cell.is_reference else without_data(cell, self.settings)
                 for cell in self.entries}  # fmt: skip
        if self.searched or len(settings) < 2 or len({names[cell.id] for cell in own}) < 2:
            return [("", self.names.of(cell), cell) for cell in self.entries]
        return [(title, names[cell.id], cell) for cell in self.entries for title, setting in settings.items()
                if self.setting(cell).items() <= setting.items()]  # fmt: skip

    def setting(self, cell: Cell) -> dict[str, Any]:
        """A cell's values on the axes that are settings."""
        return {name: cell.varied[name] for name in self.settings if name in cell.varied}

    def family(self, cell: Cell) -> str:
        """A reference's name without the axes: there is one for every value of the axes that it leaves open.

        A method that is tuned is also a reference where it is not.
        """
        if cell.searched and cell.reference:  # a point of a search too
            name = cell.reference.removesuffix(f", {label(self.setting(cell))}")
            return f"{name} (not tuned)" if name in dict(self._tuned_rows) else name
        if cell.candidate and cell.reference:
            return cell.reference
        rest = {n: v for n, v in cell.varied.items() if shown(v) not in self.names.taken.get(n, ())}
        if not rest and cell.role == "reference":
            what = {name: value for name, value in cell.varied.items() if name not in self.settings}
            return f"{label(what)} (not tuned)" if what else ""
        return label(rest) if rest else ""

    @cached_property
    def _tuned_rows(self) -> list[tuple[str, Cell]]:
        """The tuned cells, each with the name of its row."""
        axes = axes_of(self.spec.axes)
        what = [axis for axis in axes if axis not in settings_of(axes)]
        return [(row_title(cell.varied, what, str(cell.node["method"]["name"])), cell) for _, cell in self.tuned]

    @cached_property
    def swept(self) -> str | None:
        """The only field that varies apart from settings, if its values are numbers; None: the study is not a sweep."""
        fields = [axis for axis in self.axes if axis not in self.settings]
        alone = len(fields) == 1 and self.sampled and not self.searched and not self.spec.report.claims
        swept = fields[0] if alone and all(fields[0] in cell.varied for cell in self.own) else None
        numbers = swept is not None and numeric(self.names.scalar(cell, swept) for cell in self.own)
        return swept if numbers and len(self.objectives) == 1 else None

    @property
    def kind(self) -> Literal["sweep", "search", "table"]:
        """The study's question: which values matter, what tuning gains, or which cell wins."""
        return "search" if self.searched else "sweep" if self.swept else "table"

    @property
    def basis(self) -> str:
        """The number of seeds and the reporting rule behind the values, for captions."""
        n = sorted({int(n) for n in self.frame.loc[~self.frame.index.isin(self.pruned), "n"] if n})
        seeds = "–".join(map(str, dict.fromkeys([n[0], n[-1]]))) if n else "no"
        return f"n = {seeds} {'seed' if n == [1] else 'seeds'}, rule “{self.rule}”"

    @cached_property
    def rates(self) -> str:
        """The sources of the learning rates, if those of methods differ; see `rates.note`."""
        try:
            return rates.note(self.spec, self.cells)
        except ConfigError:  # a stored run that this release rejects: its results can still be read
            return ""

    @cached_property
    def steps(self) -> str:
        """A sentence on sets of so few images that small differences of accuracies mean nothing; empty otherwise."""
        room = self.metric.rpartition("/")[0]
        cells = (
            {setting_of(cell, self.grid_axes): cell for cell in self.finished}.values() if percent(self.metric) else ()
        )
        images = [number for cell in cells for number in self.by_seed(cell, f"{room}/images").values()]
        what = "Validation" if room == "val" else f"The {' '.join(['test set', *room.split('/')[1:]])}"
        return few_images(what, min(images, default=0))

    @property
    def notes(self) -> str:
        """What readers of every table need to know: the limits, the sources of the rates, and sets of few images."""
        limited = self.searched and self.spec.search.limits
        within = f"Chosen within {limits.in_words(self.table.study)}." if limited else ""
        return " ".join(filter(None, [within, *self.beyond, self.rates, self.steps]))

    @cached_property
    def crossed(self) -> Crossed | None:
        """The table of methods by settings: labelled variants or names of methods by values of axes that are settings.

        A study with several searches has the tuned cell of each, once there is one; without an axis of methods, one
        row. None for a grid with other axes than one of methods and one of settings, and for other studies.
        """
        axes = axes_of(self.spec.axes)
        where = settings_of(axes)
        what = [axis for axis in axes if axis not in where]
        if self.searched:
            of_that_form = len(self.searches) > 1 and len(self.objectives) == 1 and bool(self.tuned)
            named = self._tuned_rows
            references = [(self.family(cell) or cell.label, cell) for cell in self.references]
        else:
            methods = what == ["method"] or all(isinstance(value, Mapping) for axis in what for value in axes[axis])
            of_that_form = self.kind == "table" and (len(where), len(what)) == (1, 1) and methods
            named = [(label({n: v for n, v in cell.varied.items() if n not in where}), cell) for cell in self.cells]
            references = []
        return crossed(axes, named, references) if of_that_form else None

    @property
    def tuned_table(self) -> Crossed | None:
        """The table of tuned methods by settings; None for a study without several searches, and before any trial has
        completed."""
        return self.crossed if self.searched else None

    # -- the choice ------------------------------------------------------------------------------------------

    @property
    def chosen_on(self) -> str:
        """The metric that chooses the best cell, in sentences: "validation", or the first objective of a search."""
        return "validation" if self.objectives == [VAL] else self.objectives[0]

    def objective(self, cell: Cell) -> float:
        """Mean of the first objective over seeds."""
        return self.spread(cell, self.objectives[0])[0]

    def reached(self, cell: Cell) -> float:
        """The first objective of a cell; for a trial that was stopped early, that of its first seed's last round."""
        value = self.objective(cell)
        if cell.id in self.pruned and math.isnan(value):
            return value_of(self.row(cell).history(self.spec.seed_list()[0]), self.objectives[0])
        return value

    @cached_property
    def _scores(self) -> dict[str, float]:
        """The first objective by cell as one that compares, negated if lower is better."""
        means = {cell.id: sign(self.objectives[0]) * comparable(self.objective(cell)) for cell in self.cells}
        return {key: -math.inf if math.isnan(mean) else mean for key, mean in means.items()}

    def best_first(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells sorted by the first objective."""
        return sorted(cells, key=lambda cell: -self._scores[cell.id])

    @cached_property
    def choice(self) -> Choice | None:
        """The choice by the objectives among the study's own finished cells; None if no two cells compare."""
        return choose(map(self.row, self.cells), self.rule, self.table.study)

    @cached_property
    def beyond(self) -> list[str]:
        """Sentences on searches in which nothing is within the limits; see `limits.nothing`."""
        if not self.spec.search.limits or not self.searched:
            return []
        rows, several = [*map(self.row, self.cells)], len(self.searches) > 1
        said = (
            limits.nothing([row for row in rows if row.cell.search == search.trials[0].search], self.rule_of_trials,
                           self.table.study, search.label if several else "")
            for search in self.searches if search.trials
        )  # fmt: skip
        return [text for text in said if text]

    @property
    def rule_of_trials(self) -> str:
        """The rule that chooses among trials: once they are confirmed, the study's, which chose what was confirmed."""
        return selecting_rule(self.spec.report.rule if self.confirmed else self.rule)

    @property
    def best(self) -> Cell | None:
        """The chosen cell, the first if there is one per data set; None for a front."""
        return self.choice.cell if self.choice and not self.choice.front else None

    @property
    def lead(self) -> Cell | None:
        """The cell whose partition and diagnoses are shown: the best one or, for a front, its first."""
        return self.choice.cell if self.choice else None

    @property
    def chosen(self) -> list[str]:
        """Ids of the chosen cells: one, or one per data set; empty for a front."""
        return self.marked if self.best else []

    @property
    def marked(self) -> list[str]:
        """Ids of the cells that tables and charts mark: the chosen ones, or those of a front."""
        return [cell.id for cell in self.choice.cells] if self.choice else []

    @property
    def bold(self) -> list[str]:
        """Ids of the cells that are bold in tables: the marked ones, which validation has not chosen by their costs."""
        return self.marked if self.sampled else []

    @cached_property
    def shared(self) -> str:
        """Name of the value that the best cells of several settings share; empty unless there is exactly one."""
        first, *others = [self.names.named(cell) for cell in self.cells if cell.id in self.chosen] or [[]]
        common = [name for name in first if all(name in other for other in others)]
        return common[0] if others and len(common) == 1 else ""

    @property
    def tied(self) -> list[Cell]:
        """Own cells whose objective equals that of the best one; in a study with one search, of the best trial."""
        best = self.searches[0].best if len(self.searches) == 1 else self.best
        if self.best is None or best is None:
            return []
        names = self.objectives[0], self.rule_of_trials
        within = [cell for cell in self.whole if cell.id not in self.outside]
        value = {cell.id: comparable(self.row(cell).over_seeds(*names)["mean"]) for cell in (best, *within)}
        return [cell for cell in within if cell.id != best.id and value[cell.id] == value[best.id]]

    @cached_property
    def searches(self) -> list[Searched]:
        """The searches of the study, one for each cell of its axes."""
        if not self.searched:
            return []
        rows = [*map(self.row, self.cells)]
        return searches_of(rows, self.table.study, self.rule_of_trials, confirmed=self.confirmed)

    def first_point(self, cell: Cell) -> str:
        """The kind of the first points of a cell's search: `published`, or `default` where none is known."""
        return next((other.first for other in self.cells if other.first and other.search == cell.search), "published")

    @property
    def tuned(self) -> list[tuple[Searched, Cell]]:
        """The searches that have a tuned cell, each with that cell."""
        return [(search, search.tuned) for search in self.searches if search.tuned is not None]

    @cached_property
    def foresights(self) -> list[Foresight]:
        """How well the rungs predict the final score, for each search with enough hedged trials."""
        several, objective = len(self.searches) > 1, self.objectives[0]
        estimates = (
            foresight(self.table, each.trials, objective, each.label if several else "") for each in self.searches
        )
        return [each for each in estimates if each is not None]

    @cached_property
    def costs(self) -> dict[str, float]:
        """The cost of a search up to the end of each trial, in full trials, by the trial's id; see `costs_of`."""
        tuned = "protocol.rounds" in {*self.axes} - {*self.grid_axes}
        rows = [[self.row(cell) for cell in search.trials] for search in self.searches]
        return {
            key: cost for trials in rows for key, cost in costs_of(trials, self.spec.rounds if tuned else 0).items()
        }

    @cached_property
    def ages(self) -> dict[str, int]:
        """Ranks of the cells by the time of their first result: cells of a later run come last, and failed ones, which
        run again."""
        first = {cell.id: min((run.finished for run in self.row(cell).results.values()
                               if run.status is not Status.FAILED), default="~")
                 for cell in self.cells}  # fmt: skip
        return {key: rank for rank, key in enumerate(sorted(first, key=lambda key: (first[key], self.numbers[key])))}

    @cached_property
    def claims(self) -> list[Judged]:
        """The study's claims with their verdicts."""
        return evaluate(self.table, self.spec.report, self.rule)

    # -- significance ----------------------------------------------------------------------------------

    def clients(self, cell: Cell, seed: int) -> np.ndarray:
        """[N] accuracy of each client on the metric's set under the rule; empty if records have none."""
        return clients_of(self.row(cell).results[seed], self.metric, self.rule)

    @property
    def test_options(self) -> dict[str, Any]:
        """Further arguments of `analysis.compare` and the like: equivalence region, unit and direction."""
        rope, metric = self.spec.report.rope / 100, self.metric
        return {"rope": rope, "shares": percent(metric), "higher": sign(metric) >= 0}

    def class_counts(self, cell: Cell, seed: int) -> ClassCounts:
        """The partition that a seed of a cell was trained on; see `partition.shares`."""
        key = repr((cell.run.data, cell.run.partition, seed))
        if key not in self._shares:
            self._shares[key] = class_counts(cell.run, seed)
        return self._shares[key]

    @cached_property
    def values(self) -> pd.DataFrame:
        """The metric of the cells that are compared, in the form that `fpl_tune.analysis` takes; see `values_of`."""
        return values_of((self.row(cell) for cell in self.cells), self.metric, self.rule)

    @cached_property
    def sweep(self) -> SweptAxis:
        """The comparison of the swept axis' values; with several settings, of their means over the settings."""
        options = {"looks": self.looks, "ran": self.ran, **self.test_options}
        return sweep_of(self.values, self.whole, str(self.swept), self.chosen, options)

    @cached_property
    def ran(self) -> dict[str, int]:
        """The last look whose seeds a cell has all run, by the cell's id; 0 before the first."""
        ended = {cell.id: self.row(cell).results.keys() for cell in self.cells if self.looks}
        return {key: max((n for n in self.looks if own >= {*range(1, n + 1)}), default=0) for key, own in ended.items()}

    @cached_property
    def letters(self) -> dict[str, str]:
        """Group letters of the cells by id, within each setting.

        Only in studies that ask which cell or which tuned method wins; see `letters_of`.
        """
        settings: dict[str, list[str]] = {}
        if not self.sampled:
            return {}
        if self.tuned_table is not None:
            for column in self.tuned_table.columns:
                cells = [row[column] for row in self.tuned_table.rows.values() if column in row]
                settings[column] = list(dict.fromkeys(cell.id for cell in cells if self.compared(cell)))
        for cell in self.finished if self.kind == "table" else ():
            if self.compared(cell):
                settings.setdefault(setting_of(cell, self.grid_axes), []).append(cell.id)
        return letters_of(self.values, settings.values(), level=self.level, **self.test_options)

    @property
    def same_group(self) -> list[Cell]:
        """Own cells that share a letter with the best one, the best first."""
        if self.best is None or self.best.id not in self.letters:
            return []
        mine = set(self.letters[self.best.id])
        own = [cell for _, cell in self.tuned] if self.searched else self.own
        sharing = [cell for cell in own if cell.id != self.best.id and mine & set(self.letters.get(cell.id, ""))]
        return self.best_first(sharing)
