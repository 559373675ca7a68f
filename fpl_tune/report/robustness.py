"""The fourth section: what the choice is worth, what varies, clients, what models rely on, reporting rules."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.formatting import counted, figure, percent, quantity, signed, upper
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part, plain_table
from fpl_tune.report.curves import SHOWN
from fpl_tune.report.facts import Facts
from fpl_tune.study.results import VAL

_UNIFORM = 0.05
"""Largest deviation of a share from equal shares, relative to them, that counts as equal."""


def choice(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """What is the choice of the best cell worth after the choice itself?"""
    if facts.best is None or not percent(facts.metric) or len(facts.chosen) > 1:
        return None
    own = [cell.id for cell in facts.own]
    val, test = (frame.loc[frame["cell"].isin(own)] for frame in map(facts.long, (VAL, facts.metric)))
    try:
        found = analysis.overtuning(val, test)
    except ValueError as problem:
        return Part("What the choice is worth", [str(problem)])
    if found.cells < 2:
        return None
    winner, best = (facts.name(facts.by_id[key]) for key in (found.winner, found.best))
    rows = [
        ["cell that validation selects", winner, figure(found.test, facts.metric)],
        ["the same, corrected for selection", "nested over seeds", figure(found.corrected, facts.metric)],
        ["highest test mean, which nobody may select", best, figure(found.test + found.loss, facts.metric)],
    ]
    texts = [
        f"Selection among {counted(found.cells, 'cell')} by validation loses "
        f"{100 * found.loss:.2f} points of {quantity(facts.metric)} against the cell that the same test values "
        f"put first, which noise flatters.",
        "Corrected: for every seed, the cell that the other seeds' validation selects is tested on that seed.",
    ]
    texts += [f"Limits: {found.note}."] if found.note else []
    table = plain_table(["", "", quantity(facts.metric, over="")], rows)
    return Part("What the choice is worth", texts, tables=[table])


def variation(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """What varies more: the seed, the partition, the clients or the hyper-parameters?"""
    if not percent(facts.metric) or len(facts.own) < 2:
        return None
    own = facts.values["cell"].isin([cell.id for cell in facts.own])
    split = analysis.variance_split(facts.values.loc[own])
    note = split.attrs["note"]
    known = split.dropna()
    if known.empty:
        return None
    bars = [{"name": str(name), "value": 100 * sd} for name, sd in known["sd"].items()]
    drawn = charts.bars(bars, "standard deviation (points)")
    caption = f"{upper(quantity(facts.metric, over=''))}, method of moments over cells, seeds and clients"
    text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in known["share"].items())
    texts = [f"Shares of the variance: {text}.", *([f"Limits: {note}."] if note else [])]
    return Part("Sources of variation", texts, {"variation": (drawn, f"{caption}.")})


def clients(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Who gains, who loses?"""
    values = {
        facts.name(cell): {seed: facts.clients(cell, seed) for seed in facts.seeds(cell)}
        for cell in facts.notable(SHOWN)
    }
    drawn = charts.boxes(values, facts.metric)
    if drawn is None:
        return None
    caption = f"One point per client and seed; box: quartiles, line: median, whiskers: extremes. {facts.basis}."
    return Part("Clients", charts={"clients": (drawn, caption)})


def diagnoses(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """What do the models of the best cell rely on?"""
    cell = facts.best
    if cell is None:
        return None
    last = [facts.store.history(cell, seed)[-1] for seed in facts.seeds(cell)]
    names = sorted({name for record in last for name in record if name.startswith("diagnosis/")})
    if not names:
        return None
    part = Part("What the models rely on")
    for number, name in enumerate(names):
        values = 100 * np.array([record[name] for record in last if name in record])
        what, mean = name.removeprefix("diagnosis/"), values.mean(0)
        rows = [{"name": str(1 + i), "value": value} for i, value in enumerate(mean)]
        if len(values) > 1:
            for row, std in zip(rows, values.std(0, ddof=1), strict=True):
                row |= {"low": row["value"] - std, "high": row["value"] + std}
        equal = 100 / len(rows) if np.allclose(values.sum(1), 100, atol=0.5) else 0.0
        if equal and float(np.abs(mean - equal).max()) < _UNIFORM * equal:
            part.texts.append(f"{what}: {facts.name(cell)} uses all {len(rows)} equally ({equal:.1f} % each).")
            continue
        caption = (
            f"{facts.name(cell)}: {what}; validation images, last round, mean over clients, "
            f"n = {counted(len(values), 'seed')}; whiskers: standard deviation over seeds."
        )
        part.charts[f"diagnosis_{number}"] = charts.bars(rows, f"{what} (%)", equal=equal), caption
    return part


def rules(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How much would the papers' ways of reporting add?"""
    found = facts.rules(facts.notable(SHOWN))
    order = [rule for rule in (*CHOICES, *TEST_SELECTED_RULES) if rule in found]
    if found.empty or len(order) < 2:
        return None
    added = (found["best_test"] - found[facts.rule]).mean() if {"best_test", facts.rule} <= set(found) else np.nan
    gain = f": picking the best test round would add {signed(added, facts.metric)} points on average"
    text = (
        "The first two rules read validation accuracies only. The other two are habits of papers, shown for comparison"
        f"{gain if added == added else ''}."
    )
    named = {"final": "last round", "best_val": "best validation round", "best_test": "best test round (habit)",
             "mean_last5": "mean of last five evaluated rounds (habit)"}  # fmt: skip
    rows = [[str(cell), *(figure(float(found.loc[cell, rule]), facts.metric) for rule in order)]
            for cell in found.index]  # type: ignore[arg-type]  # fmt: skip
    return Part("Reporting rules", [text], tables=[plain_table(["cell", *(named[rule] for rule in order)], rows)])
