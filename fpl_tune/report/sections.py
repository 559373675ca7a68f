"""The sections of the report page: each answers one question an ablation is run for, or is left out."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable

import numpy as np
import pandas as pd

from fpl_tune.core.formatting import (
    axis_name,
    counted,
    duration,
    figure,
    megabytes,
    numeric,
    plus_minus,
    quantity,
    short,
    signed,
    upper,
)
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES
from fpl_tune.report import charts, figures, tables
from fpl_tune.report.blocks import Section, plain_table
from fpl_tune.report.decisions import choice, claims, datasets, decisions, variation
from fpl_tune.report.facts import Facts
from fpl_tune.report.paper import paper
from fpl_tune.report.searches import ablation, matters, pairs, winners
from fpl_tune.report.trained import SHOWN, clients, diagnoses, domains, learning
from fpl_tune.search.components import label_of
from fpl_tune.study.cells import shown
from fpl_tune.study.results import VAL
from fpl_tune.study.selection import setting_of

_FIELDS = 10
"""Fields along which all cells are drawn."""


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
            section.charts[f"slice_{short(axis)}"] = figures.slices(facts, axis), f"By {axis}; {facts.basis}."
        return section
    section = Section("curve", f"Along {axis_name(x)}")
    spread = f"bands and bars are the standard deviation over seeds; {facts.basis}"
    for name, metric in {"curve_validation": VAL, "curve": facts.metric}.items():
        what = "by which the best cell (ringed) is chosen" if metric == VAL else "reported after the choice"
        dashed = " References are dashed." if facts.references else ""
        caption = f"{upper(quantity(metric, unit=False))}, {what}; {spread}.{dashed}"
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
    return Section("table", "All cells", [tables.note(facts)], tables=[tables.main(facts, tests)])


def costs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What does accuracy cost in bytes?"""
    table = facts.table.dropna(subset=["val", "mean", "bytes"])
    if table["bytes"].nunique() < 2:
        return None
    settings = [setting_of(facts.by_id[str(key)], facts.gridded) for key in table.index]
    groups = [part for _, part in table.groupby(settings, sort=False)]
    fronts = [[str(part.index[i]) for i in charts.pareto_front(part["bytes"].tolist(), part["val"].tolist())]
              for part in groups]  # fmt: skip
    of = " of cells with the same data, partition and protocol" if len(groups) > 1 else ""
    caption = (
        f"Bytes up and down of all clients over the whole run. A line is a Pareto set{of}: none that is cheaper has a "
        f"higher validation accuracy. {facts.basis}."
    )
    rows = [
        [facts.name(facts.by_id[key]), megabytes(row["bytes"]), figure(row["val"], VAL),
         plus_minus(row["mean"], row["std"], facts.metric)]
        for front in fronts for key, row in table.loc[front].to_dict("index").items()
    ]  # fmt: skip
    header = ["Pareto set", "MB", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std"]
    return Section("pareto", "Accuracy against bytes", charts={"pareto": (figures.pareto(facts, fronts), caption)},
                   tables=[plain_table(header, rows)])  # fmt: skip


def honest(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How much would the papers' habits of reporting add?"""
    habits = facts.habits(facts.notable(SHOWN))
    order = [rule for rule in (*CHOICES, *TEST_SELECTED_RULES) if rule in habits]
    if habits.empty or len(order) < 2:
        return None
    added = (habits["best_test"] - habits[facts.rule]).mean() if {"best_test", facts.rule} <= set(habits) else np.nan
    names = {"final": "last round", "best_val": "best validation round", "best_test": "best test round (habit)",
             "mean_last5": "mean of last five evaluated rounds (habit)"}  # fmt: skip
    gain = f": picking the best test round would add {signed(added, facts.metric)} points on average"
    text = (
        "The first two rules read validation figures only. The other two are the papers' habits, shown for comparison"
        f"{gain if added == added else ''}."
    )
    rows = [
        [label, *(figure(float(habits.loc[label, rule]), facts.metric) for rule in order)] for label in habits.index
    ]
    table = plain_table(["cell", *(names.get(rule, rule) for rule in order)], rows)  # type: ignore[arg-type]
    return Section("rules", "Reporting rules", [text], tables=[table])


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
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.setdefault(name, importlib.metadata.version(name))
    hashes = {str(result.get("split_hash")) for result in facts.results()}
    texts = [
        f"{platform.system()} {platform.machine()}, " + ", ".join(f"{n} {v}" for n, v in versions.items()),
        "Partitions: " + (", ".join(sorted(hashes)[:12]) + (" …" if len(hashes) > 12 else "") or "none yet"),
    ]
    path = f"{facts.store.root.name}/{facts.store.name}/study.yaml"
    code = f"# exactly as it was resolved:\nfpl-tune study {path}"
    return Section("reproduce", "Environment and reproduction", texts, code=[code])


SECTIONS: tuple[Callable[[Facts, pd.DataFrame], Section | None], ...] = (
    winners, ablation, decisions, claims, curve, main_table, explore, history, datasets, learning, pairs,
    matters, variation, choice, costs, clients, diagnoses, domains, honest, paper, tuned, reproduce,
)  # fmt: skip
"""In the order of the page."""
