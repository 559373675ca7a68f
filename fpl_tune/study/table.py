"""A study's results as readers see them: one reading of its folder, and the tables that are made from it.

All readers use these definitions: results.csv, the report page, MLflow, searches, the command line and the Python API.
Whether a seed counts is said once, in `standing.counts`; whether a cell is compared with others, in
`StoredCell.compared`. Tables are lists of plain dicts; pandas is imported only where a data frame is handed out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fpl_tune.core.nested import get_field
from fpl_tune.study.cells import EARLIER, Cell
from fpl_tune.study.results import COSTS, METRICS, TEST, VAL, aggregate, figure
from fpl_tune.study.standing import Design, Row, State, counts, rung_values, shown_status, standing, wanted
from fpl_tune.study.status import FAILURES, Status

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from fpl_tune.simulation.simulation import Record
    from fpl_tune.study.schema import Effective, StudyFile

TableRow = dict[str, Any]
"""Column -> value."""
COLUMNS = ("cell", "seed", "status", "rule", "rounds", "label", "role", "seeds", "earlier")
"""Columns of the result table beside the axes and the metrics."""


@dataclass(frozen=True, eq=False)
class StoredCell:
    """A cell with its results, as one reading of its files found them."""

    design: Design
    """What the study asks for of each cell."""
    row: Row
    state: State
    """One of an earlier run is not asked for any more, and so is neither queued nor paused."""
    earlier: bool
    """Whether the cell is of an earlier run; see the module `earlier`."""
    results: dict[int, dict[str, Any]]
    """By seed: of the study's seeds, and of the present version of method and data. The status is `done` exactly if the
    seed counts."""
    _values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, design: Design, row: Row, results: Mapping[int, dict[str, Any]], *, earlier: bool, complete: bool
    ) -> StoredCell:
        """Gives each stored result its status.

        Args:
            design: of the study.
            row: the cell with its runs.
            results: what is stored of the seeds of the design that have a run.
            earlier: whether the cell is of an earlier run.
            complete: whether the last run of the study left nothing to run.
        """
        state = standing(design, row).state
        if earlier and state in (State.QUEUED, State.PAUSED):
            ends = {str(result["status"]) for result in results.values()}
            bad = next((bad for bad in (State.FAILED, State.DIVERGED) if bad.value in ends), None)
            state = bad or (State.DONE if counts(design, row) else State.PRUNED)
        elif state is State.PAUSED and complete:
            state = State.PRUNED
        shown = {s: {**found, "status": shown_status(design, row, s, state)} for s, found in results.items()}
        return cls(design, row, state, earlier, shown)

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.row.cell

    @property
    def called(self) -> str:
        """What tables call the state: `earlier` where an earlier run has done the cell."""
        return EARLIER if self.earlier and self.state is State.DONE else self.state.value

    @property
    def compared(self) -> bool:
        """Whether the cell is compared with others, be it by a choice, a difference, a letter or a claim.

        It is if it has results and all of them count: the mean of the seeds that have not diverged, or of fewer rounds,
        says nothing of the cell.
        """
        return bool(self.results) and all(result["status"] == Status.DONE for result in self.results.values())

    @property
    def rung_values(self) -> dict[int, float]:
        """The objective of a trial at the rungs that it has reached, by round."""
        return rung_values(self.design, self.row)

    def history(self, seed: int) -> Sequence[Record]:
        """Records of a seed by round; empty where it has no result, or its file is damaged."""
        return self.row.runs[seed].records() if seed in self.results else []

    def seeds(self, rule: str) -> list[int]:
        """The seeds over which means are taken under a reporting rule: those that count.

        A cell without any, such as one that was pruned, is shown by the seeds that it has, if all of them ran the same
        number of rounds.
        """
        ran = {s: r for s, r in self.results.items() if rule in r["rules"] and r["status"] not in FAILURES}
        done = [seed for seed, result in ran.items() if result["status"] == Status.DONE]
        return done or (list(ran) if len({result["rounds"] for result in ran.values()}) == 1 else [])

    def value(self, seed: int, metric: str, rule: str) -> float:
        """A metric of a seed under a reporting rule; NaN where its records do not hold it."""
        result = self.results[seed]
        chosen = result["rules"].get(rule)
        if chosen is None:
            return math.nan
        if metric in COSTS:
            return float(result[metric])
        return float(chosen[metric]) if metric in chosen else figure(self.history(seed), metric, rule)

    def values(self, metric: str, rule: str) -> dict[int, float]:
        """A metric by seed, of the seeds over which means are taken and whose records hold it."""
        if (metric, rule) not in self._values:
            found = {seed: self.value(seed, metric, rule) for seed in self.seeds(rule)}
            self._values[metric, rule] = {seed: value for seed, value in found.items() if not math.isnan(value)}
        return self._values[metric, rule]

    def over_seeds(self, metric: str, rule: str) -> dict[str, float]:
        """Mean, std, sem, n, min and max of a metric over these seeds; see `results.aggregate`."""
        return aggregate([*self.values(metric, rule).values()])


@dataclass(frozen=True, eq=False)
class StudyTable:
    """What a study's folder held at one moment."""

    folder: Path
    study: StudyFile
    """The fields of the study that tables and choices read."""
    effective: Effective
    """What fields of the study stood for."""
    design: Design
    cells: Mapping[str, StoredCell]
    """By id, in the study's order."""

    def rows(self, *metrics: str) -> list[TableRow]:
        """The result table: a row for each cell, seed and reporting rule.

        Args:
            metrics: get columns of their own.

        Returns:
            Rows with the columns cell, seed, status, rule, rounds, the fields that vary, metrics, those that results
            hold beside them, costs, label, role, seeds, the number of the cell's seeds that count, and whether the cell
            is of an earlier run. A seed without metrics has one row, of the rule `final`.
        """
        shown = [*METRICS, *(name for name in self.metrics if name not in METRICS)]
        names = self.fields
        rows = []
        for key, stored in self.cells.items():
            cell, place = stored.cell, fields_of_row(stored.cell, names)
            counting = sum(result["status"] == Status.DONE for result in stored.results.values())
            last = {"label": cell.label, "role": cell.role, "seeds": counting, "earlier": stored.earlier}
            for seed, result in stored.results.items():
                first = {"cell": key, "seed": seed, "status": str(result["status"])}
                costs = {name: result[name] for name in COSTS}
                for rule, found in (result["rules"] or {"final": {}}).items():
                    more = {n: stored.value(seed, n, rule) if found else math.nan
                            for n in metrics if n not in shown and n not in COSTS}  # fmt: skip
                    values = {name: found.get(name) for name in shown} | more
                    rows.append({**first, "rule": rule, "rounds": result["rounds"], **place, **values, **costs, **last})
        return rows

    def frame(self, metric: str = TEST) -> pd.DataFrame:
        """The result table as a data frame."""
        import pandas as pd

        names = dict.fromkeys([*COLUMNS, *self.fields, *METRICS, metric, *COSTS])
        return pd.DataFrame(self.rows(metric) or {name: [] for name in names})

    def summary(self, rule: str = "final", metric: str = TEST, *others: str) -> list[TableRow]:
        """Summarises the results over seeds: one row per cell.

        Args:
            rule: the reporting rule.
            metric: the metric that is summarised.
            others: metrics whose means are given beside.

        Returns:
            Columns: cell, label, role, status, the fields that vary; mean, std, sem, n, min, max of the metric; the
            means of the others, of the validation accuracy and of the costs over the same seeds.
        """
        beside, names = dict.fromkeys([VAL, *COSTS, *others]), self.fields
        return [
            {
                "cell": key,
                "label": stored.cell.label,
                "role": stored.cell.role,
                "status": stored.called,
                **fields_of_row(stored.cell, names),
                **stored.over_seeds(metric, rule),
                **{name: stored.over_seeds(name, rule)["mean"] for name in beside},
            }
            for key, stored in self.cells.items()
        ]

    def values(self, metric: str, rule: str) -> pd.DataFrame:
        """A metric of the cells that are compared, as `fpl_tune.analysis` reads it: columns `cell`, `seed`, `value`."""
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
        """Metrics that results hold, so that no history is read for them."""
        results = [result for stored in self.cells.values() for result in stored.results.values()]
        held = dict.fromkeys(name for result in results for rule in result["rules"].values() for name in rule)
        return [name for name in held if name != "round"]

    @property
    def fields(self) -> list[str]:
        """Dotted fields (or groups) in which cells vary, in the study's order."""
        return varied_names([stored.cell for stored in self.cells.values()])

    def status(self) -> dict[str, int]:
        """Counts cells by state, and seeds that have a result."""
        states, rows = [stored.state for stored in self.cells.values()], [s.row for s in self.cells.values()]
        seeds = {*self.design.seeds}
        return {
            "cells": len(rows),
            **{state.value: states.count(state) for state in State},
            "seeds": sum(len(row.runs.keys() & seeds) for row in rows),
            "seeds_wanted": sum(len({*wanted(self.design, row)} | row.runs.keys() & seeds) for row in rows),
        }


def varied_names(cells: Sequence[Cell]) -> list[str]:
    """Dotted fields (or groups) in which cells vary, in the study's order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))


def fields_of_row(cell: Cell, names: Sequence[str]) -> TableRow:
    """The fields that vary in a study, of one cell; a group is shown by its name."""
    place: TableRow = {}
    for name in names:
        value = cell.varied[name] if name in cell.varied else get_field(cell.node, name)
        if isinstance(value, Mapping):
            value = value.get("label", json.dumps(value)) if name in cell.varied else value.get("name")
        place[name] = json.dumps(value) if isinstance(value, list) else value
    return place
