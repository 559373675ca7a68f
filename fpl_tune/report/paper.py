"""The papers' printed figures beside ours.

A study names what it answers to in `report.paper`:
    paper, table, protocol, metric: which rows of paper_targets.csv (each one given must match); where the paper prints
        several metrics, metric is a mapping of ours to its name for them
    domains: the paper's name of the metric of single domains, where it has another one
    best: {field, metric, cells}: an axis whose best value the paper prints for every place on the other axes, its name
        of that figure, and of the places as `cells` names cells
    protocols: {start of cells' labels: protocol}, where a study spans several; names are matched with the rest
    figure: a figure instead of a table; its values are not printed, so that there is nothing to set beside ours
    cells: {label of a cell, its data set left out: printed name of the method}, where names do not say it themselves;
        `best on validation` is the study's own cell that validation puts first, references aside, on every data set
    expected: what the paper shows, in words
    defects: known reasons for which the printed figures cannot be matched

Beside a printed average over data sets stands ours, where the study ran all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fpl_tune.errors import FplTuneError
from fpl_tune.evaluate import harmonic_mean
from fpl_tune.report import words
from fpl_tune.report.facts import Facts
from fpl_tune.report.printed import (
    BEST,
    called,
    choices,
    figures_of,
    named,
    of_cell,
    of_domain,
    on_data,
    over_sets,
    plain,
    without_data,
)
from fpl_tune.report.quantities import Printed, Quantity, set_beside, unit_of
from fpl_tune.study.cells import Cell, label
from fpl_tune.study.partition import shares
from fpl_tune.study.selection import choose

_WHOLE, _HARMONIC = "test/acc_mean", "test/harmonic_mean"
_DOMAIN = re.compile(r"test/domain/(.+)/acc_mean")


@dataclass(frozen=True)
class PaperBlock:
    """All that a report says about a paper."""

    source: str
    expected: str
    defects: list[str]
    parts: list[Quantity]
    """The study's own metric first."""

    @property
    def notes(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(row.note for part in self.parts for row in part.rows if row.note))


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


class _Entry(NamedTuple):
    cell: Cell
    label: str
    own: str | None = None
    """What `cells` calls it; None: its label."""
    note: str = ""


def _entries(facts: Facts, asked: Mapping[str, Any]) -> list[_Entry]:
    """All cells, and once more those that validation chose where the paper prints a figure of the tuned method."""
    found = [_Entry(cell, cell.label) for cell in facts.cells]
    note = (
        f"“{BEST}” is the study's own cell of the highest validation accuracy, mean over clients and seeds by the rule "
        f"“{facts.rule}”; references do not count."
    )
    for cells in choices(facts.own, asked) if BEST in asked.get("cells", {}) else ():
        states = facts.table.loc[[cell.id for cell in cells], "status"]
        choice = choose(facts.frame, cells, facts.spec, facts.rule)
        if choice is not None and not states.isin(["pending", "partial", "failed"]).any():
            found += [_Entry(cell, f"{cell.label} ({BEST})", BEST, note) for cell in choice.cells]
    return found


def _parts(facts: Facts, asked: Mapping[str, Any]) -> list[Quantity]:
    listed: Sequence[str] = list(asked["metric"]) if isinstance(asked.get("metric"), Mapping) else [facts.metric]
    found, entries = [], _entries(facts, asked)
    for metric in sorted(listed, key=lambda name: name != facts.metric):
        printed = figures_of(asked, metric)
        unit = unit_of(metric, printed)
        rows = [_row(facts, metric, unit, entry, printed, asked) for entry in entries]
        rows += _averages(facts, metric, unit, printed, asked)
        found.append(Quantity(words.quantity(metric, over=""), unit, [row for row in rows if row is not None]))
        if metric == _WHOLE:
            printed = named(asked, asked["domains"]) if "domains" in asked else printed
            found.append(Quantity("test accuracy by domain (%)", "%", _by_domain(facts, entries, printed, asked)))
    return [*found, *(_best(facts, asked, asked["best"]) if "best" in asked else ())]


def _row(
    facts: Facts, metric: str, unit: str, entry: _Entry, printed: pd.DataFrame, asked: Mapping[str, Any]
) -> Printed | None:
    found = of_cell(printed, entry.cell, asked, entry.own)
    values = facts.values(entry.cell, metric) if len(found) else []
    shown, same = on_data(found, entry.cell.run)
    if not values or shown.empty:
        return None
    return set_beside(entry.cell, entry.label, values, unit, shown, same, entry.note)


def _averages(facts: Facts, metric: str, unit: str, printed: pd.DataFrame, asked: Mapping[str, Any]) -> list[Printed]:
    """A row for every method of which the paper prints an average over data sets that the study ran one by one."""
    methods: dict[str, list[Cell]] = {}
    for cell in facts.cells:
        methods.setdefault(without_data(cell), []).append(cell)
    rows, note = [], "“average” is ours over the data sets that the paper prints one by one, seed by seed"
    if metric == _HARMONIC:
        note += "; that of the harmonic mean is the harmonic mean of the averages, as FedPGP's is"
    for name, cells in methods.items():
        shown, cells = over_sets(of_cell(printed, cells[0], asked), cells)
        if values := list(_over_sets(facts, cells, metric).values()):
            rows.append(set_beside(cells[0], f"{name}, average", values, unit, shown, True, f"{note}."))
    return rows


def _over_sets(facts: Facts, cells: Sequence[Cell], metric: str) -> dict[int, float]:
    """Mean over cells by seed; a harmonic mean is that of the means."""
    if metric == _HARMONIC:
        parts = [_over_sets(facts, cells, name) for name in (_WHOLE, "test/base/acc_mean", "test/novel/acc_mean")]
        return {seed: harmonic_mean([part[seed] for part in parts]) for seed in _common(parts)}
    by_cell = [facts.by_seed(cell, metric) for cell in cells]
    return {seed: float(np.mean([found[seed] for found in by_cell])) for seed in _common(by_cell)}


def _common(by_seed: Sequence[Mapping[int, float]]) -> list[int]:
    """Seeds that all have."""
    return sorted(set.intersection(*map(set, by_seed))) if by_seed else []


def _by_domain(
    facts: Facts, entries: Sequence[_Entry], printed: pd.DataFrame, asked: Mapping[str, Any]
) -> list[Printed]:
    """A row for every cell and domain that has a printed figure of its own."""
    single = printed.loc[(printed["source"] != "") | ~printed["target"].isin(["", "average"])]
    rows, held = [], _Held()
    for entry in entries if len(single) else ():
        cell = entry.cell
        found = of_cell(single, cell, asked, entry.own)
        if found.empty:
            continue
        clients, values = _domains(facts, cell, held)
        for domain, ours in values.items():
            shown, same = of_domain(found, cell.run, domain, client=clients)
            if len(shown):
                rows.append(set_beside(cell, f"{entry.label}, {domain}", ours, "%", shown, same))
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
                choice = choose(facts.frame, cells, facts.spec, facts.rule) if column == "val" else None
                first = choice.cell if choice else cells[int(np.argmax(table[column].to_numpy()))]
                rows.append(set_beside(first, place, [float(first.varied[field])], "", shown, same))
    by = {"val": "best on validation", "mean": "best on test, a habit of the papers"}
    return [Quantity(f"{words.short(field)} {by[column]}", "", rows) for column, rows in chosen.items()]
