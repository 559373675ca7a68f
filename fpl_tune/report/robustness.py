"""The fourth section: what the choice is worth, clients, what models rely on, reporting rules."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.formatting import counted, figure, percent, quantity, signed
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part, plain_table
from fpl_tune.report.curves import SHOWN
from fpl_tune.report.facts import Facts
from fpl_tune.study import results
from fpl_tune.study.results import VAL


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
    left = f" Left out: {counted(found.left_out, 'cell')} without all seeds." if found.left_out else ""
    texts = [
        f"Selection among {counted(found.cells, 'cell')} by validation loses {100 * found.loss:.2f} points of "
        f"{quantity(facts.metric)} against the cell that the same test values put first, which noise flatters. "
        f"Corrected: for every seed, the cell that the other seeds' validation selects is tested on that seed.{left}",
    ]
    table = plain_table(["", "", quantity(facts.metric, over="")], rows)
    return Part("What the choice is worth", texts, tables=[table])


def clients(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Who gains, who loses?"""
    drawn = charts.boxes(facts, facts.notable(SHOWN))
    if drawn is None:
        return None
    caption = f"One point per client and seed; box: quartiles, line: median, whiskers: extremes. {facts.basis}."
    return Part("Clients", charts={"clients": (drawn, caption)})


def diagnoses(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """What do the models of the best cell rely on?"""
    cell, part = facts.best, Part("What the models rely on")
    last = [facts.store.history(cell, seed)[-1] for seed in facts.seeds(cell)] if cell is not None else []
    for name in sorted({name for record in last for name in record if name.startswith("diagnosis/")}):
        values = 100 * np.array([record[name] for record in last if name in record])
        mean, std = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        rows = [{"name": str(i + 1), "value": v, "low": v - std[i], "high": v + std[i]} for i, v in enumerate(mean)]
        what = name.removeprefix("diagnosis/")
        caption = (
            f"{what}; validation images, last round, mean over clients, n = {counted(len(values), 'seed')}; whiskers: "
            "standard deviation over seeds."
        )
        part.charts[name.replace("/", "_")] = charts.bars(rows, f"{what} (%)"), caption
    return part if part.charts else None


def rules(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How much would the papers' ways of reporting add?"""
    ended = results.counted(facts.frame)
    found = ended.pivot_table(index="cell", columns="rule", values=facts.metric, aggfunc="mean", sort=False)
    order = [rule for rule in (*CHOICES, *TEST_SELECTED_RULES) if rule in found]
    if found.empty or len(order) < 2:
        return None
    gain = ""
    if {"best_test", facts.rule} <= set(found):
        added = (found["best_test"] - found[facts.rule]).mean()
        gain = f": picking the best test round would add {signed(added, facts.metric)} points on average"
    text = f"The last two rules read test accuracies; they are habits of papers, shown for comparison{gain}."
    named = {"final": "last round", "best_val": "best validation round", "best_test": "best test round (habit)",
             "mean_last5": "mean of last five evaluated rounds (habit)"}  # fmt: skip
    rows = [[facts.name(cell), *(figure(found.at[cell.id, rule], facts.metric) for rule in order)]
            for cell in facts.notable(SHOWN)]  # fmt: skip
    return Part("Reporting rules", [text], tables=[plain_table(["cell", *(named[rule] for rule in order)], rows)])
