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
from fpl_tune.formatting import counted, listed
from fpl_tune.report import charts, figures, tables, words
from fpl_tune.report.ablation import ablation
from fpl_tune.report.blocks import Section, Table, Td, plain_table
from fpl_tune.report.claims import claims
from fpl_tune.report.decisions import choice, datasets, decisions, variation
from fpl_tune.report.facts import Facts
from fpl_tune.report.paper import beside
from fpl_tune.report.searches import matters, pairs, winners
from fpl_tune.search.components import label_of
from fpl_tune.study.cells import shown
from fpl_tune.study.partition import Shares, shares

PARTITIONS = 5
"""Partitions drawn; seeds beyond are counted."""

_FIELDS = 10
"""Fields along which all cells are drawn."""

SHOWN = 8
"""Cells drawn at once; of more, those with the highest validation accuracy."""


def curve(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How does the metric depend on what varies?"""
    axes = [a for a in facts.axes if facts.table.loc[[c.id for c in facts.own], a].notna().any()]
    finished = facts.table.loc[[c.id for c in facts.own], "n"].gt(0).sum()
    if not axes or finished < 2:
        return None
    named = facts.spec.report.x
    numbers = [a for a in axes if words.numeric(facts.table[a])]
    x = named if named in axes else (numbers or axes)[0]
    many = len(facts.axes) > 2 or any(cell.role == "trial" for cell in facts.own)
    section = Section("curve", "Along each field" if many else f"Along {words.axis_name(x)}")
    if many:
        for axis in axes[:_FIELDS]:
            section.drawn[f"slice_{words.short(axis)}"] = (
                figures.slices(facts, axis),
                f"By {axis}, one point per cell, {facts.basis}; ringed: best by validation.",
            )
        return section
    spread = "band" if words.numeric(facts.table[x].dropna()) else "bar"
    caption = (
        f"Mean over seeds ({facts.basis}); a {spread} is their standard deviation. References are lines with bands."
    )
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
    which = "references, and the cells that validation puts first" if len(facts.cells) > len(cells) else "all cells"
    section = Section("learning", "Learning curves")
    for name, metric in {"learning_validation": "val/acc_mean", "learning": facts.metric}.items():
        caption = f"{words.quantity(metric)}: mean over seeds and their standard deviation; {which}."
        section.drawn[name] = figures.learning_curves(facts, cells, metric), caption
    for group, names in itertools.groupby(sorted(facts.extra), key=lambda name: name.partition("/")[0]):
        whole, parts = [], []
        for name in names:
            (whole if name.count("/") == 1 else parts).append(name)
        for name in whole:
            if all(facts.curve(cell, name).empty for cell in cells):
                continue
            caption = f"{words.quantity(name)}: mean over seeds and their standard deviation; {which}."
            section.drawn[f"learning_{name.replace('/', '_')}"] = figures.learning_curves(facts, cells, name), caption
        ranked = [*([facts.best] if facts.best else []), *cells]
        cell = next((c for c in ranked if parts and not facts.curve(c, parts[0]).empty), None)
        if cell is not None:
            caption = f"{facts.name(cell)}, {group} by part: mean over seeds and their standard deviation."
            section.drawn[f"learning_{group}_parts"] = figures.part_curves(facts, cell, parts), caption
    return section


def costs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What does accuracy cost in bytes?"""
    table = facts.table.dropna(subset=["mean", "bytes"])
    if table["bytes"].nunique() < 2:
        return None
    caption = (
        f"Bytes up and down of all clients over the whole run. Bars: standard deviation over seeds; {facts.basis}. "
        "The front is of the figures shown, and chooses nothing."
    )
    return Section("pareto", "Accuracy against bytes", drawn={"pareto": (charts.pareto(facts), caption)})


def clients(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Who gains, who loses?"""
    drawn = charts.client_boxes(facts, facts.notable(SHOWN))
    if drawn is None:
        return None
    caption = f"One point per client and seed; box: quartiles, line: median, whiskers: extremes. {facts.basis}."
    return Section("clients", "Clients", drawn={"clients": (drawn, caption)})


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
        what, spread = name.removeprefix("diagnosis/"), values.std(0, ddof=1) if len(values) > 1 else None
        share = np.allclose(values.sum(1), 100, atol=0.5)
        drawn = charts.bars(
            [str(1 + i) for i in range(values.shape[1])], values.mean(0).tolist(), f"{what} (%)",
            spread=None if spread is None else spread.tolist(), equal=100 / values.shape[1] if share else 0.0,
        )  # fmt: skip
        caption = (
            f"{facts.name(cell)}: {what}; validation images, last round, mean over clients, "
            f"n = {counted(len(values), 'seed')}"
        )
        section.drawn[f"diagnosis_{number}"] = drawn, f"{caption}; whiskers: standard deviation over seeds."
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
    by_domain: dict[str, list[float]] = {}
    for seed in seeds:
        for name, value in zip(drawn[seed].domains, facts.clients(cell, seed), strict=False):
            by_domain.setdefault(name, []).append(float(value))
    title = words.quantity(facts.metric, over="")
    boxes = charts.boxes({k: np.array(v) for k, v in by_domain.items()}, title, words.percent(facts.metric))
    if len(by_domain) > 1 and boxes is not None:
        section.drawn["domains"] = boxes, f"Clients of {facts.name(cell)} by their domain, all seeds; {facts.basis}."
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
        file = "partition" if len(section.drawn) == 0 else f"partition_seed{seeds[0]}"
        section.drawn[file] = charts.partition(drawn[seeds[0]]), caption
        if len(alike) > 1:
            section.folds[file] = {"name": which, "open": len(section.drawn) == 1}
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
        value = partial(words.points, digits=3 if part.unit in ("M", "s") else 2)
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
             f"{words.duration(total)} of training in all."]  # fmt: skip
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
    winners, ablation, decisions, claims, curve, main_table, datasets, learning, pairs, matters, variation, choice,
    costs, clients, diagnoses, domains, honest, paper, tuned, reproduce,
)  # fmt: skip
"""In the order of the page."""
