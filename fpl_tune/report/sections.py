"""The sections of the report page: each answers one question an ablation is run for, or is left out."""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from fpl_tune.errors import FplTuneError
from fpl_tune.evaluate import CHOICES, HABITS
from fpl_tune.formatting import (
    axis_name,
    counted,
    duration,
    figure,
    listed,
    megabytes,
    numeric,
    plus_minus,
    points,
    quantity,
    short,
    signed,
)
from fpl_tune.report import charts, figures, tables
from fpl_tune.report.ablation import ablation
from fpl_tune.report.blocks import Section, Table, Td, plain_table
from fpl_tune.report.claims import claims
from fpl_tune.report.decisions import choice, datasets, decisions, neighbours, variation
from fpl_tune.report.facts import Facts
from fpl_tune.report.paper import beside
from fpl_tune.report.searches import matters, pairs, winners
from fpl_tune.search.components import label_of
from fpl_tune.study.cells import shown
from fpl_tune.study.partition import Shares, shares
from fpl_tune.study.results import VAL

PARTITIONS = 5
"""Partitions drawn; seeds beyond are counted."""

_FIELDS = 10
"""Fields along which all cells are drawn."""

_UNIFORM = 0.05
"""Largest deviation of a share from equal shares, relative to them, that counts as equal."""

SHOWN = 8
"""Cells drawn at once; of more, those with the highest validation accuracy."""


def curve(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How does accuracy depend on what varies? Validation first, since it chooses."""
    axes = [a for a in facts.axes if facts.table.loc[[c.id for c in facts.own], a].notna().any()]
    finished = facts.table.loc[[c.id for c in facts.own], "n"].gt(0).sum()
    if not axes or finished < 2:
        return None
    numbers = [a for a in axes if numeric(facts.table[a])]
    x = facts.spec.report.x if facts.spec.report.x in axes else (numbers or axes)[0]
    if len(facts.axes) > 2 or facts.searched:
        section = Section("curve", "Along each field", ["One point per cell; the ring marks the best on validation."])
        for axis in axes[:_FIELDS]:
            section.charts[f"slice_{short(axis)}"] = (
                figures.slices(facts, axis),
                f"By {axis}; {facts.basis}.",
            )
        return section
    section = Section("curve", f"Along {axis_name(x)}")
    spread = f"bands and bars are the standard deviation over seeds; {facts.basis}"
    for name, metric in {"curve_validation": VAL, "curve": facts.metric}.items():
        what = "by which the best cell (ringed) is chosen" if metric == VAL else "reported after the choice"
        caption = f"{quantity(metric, unit=False)}, {what}; {spread}. References are dashed."
        section.charts[name] = figures.sweep(facts, x, metric), caption
    return section


def explore(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which combinations of values are good?"""
    if len(facts.axes) < 2 or len(facts.own) < 4:
        return None
    text = "Draw a rectangle over an axis: the table and all charts of cells keep the lines that pass through it."
    section = Section("explore", "All fields at once", [text])
    section.charts["parallel"] = figures.parallel(facts), "One line per cell, coloured by validation accuracy."
    return section


def history(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How did the search progress?"""
    if not facts.searched:
        return None
    caption = f"One point per trial, in the order of their numbers; the line is the best so far. {facts.basis}."
    return Section("history", "Optimisation history", charts={"history": (figures.history(facts), caption)})


def main_table(facts: Facts, tests: pd.DataFrame) -> Section:
    """Which cell is best, and is it better than the reference?"""
    body = tables.rows(facts, tests)
    rows = []
    for row in body:
        keys = [("" if isinstance(k, float) and np.isnan(k) else k) for k in row.sort]
        kind = "best" if row.best else "reference" if row.reference else ""
        cells = [Td(t, k) for t, k in zip(row.cells, keys, strict=True)]
        rows.append({"kind": kind, "number": row.number, "cells": cells})
    return Section(
        "table", "All cells", [tables.note(facts)], tables=[Table(tables.header(facts), rows, sortable=True)]
    )


def learning(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How fast is it learned?"""
    cells = facts.notable(SHOWN)
    if not cells:
        return None
    which = "references, and the cells that validation puts first" if len(facts.cells) > len(cells) else "all cells"
    section = Section("learning", "Learning curves", [f"Mean over seeds and their standard deviation; {which}."])
    whole = [name for name in facts.extra if name.count("/") == 1]
    for name in dict.fromkeys([VAL, facts.metric, *whole]):
        curves = [(facts.name(cell), facts.keys[cell.id], facts.curve(cell, name)) for cell in cells]
        if not all(curve.empty for _, _, curve in curves):
            file = {VAL: "learning_validation", facts.metric: "learning"}.get(
                name, f"learning_{name.replace('/', '_')}"
            )
            section.charts[file] = figures.by_round(curves, name), f"{quantity(name, unit=False)}."
    parts = sorted(set(facts.extra) - set(whole))
    ranked = [*([facts.best] if facts.best else []), *cells]
    for group, found in itertools.groupby(parts, key=lambda name: name.partition("/")[0]):
        names = list(found)
        cell = next((c for c in ranked if not facts.curve(c, names[0]).empty), None)
        if cell is not None:
            curves = [(name.split("/")[-2], -1, facts.curve(cell, name)) for name in names]
            metric = f"{group}/{names[0].rpartition('/')[2]}"
            caption = f"{facts.name(cell)}, {group} by part."
            section.charts[f"learning_{group}_parts"] = figures.by_round(curves, metric), caption
    return section


def costs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What does accuracy cost in bytes?"""
    table = facts.table.dropna(subset=["val", "mean", "bytes"])
    if table["bytes"].nunique() < 2:
        return None
    front = [str(table.index[i]) for i in charts.pareto_front(table["bytes"].tolist(), table["val"].tolist())]
    caption = (
        "Bytes up and down of all clients over the whole run. The line is the Pareto set: no cheaper cell has a higher "
        f"validation accuracy. {facts.basis}."
    )
    by_id = {cell.id: cell for cell in facts.cells}
    rows = [
        [facts.name(by_id[key]), megabytes(row["bytes"]), figure(row["val"], VAL),
         plus_minus(row["mean"], row["std"], facts.metric)]
        for key, row in table.loc[front].to_dict("index").items()
    ]  # fmt: skip
    header = ["Pareto set", "MB", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std"]
    return Section("pareto", "Accuracy against bytes", charts={"pareto": (figures.pareto(facts, front), caption)},
                   tables=[plain_table(header, rows)])  # fmt: skip


def clients(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Who gains, who loses?"""
    drawn = figures.clients(facts, facts.notable(SHOWN))
    if drawn is None:
        return None
    caption = f"One point per client and seed; box: quartiles, line: median, whiskers: extremes. {facts.basis}."
    return Section("clients", "Clients", charts={"clients": (drawn, caption)})


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
        values = 100 * np.array([record[name] for record in last if name in record])
        what, mean = name.removeprefix("diagnosis/"), values.mean(0)
        rows = [{"name": str(1 + i), "value": value} for i, value in enumerate(mean)]
        if len(values) > 1:
            for row, std in zip(rows, values.std(0, ddof=1), strict=True):
                row |= {"low": row["value"] - std, "high": row["value"] + std}
        equal = 100 / len(rows) if np.allclose(values.sum(1), 100, atol=0.5) else 0.0
        if equal and float(np.abs(mean - equal).max()) < _UNIFORM * equal:
            section.texts.append(f"{what}: {facts.name(cell)} uses all {len(rows)} equally ({equal:.1f} % each).")
        drawn = charts.bars(rows, f"{what} (%)", equal=equal)
        caption = (
            f"{facts.name(cell)}: {what}; validation images, last round, mean over clients, "
            f"n = {counted(len(values), 'seed')}"
        )
        section.charts[f"diagnosis_{number}"] = drawn, f"{caption}; whiskers: standard deviation over seeds."
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
    section = Section("partition", "Partition")
    _pictures(section, facts.name(cell), drawn)
    names = dict.fromkeys(name for held in drawn.values() for name in held.domains)
    by_domain = {
        name: {seed: facts.clients(cell, seed)[np.array(drawn[seed].domains) == name] for seed in seeds}
        for name in names
        if all(len(facts.clients(cell, seed)) == len(drawn[seed].domains) for seed in seeds)
    }
    boxes = figures.boxes(by_domain, facts.metric)
    if len(by_domain) > 1 and boxes is not None:
        section.charts["domains"] = boxes, f"Clients of {facts.name(cell)} by their domain, all seeds; {facts.basis}."
    return section


def _pictures(section: Section, name: str, drawn: dict[int, Shares]) -> None:
    """A picture for every different partition, the first one open; seeds that differ in images alone share one."""
    alike: dict[bytes, list[int]] = {}
    for seed, held in drawn.items():
        alike.setdefault(held.counts.tobytes() + "".join(held.domains).encode(), []).append(seed)
    for seeds in list(alike.values())[:PARTITIONS]:
        which = listed("seed", seeds)
        held = drawn[seeds[0]].counts
        caption = (
            f"{name}, {which}: {counted(held.sum(), 'training image')} of {counted(len(held), 'client')}; "
            "the area of a disc is their number"
            f"{', the same in these seeds, drawn anew in each' if len(seeds) > 1 else ''}."
        )
        file = "partition" if not section.charts else f"partition_seed{seeds[0]}"
        section.charts[file] = figures.partition(drawn[seeds[0]]), caption
        if len(alike) > 1:
            section.folds[file] = {"name": which, "open": len(section.charts) == 1}
    if len(alike) > PARTITIONS:
        section.texts.append(f"The first {PARTITIONS} of {len(alike)} partitions are drawn.")


def honest(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How much would the papers' habits of reporting add?"""
    habits = facts.habits(facts.notable(SHOWN))
    order = [rule for rule in (*CHOICES, *HABITS) if rule in habits]
    if habits.empty or len(order) < 2:
        return None
    added = (habits["best_test"] - habits[facts.rule]).mean() if {"best_test", facts.rule} <= set(habits) else np.nan
    names = {"final": "last round", "best_val": "best validation round", "best_test": "best test round (habit)",
             "mean_last5": "mean of last five evaluated rounds (habit)"}  # fmt: skip
    text = (
        "The first two rules read validation figures only. The other two are the papers' habits, shown for comparison"
        + (
            f": picking the best test round would add {signed(added, facts.metric)} points on average."
            if added == added
            else "."
        )
    )
    rows = [
        [label, *(figure(float(habits.loc[label, rule]), facts.metric) for rule in order)] for label in habits.index
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
    if block.parts and not any(row.comparable for part in block.parts for row in part.rows):
        timed = all(part.unit == "s" for part in block.parts)
        where = "on another machine" if timed else "on other data or another backbone"
        section.texts.append(f"Ours ran {where} than the paper's, so no gap is given: compare order and trend.")
    section.texts += block.notes
    for part in block.parts:
        if part.order == part.order:
            section.texts.append(
                f"Kendall's rank correlation with the printed figures, {part.name}: {part.order:+.2f}."
            )
        ours, printed = (f"{whose} ({part.unit})" if part.unit else whose for whose in ("ours", "printed"))
        value = partial(points, digits=3 if part.unit in ("M", "s") else 2)
        rows = [
            [
                r.label,
                value(r.ours, r.spread if r.spread else np.nan),
                r.method,
                r.dataset,
                value(r.mean, r.std),
                value(r.gap),
            ]
            for r in part.rows
        ]
        section.tables.append(plain_table([part.name, ours, "printed as", "on", printed, "gap"], rows))
    section.texts += [f"Known reason for a gap: {defect}" for defect in block.defects]
    return section


def tuned(facts: Facts, tests: pd.DataFrame) -> Section:
    """What was varied, what was searched, and with which budget?"""
    rows = [[axis, ", ".join(dict.fromkeys(shown(v) for v in facts.table[axis] if v is not None and v == v))]
            for axis in facts.axes]  # fmt: skip
    rows = [[name, values if len(values) < 160 else f"{values[:157]}…"] for name, values in rows]
    search = facts.spec.search
    total = float(np.nansum(facts.table["seconds"] * facts.table["n"]))
    texts = [f"{counted(len(facts.own), 'cell')} × {counted(len(facts.spec.seed_list()), 'seed')}, "
             f"and {counted(len(facts.references), 'reference')}; "
             f"{duration(total)} of training in all."]  # fmt: skip
    if search.sampler:
        budget = counted(search.trials, "trial") if search.seconds is None else f"{search.seconds:g} s"
        texts.append(
            f"Searched with {label_of(search.sampler)}, {budget} for each cell of the axes, "
            f"on {', '.join(search.objectives)}."
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
    winners, ablation, decisions, neighbours, claims, curve, main_table, explore, history, datasets, learning, pairs,
    matters, variation, choice, costs, clients, diagnoses, domains, honest, paper, tuned, reproduce,
)  # fmt: skip
"""In the order of the page."""
