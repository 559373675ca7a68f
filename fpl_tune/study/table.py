"""A study's results: its cells with their runs at one moment, and the tables that are made from them.

The driver runs a study by this table, and all readers show it: results.csv, the report page, MLflow, the command line
and the Python API. `Row.counts` says which seeds count, and `Row.compared` which cells are compared with others. Tables
are lists of plain dicts; pandas is imported only when a data frame is returned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune.core.nested import get_field
from fpl_tune.study.cells import Cell
from fpl_tune.study.design import Design
from fpl_tune.study.results import COSTS, FAILURES, METRICS, TEST, VAL
from fpl_tune.study.schema import Effective, StudyFile
from fpl_tune.study.standing import CellState, Row

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("cell", "seed", "status", "rule", "rounds", "label", "role", "seeds")
"""Columns of the result table besides the axes and the metrics."""
OTHER_COLUMNS = frozenset(
    {*COLUMNS, "mean", "std", "sem", "n", "min", "max", "val", "bytes", "seconds"}
    | {"number", "trial", "series", "best", "validation", "objective", "cost", "MB", "time", "group"}
    | {"reference", "difference", "low", "high", "verdict", "note", "look", "seen"}
)
"""Columns of tables and of the data of charts, which no axis is named by."""


@dataclass(eq=False)
class StudyTable:
    """The cells that a study asks for, with their stored runs."""

    study: StudyFile
    """The fields of the study that tables and choices read."""
    design: Design
    rows: dict[str, Row] = field(default_factory=dict)
    """Rows by the cell's id."""
    rejected: dict[str, Row] = field(default_factory=dict)
    """The trials that their method has refused, likewise, of a study that runs. They cost nothing and count for
    nothing; their searches do not suggest them again."""
    folder: Path = Path()
    """The study's folder."""
    effective: Effective = field(default_factory=Effective)
    """Resolved values of fields in the last run of the study."""

    def having(self, *states: CellState) -> list[Row]:
        """Rows in one of these states."""
        return [row for row in self.rows.values() if row.standing.state in states]

    def by_seed(self, *metrics: str, every_rule: bool = False) -> list[dict[str, Any]]:
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
        own, names, lines = self.study.report.rule, self.fields, list[dict[str, Any]]()
        for key, row in self.rows.items():
            axes = fields_of_row(row.cell, names)
            last = {"label": row.cell.label, "role": row.cell.role, "seeds": len(row.counts)}
            for seed, run in row.results.items():
                first = {"cell": key, "seed": seed, "status": row.status(seed)}
                rules = run.rules if every_rule and run.rules else {own: run.rules.get(own, {})}
                for rule, figures in rules.items():
                    more = {n: run.value(n, rule) if figures else math.nan
                            for n in metrics if n not in shown and n not in COSTS}  # fmt: skip
                    values = {name: figures.get(name) for name in shown} | more
                    lines.append({**first, "rule": rule, "rounds": run.rounds, **axes, **values, **run.costs, **last})
        return lines

    def frame(self, metric: str = TEST, *, every_rule: bool = False) -> pd.DataFrame:
        """The result table as a data frame; see `by_seed`."""
        import pandas as pd

        names = dict.fromkeys([*COLUMNS, *self.fields, *METRICS, metric, *COSTS])
        return pd.DataFrame(self.by_seed(metric, every_rule=every_rule) or {name: [] for name in names})

    def summary(self, rule: str = "final", metric: str = TEST, *others: str) -> list[dict[str, Any]]:
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
                "label": row.cell.label,
                "role": row.cell.role,
                "status": row.state.value,
                **fields_of_row(row.cell, names),
                **row.over_seeds(metric, rule),
                **{name: row.over_seeds(name, rule)["mean"] for name in means},
            }
            for key, row in self.rows.items()
        ]

    def values(self, metric: str, rule: str) -> pd.DataFrame:
        """A metric of the cells that are compared, for `fpl_tune.analysis`: columns `cell`, `seed`, `value`."""
        import pandas as pd

        rows = [
            (key, seed, value)
            for key, row in self.rows.items()
            if row.compared
            for seed, value in row.values(metric, rule).items()
        ]
        return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"])).astype({"value": float})

    @property
    def metrics(self) -> list[str]:
        """Metrics that results have, for which no history needs to be read."""
        runs = [run for row in self.rows.values() for run in row.results.values()]
        names = dict.fromkeys(name for run in runs for rule in run.rules.values() for name in rule)
        return [name for name in names if name != "round"]

    @property
    def fields(self) -> list[str]:
        """Dotted fields (or groups) in which cells vary, in the study's order."""
        return varied_names(row.cell for row in self.rows.values())

    def status(self) -> dict[str, int]:
        """Counts cells by state, seeds that have a result, and those that should; failed ones have none."""
        states, ran, due = [row.state for row in self.rows.values()], 0, 0
        for row in self.rows.values():
            own = {seed for seed, run in row.results.items() if run.status not in FAILURES}
            ran += len(own)
            due += len(own if row.state is CellState.PRUNED else {*row.wanted} | own)
        counted = {state.value: states.count(state) for state in CellState}
        return {"cells": len(states), **counted, "seeds": ran, "seeds_wanted": due}


def varied_names(cells: Iterable[Cell]) -> list[str]:
    """Dotted fields (or groups) in which cells vary, in the study's order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "label"))


def fields_of_row(cell: Cell, names: Sequence[str]) -> dict[str, Any]:
    """The values of one cell in the fields that vary in a study; a group is shown by its name."""
    row = dict[str, Any]()
    for name in names:
        value = cell.varied[name] if name in cell.varied else get_field(cell.node, name)
        if isinstance(value, Mapping):
            value = value.get("label", json.dumps(value)) if name in cell.varied else value.get("name")
        row[name] = json.dumps(value) if isinstance(value, list) else value
    return row
