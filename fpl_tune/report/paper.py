"""The papers' printed values beside ours.

A study holds what it answers to in `report.paper`:
    paper, table or figure, protocol: where it is printed; values of figures are not printed
    results: a list of rows {cell, of, as, <place>: value, ...}. `cell` is a cell's label without its data set, or
        `best on validation`, the study's own cell that validation puts first on every data set; `of` the metric (none:
        the study's; `domains`: accuracies by domain, where the paper prints others than of test/acc_mean); `as` the
        paper's name of the method (none: `cell`). Places are named as in `Figure`; values are `mean` or
        `mean ± std`, accuracies in percent, parameters in millions, times in seconds
    best: {field, results: {label without the field: {<place>: value}}}: the axis whose best value the paper prints
    expected: what the paper shows, in words
    defects: known reasons for which the printed values cannot be matched

Beside a printed average over data sets stands ours, where the study ran all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fpl_tune.config import RunSpec
from fpl_tune.core import metrics
from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.formatting import points, quantity, short
from fpl_tune.report.blocks import Part, plain_table
from fpl_tune.report.facts import DATA, Facts, without_data
from fpl_tune.simulation.evaluate import harmonic_mean
from fpl_tune.study.cells import Cell, label
from fpl_tune.study.partition import shares
from fpl_tune.study.results import TEST, aggregate
from fpl_tune.study.selection import choose

BEST = "best on validation"
DOMAINS = "domains"
_HARMONIC = "test/harmonic_mean"
_DOMAIN = re.compile(r"test/domain/(.+)/acc_mean")
_ALL = ("", "average")
"""Targets that are all domains together."""
_DRAWN = {"photo": "real"}
"""Styles of the drawn world -> the domains of DomainNet that they mirror under another name."""


class Figure(NamedTuple):
    """A value that a paper prints."""

    method: str
    """As the paper names it."""
    place: str
    """As the study file names it: `data`, `data/target domain`, `data/target domain<client's domain`, `average`."""
    mean: float
    std: float
    """NaN where none is printed."""

    @property
    def data(self) -> str:
        """Data set, or `average` over data sets."""
        return self.place.partition("/")[0]

    @property
    def target(self) -> str:
        """Domain that is tested on; `` or `average`: all."""
        return self.place.partition("/")[2].partition("<")[0]

    @property
    def source(self) -> str:
        """Domain of the client whose model is tested; ``: all."""
        return self.place.partition("<")[2]


@dataclass(frozen=True)
class Printed:
    """One of our values beside what the paper prints, in the unit that it prints."""

    label: str
    ours: float
    spread: float
    method: str
    dataset: str
    mean: float
    std: float
    comparable: bool
    """The paper's value is of the data set that the cell ran on, with the paper's backbone class, and not a time."""
    note: str = ""
    """What the label does not say of ours."""

    @property
    def gap(self) -> float:
        """Ours minus printed; NaN where they are not comparable."""
        return self.ours - self.mean if self.comparable else math.nan


@dataclass(frozen=True)
class Quantity:
    """A quantity of which the paper prints one or more values."""

    name: str
    unit: str
    """`%`, `M` (millions), `s` or nothing."""
    rows: list[Printed]

    @property
    def order(self) -> float:
        """Kendall's rank correlation between our values and the printed ones; NaN below three rows."""
        pairs = pd.DataFrame([(row.ours, row.mean) for row in self.rows], columns=pd.Index(["ours", "mean"]))
        return float(pairs["ours"].corr(pairs["mean"], method="kendall")) if len(pairs) > 2 else math.nan


Results = dict[str, dict[str, list[Figure]]]
"""Metric -> label of a cell without its data set -> printed values."""


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


def paper(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """What does the paper print?"""
    block = beside(facts)
    if block is None:
        return None
    found = Part(f"Beside the paper{': ' + block.source if block.source else ''}")
    if block.expected:
        found.texts.append(f"Expected: {block.expected}")
    if block.parts and not any(row.comparable for part in block.parts for row in part.rows):
        timed = all(part.unit == "s" for part in block.parts)
        where = "on another machine" if timed else "on other data or another backbone"
        found.texts.append(f"Ours ran {where} than the paper's, so no gap is given: compare order and trend.")
    found.texts += block.notes
    for part in block.parts:
        if part.order == part.order:
            text = f"Kendall's rank correlation with the printed figures, {part.name}: {part.order:+.2f}."
            found.texts.append(text)
        ours, printed = (f"{whose} ({part.unit})" if part.unit else whose for whose in ("ours", "printed"))
        value = partial(points, digits=3 if part.unit in ("M", "s") else 2)
        rows = [[r.label, value(r.ours, r.spread or math.nan), r.method, r.dataset, value(r.mean, r.std), value(r.gap)]
                for r in part.rows]  # fmt: skip
        found.tables.append(plain_table([part.name, ours, "printed as", "on", printed, "gap"], rows))
    found.texts += [f"Known reason for a gap: {defect}" for defect in block.defects]
    return found


def beside(facts: Facts) -> PaperBlock | None:
    """Sets what the study's paper prints beside our values; None for a study that answers to no paper."""
    asked: Mapping[str, Any] = facts.spec.report.paper
    if not asked:
        return None
    forms = {"paper": "{}", "table": "Table {}", "figure": "Fig. {}", "protocol": "{}"}
    return PaperBlock(
        source=", ".join(text.format(asked[key]) for key, text in forms.items() if asked.get(key) is not None),
        expected=str(asked.get("expected", "")),
        defects=[str(defect) for defect in asked.get("defects", [])],
        parts=[part for part in _parts(facts, asked) if part.rows],
    )


def printed_results(asked: Mapping[str, Any], metric: str) -> Results:
    """Reads `results` of a study's `report.paper`; `metric` is that of rows that name none."""
    found: Results = {}
    for row in asked.get("results", []):
        places = {place: value for place, value in row.items() if place not in ("cell", "of", "as")}
        figures = found.setdefault(row.get("of", metric), {}).setdefault(row["cell"], [])
        figures += [Figure(str(row.get("as", row["cell"])), str(p), *_value(v)) for p, v in places.items()]
    return found


def _value(written: Any) -> tuple[float, float]:
    mean, _, std = str(written).partition("±")
    return float(mean), float(std) if std else math.nan


class _Entry(NamedTuple):
    cell: Cell
    label: str
    figures: Mapping[str, list[Figure]]
    """Printed values by metric."""
    note: str = ""


def _entries(facts: Facts, results: Results) -> list[_Entry]:
    """Cells that have printed values, and those that validation chose where the paper prints the tuned method's."""
    found = [_Entry(cell, cell.label, _of(results, without_data(cell))) for cell in facts.cells]
    note = (
        f"“{BEST}” is the study's own cell of the highest validation accuracy, mean over clients and seeds by the rule "
        f"“{facts.rule}”; references do not count."
    )
    tuned, sets = _of(results, BEST), dict[str, list[Cell]]()
    for cell in facts.own if tuned else ():
        sets.setdefault(repr([cell.varied.get(name) for name in DATA]), []).append(cell)
    for cells in sets.values():
        states = facts.table.loc[[cell.id for cell in cells], "status"]
        choice = choose(facts.frame, cells, facts.spec, facts.rule)
        if choice is not None and not states.isin(["pending", "partial", "failed"]).any():
            found += [_Entry(cell, f"{cell.label} ({BEST})", tuned, note) for cell in choice.cells]
    return [entry for entry in found if entry.figures]


def _of(results: Results, name: str) -> dict[str, list[Figure]]:
    return {metric: rows[name] for metric, rows in results.items() if name in rows}


def _parts(facts: Facts, asked: Mapping[str, Any]) -> list[Quantity]:
    results = printed_results(asked, facts.spec.report.metric)
    found, entries = [], _entries(facts, results)
    for metric in sorted((name for name in results if name != DOMAINS), key=lambda name: name != facts.metric):
        unit = unit_of(metric)
        rows = [_row(facts, metric, unit, entry) for entry in entries if metric in entry.figures]
        rows += _averages(facts, metric, unit, results[metric])
        found.append(Quantity(quantity(metric, over=""), unit, [row for row in rows if row is not None]))
        if metric == TEST:
            of = DOMAINS if DOMAINS in results else metric
            found.append(Quantity("test accuracy by domain (%)", "%", _by_domain(facts, entries, of)))
    return [*found, *(_best(facts, asked["best"]) if "best" in asked else ())]


def _row(facts: Facts, metric: str, unit: str, entry: _Entry) -> Printed | None:
    values = list(facts.by_seed(entry.cell, metric).values())
    shown, same = on_data(entry.figures[metric], entry.cell.run)
    if not values or not shown:
        return None
    return set_beside(entry.cell, entry.label, values, unit, shown, same, entry.note)


def on_data(printed: Sequence[Figure], run: RunSpec) -> tuple[list[Figure], bool]:
    """Picks what is printed of a run's main test set, and True: of its data, all domains or the held out one.

    Where the clients' own domains are tested on and the paper prints no value of all, it is those of each domain that
    has clients. For other data: of domains of the same name, else of all data sets, and False.
    """
    whole = [figure for figure in printed if not figure.source]
    own = run.partition.evaluation == "domains"  # so that nothing held out is in the main test set
    held = [] if own else list(run.partition.held_out)
    if same := [f for f in whole if f.target in (held or _ALL) and f.data in _data(run)]:
        return same, True
    if alike := [f for f in whole if f.target in _mirrored(held)]:
        return alike, False
    single = [f for f in whole if f.data != "average"]
    sets = [f for f in single if f.target in _ALL]
    if own and not sets:
        single = [f for f in single if f.target not in _mirrored(run.partition.held_out)]
        kept = run.data.domains or [f.target for f in single]
        if any(f.data in _data(run) for f in single):
            return [f for f in single if f.data in _data(run) and f.target in kept], True
    return sets or single or whole, False


def _data(run: RunSpec) -> tuple[str, str]:
    return run.data.name, run.data.name + run.data.classes


def _mirrored(domains: Sequence[str]) -> set[str]:
    return {name for domain in domains for name in (domain, _DRAWN.get(domain, domain))}


def _averages(facts: Facts, metric: str, unit: str, printed: Mapping[str, list[Figure]]) -> list[Printed]:
    """A row for every method of which the paper prints an average over data sets that the study ran one by one."""
    rows, note = [], "“average” is ours over the data sets that the paper prints one by one, seed by seed"
    if metric == _HARMONIC:
        note += "; that of the harmonic mean is the harmonic mean of the averages, as FedPGP's is"
    for name in dict.fromkeys(map(without_data, facts.cells)):
        mine = [cell for cell in facts.cells if without_data(cell) == name]
        shown, cells = over_sets(printed.get(name, []), mine)
        if values := list(_over_sets(facts, cells, metric).values()):
            rows.append(set_beside(mine[0], f"{name}, average", values, unit, shown, True, f"{note}."))
    return rows


def over_sets(printed: Sequence[Figure], cells: Sequence[Cell]) -> tuple[list[Figure], list[Cell]]:
    """Picks what is printed of a method's average over data sets, and its cells on those that are printed one by one.

    Where none is printed alone, these are all data sets of the study, if there are several. Both are empty unless there
    is a cell, and no more than one, for each of them.
    """
    whole = [f for f in printed if not f.source and f.target in _ALL]
    average = [f for f in whole if f.data == "average"]
    sets = dict.fromkeys(f.data for f in whole if f.data != "average")
    if not sets and len(mine := dict.fromkeys(cell.run.data.name for cell in cells)) > 1:
        sets = mine
    ran = [[cell for cell in cells if data in _data(cell.run)] for data in sets]
    if average and ran and all(len(same) == 1 for same in ran):
        return average, [cell for (cell,) in ran]
    return [], []


def _over_sets(facts: Facts, cells: Sequence[Cell], metric: str) -> dict[int, float]:
    """Mean over cells by seed; a harmonic mean is that of the means."""
    if metric == _HARMONIC:
        parts = [_over_sets(facts, cells, name) for name in (TEST, "test/base/acc_mean", "test/novel/acc_mean")]
        return {seed: harmonic_mean([part[seed] for part in parts]) for seed in _common(parts)}
    by_cell = [facts.by_seed(cell, metric) for cell in cells]
    return {seed: float(np.mean([found[seed] for found in by_cell])) for seed in _common(by_cell)}


def _common(by_seed: Sequence[Mapping[int, float]]) -> list[int]:
    """Seeds that all have."""
    return sorted(set.intersection(*map(set, by_seed))) if by_seed else []


def _by_domain(facts: Facts, entries: Sequence[_Entry], of: str) -> list[Printed]:
    """A row for every cell and domain that has a printed value of its own."""
    rows, held = [], dict[str, tuple[str, ...]]()
    for entry in entries:
        single = [f for f in entry.figures.get(of, []) if f.source or f.target not in _ALL]
        clients, values = _domains(facts, entry.cell, held) if single else (False, {})
        for domain, ours in values.items():
            shown, same = _of_domain(single, entry.cell.run, domain, clients)
            if shown:
                rows.append(set_beside(entry.cell, f"{entry.label}, {domain}", ours, "%", shown, same))
    return rows


def _of_domain(printed: Sequence[Figure], run: RunSpec, domain: str, client: bool) -> tuple[list[Figure], bool]:
    """Picks what is printed of one domain of a run's data, and whether it is of the same data.

    client: the models are those of the domain's own clients, tested on the domain that is held out if there is one.
    """
    held = run.partition.held_out if client else []
    for same in (True, False):
        names, tested = ({domain}, set(held)) if same else (_mirrored([domain]), _mirrored(held))
        rest = [f for f in printed if f.data in _data(run)] if same else printed
        if held:
            found = [f for f in rest if f.source in names and f.target in tested]
        else:
            found = [f for f in rest if not f.source and f.target in names]
        if found:
            return found, same
    return [], False


def _domains(facts: Facts, cell: Cell, held: dict[str, tuple[str, ...]]) -> tuple[bool, dict[str, list[float]]]:
    """Accuracies over seeds by domain: of its test images where records hold them, else of its clients (and True).

    held: domains of clients by data, partition and seed, filled in; empty where the data are not at hand.
    """
    seeds = facts.seeds(cell)
    last = facts.store.history(cell, seeds[0])[-1] if seeds else {}
    sets = {name: match[1] for name in last if (match := _DOMAIN.fullmatch(name))}
    if sets:
        return False, {domain: list(facts.by_seed(cell, name).values()) for name, domain in sets.items()}
    found: dict[str, list[float]] = {}
    for seed in seeds:
        key = repr((cell.run.data, cell.run.partition, seed))
        if key not in held:
            try:
                held[key] = shares(cell.run, seed).domains
            except FplTuneError:
                held[key] = ()
        accuracy, domains = facts.clients(cell, seed), np.array(held[key])
        kept = np.isfinite(accuracy) if len(domains) == len(accuracy) else np.array([], bool)
        for domain in dict.fromkeys(domains[: len(kept)][kept]):
            found.setdefault(str(domain), []).append(float(accuracy[kept & (domains == domain)].mean()))
    return True, found


def _best(facts: Facts, best: Mapping[str, Any]) -> list[Quantity]:
    """The value of an axis that validation, and as papers do that test values, put first along the other axes."""
    field = str(best["field"])
    places: dict[str, list[Cell]] = {}
    for cell in facts.own:
        if isinstance(cell.varied.get(field), int | float):
            places.setdefault(label({n: v for n, v in cell.varied.items() if n != field}), []).append(cell)
    chosen: dict[str, list[Printed]] = {"val": [], "mean": []}
    for place, cells in places.items():
        table = facts.table.loc[[cell.id for cell in cells]]
        row = best["results"].get(without_data(cells[0], field), {})
        printed = [Figure(str(row.get("as", "")), str(p), *_value(v)) for p, v in row.items() if p != "as"]
        shown, same = on_data(printed, cells[0].run)
        if not shown or table["mean"].isna().any():
            continue
        for column, rows in chosen.items():
            if not table[column].isna().any():
                first = cells[int(np.argmax(table[column].to_numpy()))]
                rows.append(set_beside(first, place, [float(first.varied[field])], "", shown, same))
    by = {"val": "best on validation", "mean": "best on test, a habit of the papers"}
    return [Quantity(f"{short(field)} {by[column]}", "", rows) for column, rows in chosen.items()]


def unit_of(metric: str) -> str:
    """The unit that both are shown in."""
    unit = metrics.metric(metric).unit
    return unit if unit in ("%", "M", "s") else ""


_SCALE = {"%": 100.0, "M": 1e-6}
"""What a value of ours is multiplied by."""


def set_beside(
    cell: Cell, name: str, ours: Sequence[float], unit: str, shown: Sequence[Figure], same: bool, note: str = ""
) -> Printed:
    """Sets values of ours over seeds beside one printed value, or the mean of several; seconds add up."""
    alone, summed, scale = len(shown) == 1, unit == "s", _SCALE.get(unit, 1.0)
    found, total = aggregate(ours), math.fsum(figure.mean for figure in shown)
    return Printed(
        label=name, ours=scale * found["mean"], spread=scale * found["std"],
        method=shown[0].method, mean=total if summed else total / len(shown),
        dataset=shown[0].place if alone else f"{'sum' if summed else 'mean'} over {_several(shown)}",
        std=shown[0].std if alone else math.nan,
        comparable=same and cell.run.clip.name != "compact" and not summed, note=note,
    )  # fmt: skip


def _several(shown: Sequence[Figure]) -> str:
    """What several printed values are of."""
    one = len({figure.data for figure in shown}) == 1 and len({figure.target for figure in shown}) == len(shown)
    return f"{len(shown)} domains of {shown[0].data}" if one else f"{len(shown)} data sets"
