"""The sections of the report page: each answers one question an ablation is run for, or is left out."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fpl_tune.errors import FplTuneError
from fpl_tune.evaluate import CHOICES, HABITS
from fpl_tune.report import figures, tables, words
from fpl_tune.report.facts import Facts, numeric
from fpl_tune.report.importance import importance
from fpl_tune.report.paper import beside
from fpl_tune.study.cells import shown
from fpl_tune.study.partition import shares

SHOWN = 8
"""Cells drawn at once; of more, those with the highest validation accuracy."""


@dataclass(frozen=True)
class Td:
    """A table's field: its text and what it is sorted by (None: its text)."""

    text: str
    key: float | str | None = None


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: list[dict[str, Any]]
    """{"kind": CSS class, "cells": list of Td}"""
    sortable: bool = False


@dataclass
class Section:
    id: str
    title: str
    texts: list[str] = field(default_factory=list)
    drawn: dict[str, tuple[Figure, str]] = field(default_factory=dict)
    """File name -> figure and caption."""
    tables: list[Table] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def plain_table(header: list[str], rows: list[list[str]]) -> Table:
    return Table(header, [{"kind": "", "cells": [Td(text) for text in row]} for row in rows])


def curve(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How does the metric depend on what varies?"""
    axes = [a for a in facts.axes if facts.table.loc[[c.id for c in facts.own], a].notna().any()]
    finished = facts.table.loc[[c.id for c in facts.own], "n"].gt(0).sum()
    if not axes or finished < 2:
        return None
    named = facts.spec.report.x
    numbers = [a for a in axes if numeric(facts.table[a])]
    x = named if named in axes else (numbers or axes)[0]
    many = len(facts.axes) > 2 or any(cell.role == "trial" for cell in facts.own)
    section = Section("curve", "Along each field" if many else f"Along {words.axis_name(x)}")
    if many:
        for axis in axes[:6]:
            section.drawn[f"slice_{words.short(axis)}"] = (
                figures.slices(facts, axis),
                f"By {axis}; ringed: best by validation.",
            )
        return section
    caption = "Mean over seeds; the band is the standard deviation over seeds. References are lines with bands."
    section.drawn["curve"] = figures.axis_curve(facts, x), caption
    return section


def main_table(facts: Facts, tests: pd.DataFrame) -> Section:
    """Which cell is best, and is it better than the reference?"""
    body = tables.rows(facts, tests)
    rows = []
    for row in body:
        keys = [("" if isinstance(k, float) and np.isnan(k) else k) for k in row.sort]
        kind = "best" if row.best else "reference" if row.reference else ""
        rows.append({"kind": kind, "cells": [Td(t, k) for t, k in zip(row.cells, keys, strict=True)]})
    return Section(
        "table", "All cells", [tables.note(facts)], tables=[Table(tables.header(facts), rows, sortable=True)]
    )


def learning(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How fast is it learned?"""
    cells = facts.notable(SHOWN)
    if not cells:
        return None
    caption = "Mean over seeds with the standard deviation: references, and the cells that validation puts first."
    return Section("learning", "Learning curves", drawn={"learning": (figures.learning_curves(facts, cells), caption)})


def pairs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How do two axes act together?"""
    if len(facts.axes) < 2:
        return None
    sizes = {axis: facts.table[axis].dropna().nunique() for axis in facts.axes}
    columns, rows = sorted([a for a in facts.axes if 1 < sizes[a] <= 40][:2], key=lambda a: -sizes[a]) or (None, None)
    if columns is None or rows is None:
        return None
    caption = f"Mean over seeds{' and over the other axes' if len(facts.axes) > 2 else ''}."
    return Section("pairs", f"{words.short(rows)} and {words.short(columns)}",
                   drawn={"heat_map": (figures.heat_map(facts, rows, columns), caption)})  # fmt: skip


def matters(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which hyper-parameters matter?"""
    found = importance(facts)
    if len(found) < 2:
        return None
    text = (
        "Share of the variance of the validation accuracy over cells that a field explains alone (ω²), in the cells "
        "in which it exists; interactions are not in it."
    )
    names = [f"{m}: {words.short(f)}" for m, f in zip(found["method"], found["field"], strict=True)]
    drawn = figures.bars(names[:20], (100 * found["explained"][:20]).tolist(), "share of variance explained (%)")
    return Section("importance", "What matters", [text], {"importance": (drawn, f"{len(facts.own)} cells.")})


def costs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What does accuracy cost in bytes?"""
    table = facts.table.dropna(subset=["mean", "bytes"])
    if table["bytes"].nunique() < 2:
        return None
    caption = "Bytes up and down of all clients over the whole run. Bars: standard deviation over seeds."
    return Section("pareto", "Accuracy against bytes", drawn={"pareto": (figures.pareto(facts), caption)})


def clients(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Who gains, who loses?"""
    drawn = figures.client_boxes(facts, facts.notable(SHOWN))
    if drawn is None:
        return None
    return Section("clients", "Clients", drawn={"clients": (drawn, "One point per client and seed; box: quartiles.")})


def diagnoses(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What do the models of the best cell rely on?"""
    cell = facts.best
    if cell is None:
        return None
    last = [facts.store.history(cell, seed)[-1] for seed in facts.seeds(cell)]
    names = sorted({name for record in last for name in record if name.startswith("diagnosis/")})
    if not names:
        return None
    section = Section("diagnosis", "What the models rely on")
    for number, name in enumerate(names):
        values = np.mean([record[name] for record in last if name in record], axis=0)
        what = name.removeprefix("diagnosis/")
        bars = figures.bars([str(i + 1) for i in range(len(values))], (100 * values).tolist(), f"{what} (%)")
        section.drawn[f"diagnosis_{number}"] = (
            bars,
            f"{cell.label}: {what}; validation images, mean over clients and seeds.",
        )
    return section


def domains(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Who holds what, and on which domains is the best cell good?"""
    cell = facts.best or next(iter(facts.cells), None)
    seeds = facts.seeds(cell) if cell is not None else []
    if cell is None or not seeds:
        return None
    try:
        drawn = {seed: shares(cell.run, seed) for seed in seeds}
    except FplTuneError as problem:
        return Section("partition", "Partition", [f"Not drawn, since the data are not at hand: {problem}"])
    stored = {seed: str((facts.store.result(cell, seed) or {}).get("split_hash")) for seed in seeds}
    if any(drawn[seed].hash != stored[seed] for seed in seeds):
        return Section("partition", "Partition", ["Not drawn: the data are no longer those of the results."])
    caption = f"Training images of seed {seeds[0]} in {cell.label}: the area of a disc is their number."
    section = Section("partition", "Partition", drawn={"partition": (figures.partition(drawn[seeds[0]]), caption)})
    by_domain: dict[str, list[float]] = {}
    for seed in seeds:
        for name, value in zip(drawn[seed].domains, facts.clients(cell, seed), strict=False):
            by_domain.setdefault(name, []).append(float(value))
    title = words.quantity(facts.metric, over="")
    boxes = figures.boxes({k: np.array(v) for k, v in by_domain.items()}, title, words.percent(facts.metric))
    if len(by_domain) > 1 and boxes is not None:
        section.drawn["domains"] = boxes, f"Clients of {cell.label} by their domain, all seeds."
    return section


def honest(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How much would the papers' habits of reporting add?"""
    habits = facts.habits(facts.notable(SHOWN))
    order = [rule for rule in (*CHOICES, *HABITS) if rule in habits]
    if habits.empty or len(order) < 2:
        return None
    added = (habits["best_test"] - habits[facts.rule]).mean() if {"best_test", facts.rule} <= set(habits) else np.nan
    names = {"final": "last round", "best_val": "best validation round", "best_test": "best test round (habit)",
             "mean_last5": "mean of last five (habit)"}  # fmt: skip
    text = (
        "The first two rules read validation figures only. The other two are the papers' habits, shown for comparison"
        + (
            f": picking the best test round would add {words.signed(added, facts.metric)} points on average."
            if added == added
            else "."
        )
    )
    rows = [
        [label, *(words.figure(float(habits.loc[label, rule]), facts.metric) for rule in order)]
        for label in habits.index
    ]
    table = plain_table(["cell", *(names.get(rule, rule) for rule in order)], rows)  # type: ignore[arg-type]
    return Section("rules", "Reporting rules", [text], tables=[table])


def paper(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What does the paper print?"""
    block = beside(facts)
    if block is None:
        return None
    section = Section("paper", f"Beside the paper{': ' + block.source if block.source else ''}")
    if block.expected:
        section.texts.append(f"Expected: {block.expected}")
    if block.rows and not any(row.comparable for row in block.rows):
        section.texts.append(
            "Ours ran on other data or another backbone than the paper's, so no gap is given: compare order and trend."
        )
    if block.order == block.order:
        section.texts.append(f"Kendall's rank correlation of ours with the printed figures: {block.order:+.2f}.")
    section.texts += [f"Known reason for a gap: {defect}" for defect in block.defects]
    rows = [
        [r.label, words.points(r.ours, r.spread), r.method, r.dataset,
         words.points(r.mean, r.std), words.points(r.gap)]
        for r in block.rows
    ]  # fmt: skip
    if rows:
        section.tables.append(plain_table(["cell", "ours (%)", "printed as", "on", "printed (%)", "gap"], rows))
    return section


def tuned(facts: Facts, tests: pd.DataFrame) -> Section:
    """What was varied, what was searched, and with which budget?"""
    rows = [[axis, ", ".join(dict.fromkeys(shown(v) for v in facts.table[axis] if v is not None and v == v))]
            for axis in facts.axes]  # fmt: skip
    rows = [[name, values if len(values) < 160 else f"{values[:157]}…"] for name, values in rows]
    search = facts.spec.search
    total = float(np.nansum(facts.table["seconds"] * facts.table["n"]))
    texts = [f"{len(facts.own)} cells × {len(facts.spec.seed_list())} seeds, and {len(facts.references)} references; "
             f"{words.duration(total)} of training in all."]  # fmt: skip
    if search.sampler:
        budget = f"{search.trials} trials" if search.seconds is None else f"{search.seconds:g} s"
        texts.append(
            f"Searched with {search.sampler}, {budget} for each cell of the axes, on {', '.join(search.objectives)}."
        )
    return Section("tuned", "What varied", texts, tables=[plain_table(["field", "values"], rows)] if rows else [])


def reproduce(facts: Facts, tests: pd.DataFrame) -> Section:
    """With what, and how again?"""
    prints = facts.store.fingerprints(facts.cells[0]) if facts.cells else {}
    versions = dict(prints.get("versions", {}))
    for name in ("fpl-tune", "torch", "numpy", "scipy", "ray", "mlflow"):
        try:
            versions.setdefault(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    hashes = {str(r.get("split_hash")) for c in facts.cells for s in facts.seeds(c) if (r := facts.store.result(c, s))}
    texts = [
        f"{platform.system()} {platform.machine()}, " + ", ".join(f"{n} {v}" for n, v in versions.items()),
        "Partitions: " + (", ".join(sorted(hashes)[:12]) + (" …" if len(hashes) > 12 else "") or "none yet"),
    ]
    path = f"{facts.store.root.name}/{facts.store.name}/study.yaml"
    code = f"# exactly as it was resolved:\nfpl-tune study {path}"
    return Section("reproduce", "Environment and reproduction", texts, code=[code])


SECTIONS: tuple[Callable[[Facts, pd.DataFrame], Section | None], ...] = (
    curve, main_table, learning, pairs, matters, costs, clients, diagnoses, domains, honest, paper, tuned, reproduce,
)  # fmt: skip
"""In the order of the page."""
