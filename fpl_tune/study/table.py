"""A study's results for readers: a snapshot of its folder, and the tables that are made from it.

All readers use these definitions: results.csv, the report page, MLflow, searches, the command line and the Python API.
`standing.counts` decides which seeds count, and `StoredCell.compared` which cells are compared with others. Tables are
lists of plain dicts; pandas is imported only when a data frame is returned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fpl_tune.core.nested import get_field
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import COSTS, FAILURES, METRICS, TEST, VAL, Status, aggregate, figure, make_result
from fpl_tune.study.standing import CellState, Design, Row, rung_values, shown_status, standing, wanted

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from fpl_tune.simulation.simulation import Record
    from fpl_tune.study.schema import Effective, StudyFile

TableRow = dict[str, Any]
"""Column -> value."""
COLUMNS = ("cell", "seed", "status", "rule", "rounds", "label", "role", "seeds")
"""Columns of the result table besides the axes and the metrics."""


@dataclass(frozen=True, eq=False)
class StoredCell:
    """A cell with its results, in a snapshot of its files."""

    design: Design
    """The study's design."""
    row: Row
    state: CellState
    results: dict[int, dict[str, Any]]
    """Results by seed: of the study's seeds, and of the present version of method and data. The status is `done` if and
    only if the seed counts."""
    _values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, design: Design, row: Row, results: Mapping[int, dict[str, Any]], *, complete: bool) -> StoredCell:
        """Sets the status of each stored result.

        Args:
            design: the study's design.
            row: the cell with its runs.
            results: stored results of those seeds of the design that have a run.
            complete: True if the last run of the study left nothing to run.
        """
        state = standing(design, row).state
        if state is CellState.PAUSED and complete:
            state = CellState.PRUNED
        shown = {s: {**result, "status": shown_status(design, row, s, state)} for s, result in results.items()}
        return cls(design, row, state, shown)

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.row.cell

    @property
    def compared(self) -> bool:
        """True if the cell is compared with others, in choices, differences, group letters and claims.

        It must have results, and all of them must count: a mean over only the seeds that have not diverged, or over
        fewer rounds, does not describe the cell.
        """
        return bool(self.results) and all(result["status"] == Status.DONE for result in self.results.values())

    @property
    def rung_values(self) -> dict[int, float]:
        """The objective of a trial at the rungs that it has reached, by round."""
        return rung_values(self.design, self.row)

    def history(self, seed: int) -> Sequence[Record]:
        """Records of a seed by round; empty if it has no result, or its file is damaged."""
        return self.row.runs[seed].records() if seed in self.results else []

    def seeds(self, rule: str) -> list[int]:
        """The seeds over which means are taken under a reporting rule: those that count.

        For a cell without any, such as one that was pruned, all its seeds, if they ran the same number of rounds.
        """
        ran = {s: r for s, r in self.results.items() if rule in r["rules"] and r["status"] not in FAILURES}
        done = [seed for seed, result in ran.items() if result["status"] == Status.DONE]
        return done or (list(ran) if len({result["rounds"] for result in ran.values()}) == 1 else [])

    def value(self, seed: int, metric: str, rule: str) -> float:
        """A metric of a seed under a reporting rule; NaN if its records do not have it."""
        result = self.results[seed]
        chosen = result["rules"].get(rule)
        if chosen is None:
            return math.nan
        if metric in COSTS:
            return float(result[metric])
        return float(chosen[metric]) if metric in chosen else figure(self.history(seed), metric, rule)

    def values(self, metric: str, rule: str) -> dict[int, float]:
        """A metric by seed, for the seeds over which means are taken and whose records have it."""
        if (metric, rule) not in self._values:
            by_seed = {seed: self.value(seed, metric, rule) for seed in self.seeds(rule)}
            self._values[metric, rule] = {seed: value for seed, value in by_seed.items() if not math.isnan(value)}
        return self._values[metric, rule]

    def over_seeds(self, metric: str, rule: str) -> dict[str, float]:
        """Mean, std, sem, n, min and max of a metric over these seeds; see `results.aggregate`."""
        return aggregate([*self.values(metric, rule).values()])


def stored_row(design: Design, row: Row) -> StoredCell:
    """The row of a running study as readers see it."""
    results = {seed: make_result(run.status, run.history) for seed, run in row.runs.items()
               if seed in design.seeds_of(row.cell)}  # fmt: skip
    return StoredCell.of(design, row, results, complete=False)


@dataclass(frozen=True, eq=False)
class StudyTable:
    """A snapshot of a study's folder."""

    folder: Path
    study: StudyFile
    """The fields of the study that tables and choices read."""
    effective: Effective
    """Resolved values of fields in the last run of the study."""
    design: Design
    cells: Mapping[str, StoredCell]
    """Cells by id, in the study's order."""

    def rows(self, *metrics: str, every_rule: bool = False) -> list[TableRow]:
        """The result table: a row for each cell and seed, under the reporting rule of the study.

        Args:
            metrics: further metrics, each as a column.
            every_rule: True for a row for each cell, seed and reporting rule.

        Returns:
            Rows with the columns cell, seed, status, rule, rounds, the fields that vary, the metrics of results,
            `metrics`, costs, label, role, and seeds (the number of the cell's seeds that count). A seed without metrics
            has one row, with the study's rule.
        """
        shown = [*METRICS, *(name for name in self.metrics if name not in METRICS)]
        names = self.fields
        rows = []
        for key, stored in self.cells.items():
            cell, axes = stored.cell, fields_of_row(stored.cell, names)
            counting = sum(result["status"] == Status.DONE for result in stored.results.values())
            last = {"label": cell.label, "role": cell.role, "seeds": counting}
            for seed, result in stored.results.items():
                first = {"cell": key, "seed": seed, "status": str(result["status"])}
                costs = {name: result[name] for name in COSTS}
                own = self.study.report.rule
                rules = result["rules"] if every_rule and result["rules"] else {own: result["rules"].get(own, {})}
                for rule, figures in rules.items():
                    more = {n: stored.value(seed, n, rule) if figures else math.nan
                            for n in metrics if n not in shown and n not in COSTS}  # fmt: skip
                    values = {name: figures.get(name) for name in shown} | more
                    rows.append({**first, "rule": rule, "rounds": result["rounds"], **axes, **values, **costs, **last})
        return rows

    def frame(self, metric: str = TEST, *, every_rule: bool = False) -> pd.DataFrame:
        """The result table as a data frame; see `rows`."""
        import pandas as pd

        names = dict.fromkeys([*COLUMNS, *self.fields, *METRICS, metric, *COSTS])
        return pd.DataFrame(self.rows(metric, every_rule=every_rule) or {name: [] for name in names})

    def summary(self, rule: str = "final", metric: str = TEST, *others: str) -> list[TableRow]:
        """Summarises the results over seeds: one row per cell.

        Args:
            rule: the reporting rule.
            metric: the metric that is summarised.
            others: further metrics whose means are returned.

        Returns:
            Columns: cell, label, role, status, the fields that vary; mean, std, sem, n, min, max of the metric; the
            means of the others, of the validation accuracy and of the costs over the same seeds.
        """
        means, names = dict.fromkeys([VAL, *COSTS, *others]), self.fields
        return [
            {
                "cell": key,
                "label": stored.cell.label,
                "role": stored.cell.role,
                "status": stored.state.value,
                **fields_of_row(stored.cell, names),
                **stored.over_seeds(metric, rule),
                **{name: stored.over_seeds(name, rule)["mean"] for name in means},
            }
            for key, stored in self.cells.items()
        ]

    def values(self, metric: str, rule: str) -> pd.DataFrame:
        """A metric of the cells that are compared, for `fpl_tune.analysis`: columns `cell`, `seed`, `value`."""
        import pandas as pd

        rows = [
            (key, seed, value)
            for key, stored in self.cells.items()
            if stored.compared
            for seed, value in stored.values(metric, rule).items()
        ]
        return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"])).astype({"value": float})

    @cached_property
    def metrics(self) -> list[str]:
        """Metrics that results have, for which no history needs to be read."""
        results = [result for stored in self.cells.values() for result in stored.results.values()]
        names = dict.fromkeys(name for result in results for rule in result["rules"].values() for name in rule)
        return [name for name in names if name != "round"]

    @property
    def fields(self) -> list[str]:
        """Dotted fields (or groups) in which cells vary, in the study's order."""
        return varied_names([stored.cell for stored in self.cells.values()])

    def status(self) -> dict[str, int]:
        """Counts cells by state, seeds that have a result, and those that should; failed ones have none."""
        states, ran, due = [stored.state for stored in self.cells.values()], 0, 0
        for stored in self.cells.values():
            row, seeds = stored.row, {*self.design.seeds_of(stored.cell)}
            own = {seed for seed, run in row.runs.items() if seed in seeds and run.status not in FAILURES}
            ran += len(own)
            due += len(own if stored.state is CellState.PRUNED else {*wanted(self.design, row)} | own)
        counted = {state.value: states.count(state) for state in CellState}
        return {"cells": len(states), **counted, "seeds": ran, "seeds_wanted": due}


def varied_names(cells: Sequence[Cell]) -> list[str]:
    """Dotted fields (or groups) in which cells vary, in the study's order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))


def fields_of_row(cell: Cell, names: Sequence[str]) -> TableRow:
    """The values of one cell in the fields that vary in a study; a group is shown by its name."""
    row: TableRow = {}
    for name in names:
        value = cell.varied[name] if name in cell.varied else get_field(cell.node, name)
        if isinstance(value, Mapping):
            value = value.get("label", json.dumps(value)) if name in cell.varied else value.get("name")
        row[name] = json.dumps(value) if isinstance(value, list) else value
    return row
