"""The papers' printed values beside ours.

A study holds what it answers to in `report.paper`:
    paper, table or figure, protocol: where it is printed; values of figures are not printed
    results: a list of rows {cell, of, as, <place>: value, ...}. `cell` is a cell's label without its data set, or
        `best on validation`; `of` the metric (none: the study's); `as` the paper's name of the method (none: `cell`).
        A place is `data`, `data/tested domain`, `data/tested domain<client's domain`, `data/average` or `average`.
        Values are `mean` or `mean ± std`, accuracies in percent, parameters in millions, times in seconds
    expected: what the paper shows, in words
    defects: known reasons for which the printed values cannot be matched

A gap is given where a cell ran on the place's data with a backbone of the paper's class. The mean of cells on other
data, such as the embedded world, stands beside that of the printed places: compare order and trend.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.formatting import percent, points, quantity, scaled, unit
from fpl_tune.findings.comparisons import Comparisons
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.names import without_data
from fpl_tune.report.panels import Panel, plain_table
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import aggregate

BEST = "best on validation"


class Figure(NamedTuple):
    """A value that a paper prints."""

    method: str
    """As the paper names it."""
    place: str
    mean: float
    std: float
    """NaN where none is printed."""


class Printed(NamedTuple):
    """One of our values beside what the paper prints, in the unit that it prints."""

    label: str
    ours: float
    spread: float
    method: str
    place: str
    mean: float
    std: float
    comparable: bool

    @property
    def gap(self) -> float:
        """Ours minus printed; NaN where they are not comparable."""
        return self.ours - self.mean if self.comparable else math.nan


def paper(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """What does the paper print?"""
    asked: Mapping[str, Any] = findings.spec.report.paper
    if not asked:
        return None
    forms = {"paper": "{}", "table": "Table {}", "figure": "Fig. {}", "protocol": "{}"}
    source = ", ".join(form.format(asked[key]) for key, form in forms.items() if key in asked)
    panel = Panel(f"Beside the paper: {source}", [f"Expected: {asked['expected']}"] if "expected" in asked else [])
    for metric, rows in beside(findings).items():
        name = quantity(metric, over="")
        if not any(row.comparable for row in rows):
            panel.texts.append(
                f"{name}: ours ran on other data, another backbone or another machine; compare the order."
            )
        if len(rows) > 2:
            order = pd.Series([row.ours for row in rows]).corr(pd.Series([row.mean for row in rows]), method="kendall")
            panel.texts.append(f"Kendall's rank correlation with the printed figures, {name}: {order:+.2f}.")
        value = partial(points, digits=2 if percent(metric) else 3)
        header = [name, f"ours ({unit(metric)})", "printed as", "on", f"printed ({unit(metric)})", "gap"]
        panel.tables.append(plain_table(header, [
            [r.label, value(r.ours, r.spread), r.method, r.place, value(r.mean, r.std), value(r.gap)] for r in rows
        ]))  # fmt: skip
    panel.texts += [f"Known reason for a gap: {defect}" for defect in asked.get("defects", [])]
    return panel


def printed_results(asked: Mapping[str, Any], metric: str) -> Iterator[tuple[str, str, list[Figure]]]:
    """Yields metric, label of a cell and printed values of the rows of a study's `report.paper`.

    Args:
        asked: `report.paper`.
        metric: of rows that name none.
    """
    for row in asked.get("results", []):
        places = {str(place): value for place, value in row.items() if place not in ("cell", "of", "as")}
        values = {place: str(value).partition("±")[::2] for place, value in places.items()}
        yield row.get("of", metric), row["cell"], [
            Figure(str(row.get("as", row["cell"])), place, float(mean), float(std or "nan"))
            for place, (mean, std) in values.items()
        ]  # fmt: skip


def beside(findings: Findings) -> dict[str, list[Printed]]:
    """Sets what the study's paper prints beside our values, by metric, the study's own first."""
    by_metric: dict[str, list[Printed]] = {findings.metric: []}
    for metric, name, figures in printed_results(findings.spec.report.paper, findings.spec.report.metric):
        cells = [c for c in findings.finished if (c.id in findings.chosen if name == BEST else without_data(c) == name)]
        rows, met = by_metric.setdefault(metric, []), set[str]()
        for figure in figures:
            data, target, source = re.split("[/<]", f"{figure.place}//")[:3]
            here = [c for c in cells if data in (c.run.data.name, c.run.data.name + c.run.data.classes)]
            if data == "average" and len({c.run.data.name for c in cells}) > 1:
                here = cells
            for group in [here] if target in ("", "average") else [[cell] for cell in here]:
                if values := _ours(findings, group, metric, target, source):
                    rows.append(_printed(group, metric, values, figure, alike=True))
                    met.update(cell.id for cell in group)
        single = [f for f in figures if not f.place.endswith("average") and "<" not in f.place] or figures
        rest = [cell for cell in cells if cell.id not in met]
        if values := _ours(findings, rest, metric, "", ""):
            mean, place = math.fsum(f.mean for f in single) / len(single), f"mean over {len(single)} places"
            whole = Figure(single[0].method, place, mean, math.nan) if len(single) > 1 else single[0]
            rows.append(_printed(rest, metric, values, whole, alike=False))
    return {metric: rows for metric, rows in by_metric.items() if rows}


def _ours(findings: Findings, cells: Sequence[Cell], metric: str, target: str, source: str) -> list[float]:
    """Our values over the seeds that all cells have, means over the cells."""
    by_cell = [_measured(findings, cell, metric, target, source) for cell in cells]
    seeds = set.intersection(*map(set, by_cell)) if by_cell else set[int]()
    return [float(np.mean([by_seed[seed] for by_seed in by_cell])) for seed in sorted(seeds)]


def _measured(findings: Findings, cell: Cell, metric: str, target: str, source: str) -> dict[int, float]:
    """A metric by seed on a tested domain (none: as it is), of the models of a domain's own clients if it is named."""
    plan = cell.run.partition
    one_out = plan.evaluation == "leave_one_domain_out"
    if target in ("", "average") or (one_out and target in plan.held_out and not source):
        return findings.by_seed(cell, metric)
    if not metric.endswith("acc_mean") or (one_out and target not in plan.held_out):
        return {}
    if plan.evaluation == "domains":
        return findings.by_seed(cell, f"test/domain/{target}/acc_mean")
    accuracies = {}
    with contextlib.suppress(FplTuneError):  # the data are not at hand
        for seed in findings.seeds(cell):
            accuracy, domains = findings.clients(cell, seed), np.array(findings.class_counts(cell, seed).domains)
            if len(accuracy) == len(domains) and (domains == (source or target)).any():
                accuracies[seed] = float(np.nanmean(accuracy[domains == (source or target)]))
    return accuracies


def _printed(cells: Sequence[Cell], metric: str, values: Sequence[float], figure: Figure, *, alike: bool) -> Printed:
    """A row of values over seeds; `alike`: of the paper's data."""
    ours = aggregate(values, metric)
    label = cells[0].label if len(cells) == 1 else f"{without_data(cells[0])}, mean over {len(cells)} cells"
    comparable = alike and unit(metric) != "s" and all(cell.run.clip.name != "compact" for cell in cells)
    return Printed(label, scaled(ours["mean"], metric), scaled(ours["std"], metric), *figure, comparable)
