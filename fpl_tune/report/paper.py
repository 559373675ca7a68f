"""The papers' printed figures beside ours.

A study names what it answers to in `report.paper`:
    paper, table, protocol, metric: which rows of paper_targets.csv (each one given must match); where the paper prints
        several metrics, metric is a mapping of ours to its name for them
    domains: the paper's name of the metric of single domains, where it has another one
    best: {field, metric, cells}: an axis whose best value the paper prints for every place on the other axes, its name
        of that figure, and of the places as `cells` names cells
    protocols: {start of cells' labels: protocol}, where a study spans several; names are matched with the rest
    figure: a figure instead of a table; its values are not printed, so that there is nothing to set beside ours
    cells: {label of a cell, its data set left out: printed name of the method}, where names do not say it themselves
    expected: what the paper shows, in words
    defects: known reasons for which the printed figures cannot be matched
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune.errors import FplTuneError
from fpl_tune.report import words
from fpl_tune.report.facts import Facts
from fpl_tune.report.printed import called, figures_of, named, of_cell, of_domain, on_data, plain, without_data
from fpl_tune.study.cells import Cell, label
from fpl_tune.study.partition import shares

_WHOLE = "test/acc_mean"
_DOMAIN = re.compile(r"test/domain/(.+)/acc_mean")


@dataclass(frozen=True)
class Printed:
    """One of our figures beside what the paper prints, in the unit that it prints."""

    label: str
    ours: float
    spread: float
    method: str
    dataset: str
    mean: float
    std: float
    comparable: bool
    """The paper's figure is of the data set that the cell ran on, with the paper's backbone class."""

    @property
    def gap(self) -> float:
        """Ours minus printed; nan on other data."""
        return self.ours - self.mean if self.comparable else math.nan


@dataclass(frozen=True)
class Quantity:
    """A figure of which the paper prints one or more values."""

    name: str
    unit: str
    """`%`, `M` (millions) or nothing."""
    rows: list[Printed]

    @cached_property
    def order(self) -> float:
        """Kendall's rank correlation between our values and the printed ones; nan below three rows."""
        pairs = pd.DataFrame([(row.ours, row.mean) for row in self.rows], columns=pd.Index(["ours", "mean"]))
        return float(pairs["ours"].corr(pairs["mean"], method="kendall")) if len(pairs) > 2 else math.nan


@dataclass(frozen=True)
class PaperBlock:
    """All that a report says about a paper."""

    source: str
    expected: str
    defects: list[str]
    parts: list[Quantity]
    """The study's own metric first."""


def beside(facts: Facts) -> PaperBlock | None:
    """What the study's paper prints beside our figures; None for a study that answers to no paper."""
    asked: dict[str, Any] = dict(facts.spec.report.paper)
    if not asked:
        return None
    words_ = {"paper": "{}", "table": "Table {}", "figure": "Fig. {}", "protocol": "{}"}
    return PaperBlock(
        source=", ".join(text.format(asked[key]) for key, text in words_.items() if asked.get(key) is not None),
        expected=str(asked.get("expected", "")),
        defects=[str(defect) for defect in asked.get("defects", [])],
        parts=[] if asked.get("table") is None else [part for part in _parts(facts, asked) if part.rows],
    )


def _parts(facts: Facts, asked: Mapping[str, Any]) -> list[Quantity]:
    listed: Sequence[str] = list(asked["metric"]) if isinstance(asked.get("metric"), Mapping) else [facts.metric]
    found = []
    for metric in sorted(listed, key=lambda name: name != facts.metric):
        printed = figures_of(asked, metric)
        unit, scale = _unit(metric, printed)
        rows = [_row(facts, metric, scale, cell, printed, asked) for cell in facts.cells]
        found.append(Quantity(words.quantity(metric, over=""), unit, [row for row in rows if row is not None]))
        if metric == _WHOLE:
            printed = named(asked, asked["domains"]) if "domains" in asked else printed
            found.append(Quantity("test accuracy by domain (%)", "%", _by_domain(facts, printed, asked)))
    return [*found, *(_best(facts, asked, asked["best"]) if "best" in asked else ())]


def _unit(metric: str, printed: pd.DataFrame) -> tuple[str, float]:
    """The unit that the paper prints a metric in, and what ours is multiplied with."""
    if words.percent(metric):
        return "%", 100.0
    millions = len(printed) > 0 and str(printed["metric"].iloc[0]).endswith("(M)")
    return ("M", 1e-6) if millions else ("", 1.0)


def _row(
    facts: Facts, metric: str, scale: float, cell: Cell, printed: pd.DataFrame, asked: Mapping[str, Any]
) -> Printed | None:
    found = of_cell(printed, cell, asked)
    values = facts.values(cell, metric) if len(found) else []
    shown, same = on_data(found, cell.run)
    return _set_beside(cell, cell.label, values, scale, shown, same) if values and len(shown) else None


def _set_beside(cell: Cell, name: str, ours: Sequence[float], scale: float, shown: pd.DataFrame, same: bool) -> Printed:
    """Values of ours over seeds beside one printed figure, or the mean of several."""
    alone = len(shown) == 1
    return Printed(
        label=name, ours=scale * float(np.mean(ours)),
        spread=scale * float(np.std(ours, ddof=1)) if len(ours) > 1 else math.nan,
        method=str(shown["method"].iloc[0]), mean=float(shown["mean"].mean()),
        dataset=str(shown["dataset"].iloc[0]) if alone else f"mean over {len(shown)} data sets",
        std=float(shown["std"].iloc[0]) if alone else math.nan,
        comparable=same and cell.run.clip.name != "compact",
    )  # fmt: skip


def _by_domain(facts: Facts, printed: pd.DataFrame, asked: Mapping[str, Any]) -> list[Printed]:
    """A row for every cell and domain that has a printed figure of its own."""
    single = printed.loc[(printed["source"] != "") | ~printed["target"].isin(["", "average"])]
    rows, held = [], _Held()
    for cell in facts.cells if len(single) else ():
        found = of_cell(single, cell, asked)
        if found.empty:
            continue
        clients, values = _domains(facts, cell, held)
        for domain, ours in values.items():
            shown, same = of_domain(found, cell.run, domain, client=clients)
            if len(shown):
                rows.append(_set_beside(cell, f"{cell.label}, {domain}", ours, 100.0, shown, same))
    return rows


class _Held:
    """Domains of clients, drawn once for all cells that share a partition."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, cell: Cell, seed: int) -> tuple[str, ...]:
        """Per client; empty where the data are not at hand."""
        key = repr((cell.run.data, cell.run.partition, seed))
        if key not in self._known:
            try:
                self._known[key] = shares(cell.run, seed).domains
            except FplTuneError:
                self._known[key] = ()
        return self._known[key]


def _domains(facts: Facts, cell: Cell, held: _Held) -> tuple[bool, dict[str, list[float]]]:
    """Accuracies over seeds by domain: of its test images where records hold them, else of its clients (and True)."""
    seeds = facts.seeds(cell)
    last = facts.store.history(cell, seeds[0])[-1] if seeds else {}
    sets = {name: match[1] for name in last if (match := _DOMAIN.fullmatch(name))}
    if sets:
        return False, {domain: facts.values(cell, name) for name, domain in sets.items()}
    found: dict[str, list[float]] = {}
    for seed in seeds:
        accuracy, domains = facts.clients(cell, seed), np.array(held.of(cell, seed))
        kept = np.isfinite(accuracy) if len(domains) == len(accuracy) else np.array([], bool)
        for domain in dict.fromkeys(domains[: len(kept)][kept]):
            found.setdefault(str(domain), []).append(float(accuracy[kept & (domains == domain)].mean()))
    return True, found


def _best(facts: Facts, asked: Mapping[str, Any], best: Mapping[str, Any]) -> list[Quantity]:
    """The value of an axis that validation, and as papers do that test figures, put first along the other axes."""
    field, names = str(best["field"]), best.get("cells", {})
    printed = named(asked, str(best["metric"]))
    places: dict[str, list[Cell]] = {}
    for cell in facts.own:
        if isinstance(cell.varied.get(field), int | float):
            places.setdefault(label({n: v for n, v in cell.varied.items() if n != field}), []).append(cell)
    chosen: dict[str, list[Printed]] = {"val": [], "mean": []}
    for place, cells in places.items():
        table = facts.table.loc[[cell.id for cell in cells]]
        rest = without_data(cells[0], field)
        shown, same = on_data(called(printed, {plain(str(names.get(rest, rest)))}), cells[0].run)
        if shown.empty or table["mean"].isna().any():
            continue
        for column, rows in chosen.items():
            if not table[column].isna().any():
                first = cells[int(np.argmax(table[column].to_numpy()))]
                rows.append(_set_beside(first, place, [float(first.varied[field])], 1.0, shown, same))
    by = {"val": "best on validation", "mean": "best on test, a habit of the papers"}
    return [Quantity(f"{words.short(field)} {by[column]}", "", rows) for column, rows in chosen.items()]
