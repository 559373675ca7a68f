"""Sections of a report on what was searched: who won each search, pairs of fields, and which fields matter."""

from __future__ import annotations

import itertools

import pandas as pd

from fpl_tune.formatting import counted, figure, numeric, plus_minus, quantity, short, signed
from fpl_tune.report import charts, figures
from fpl_tune.report.blocks import Section, plain_table
from fpl_tune.report.facts import Facts
from fpl_tune.report.importance import dependences, importance
from fpl_tune.report.importance import pairs as field_pairs
from fpl_tune.search.gains import gains
from fpl_tune.study.cells import Cell, label, shown
from fpl_tune.study.selection import choose


def winners(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """So tuned, how do the parts of the axes compare?"""
    parts: dict[str, list[Cell]] = {}
    for cell in facts.listed:
        if cell.role == "trial" and facts.table.loc[cell.id, "status"] == "done":
            parts.setdefault(facts.part(cell), []).append(cell)
    if len(parts) < 2:
        return None
    rows = []
    gained = {gain.best.id: gain for gain in gains(facts.store, facts.rule, facts.metric)}
    for part, cells in parts.items():
        choice = choose(facts.frame, cells, facts.spec, facts.rule)
        if choice is None:
            continue
        cell = choice.cell
        row = facts.table.loc[cell.id]
        test = signed(tests.loc[cell.id, "difference"], facts.metric) if cell.id in tests.index else "–"
        searched = label({name: value for name, value in cell.varied.items() if name not in facts.gridded})
        mean = plus_minus(row["mean"], row["std"], facts.metric)
        gain = gained.get(cell.id)
        over = signed(gain.gain, facts.metric) if gain and gain.published else "–"
        rows.append([part, figure(row["val"], "val/acc_mean"), mean, test, over, str(len(cells)), searched])
    text = (
        f"The best trial of each part of the axes by validation accuracy; {facts.basis}. The published point is the "
        "best one by validation of those that the search tried first."
    )
    header = ["", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std",
              f"Δ vs {facts.reference}", "Δ vs published", "trials", "found"]  # fmt: skip
    return Section("winners", "Best of each search", [text], tables=[plain_table(header, rows)])


def pairs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How do two axes act together?"""
    if len(facts.axes) < 2:
        return None
    taken = {axis: [v for v in dict.fromkeys(map(shown, facts.table[axis].dropna()))] for axis in facts.axes}
    fitting = [axis for axis in facts.axes if 1 < len(taken[axis]) <= 40]
    fitting.sort(key=lambda axis: not numeric(facts.table[axis]))
    numbers = next((pair for pair in itertools.combinations(fitting, 2) if _together(facts, *pair)), None)
    if numbers is None:
        return None
    rows, columns = sorted(numbers, key=lambda axis: len(taken[axis]))
    split = next((axis for axis in facts.axes if axis not in numbers and 1 < len(taken[axis]) <= 4), None)
    over = len(facts.axes) - 2 - (split is not None)
    caption = f"Mean over seeds{' and over the other axes' if over else ''}; {facts.basis}."
    section = Section("pairs", f"Validation accuracy by {short(rows)} and {short(columns)}")
    for i, value in enumerate(taken[split] if split else [""]):
        cells = [c for c in facts.own if split is None or facts.place(c).get(split) == value]
        if len(facts.table.loc[[c.id for c in cells], ["mean", rows, columns]].dropna()):
            drawn = figures.heat_map(facts, rows, columns, cells)
            name = "heat_map" if i == 0 else f"heat_map_{i + 1}"
            section.charts[name] = drawn, f"{short(split)}={value}. {caption}" if split else caption
    return section


def _together(facts: Facts, a: str, b: str) -> bool:
    """Whether cells fill most of the grid of two axes: a search draws values of its own, or no such pair at all."""
    both = facts.table.loc[[cell.id for cell in facts.own], [a, b, "mean"]].dropna()
    one, other, filled = both[a].nunique(), both[b].nunique(), len(both.drop_duplicates([a, b]))
    return min(one, other) > 1 and 2 * max(one, other) <= len(both) and 2 * filled > one * other


def matters(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which hyper-parameters matter, alone and together?"""
    found = importance(facts)
    if len(found) < 2:
        return None
    known, unknown = found.dropna(subset=["share"]), found[found["share"].isna()]
    if known.empty and found["method"].nunique() > 1:
        return None  # a comparison of methods, not of fields
    text = (
        "Share of the variance of the validation accuracy over cells that a field explains alone, in the cells in "
        "which it exists: exact in complete grids, else estimated (ω²)."
    )
    section = Section("importance", "What matters")
    if len(known):
        spreads = dict(zip(known["method"], known["spread"], strict=True))
        varies = ", ".join(f"{figure(spread, 'val/acc_mean')} ({name})" for name, spread in spreads.items())
        section.texts.append(f"{text} The standard deviation over cells, in points: {varies}.")
        top = known.head(20)
        bars = [{"name": f"{m}: {short(f)}", "value": 100 * share}
                for m, f, share in zip(top["method"], top["field"], top["share"], strict=True)]  # fmt: skip
        of = counted(top["cells"].max(), "cell")
        of = of if top["cells"].min() == top["cells"].max() else f"{top['cells'].min()} to {of}"
        caption = f"Each field over the {of} in which it exists; validation accuracy, {facts.basis}."
        drawn = charts.bars(bars, "share of variance explained (%)")
        section.charts["importance"] = drawn, caption
    said = {note: [short(str(f)) for f in rows["field"]] for note, rows in unknown.groupby("note", sort=False)}
    section.texts += [f"Nothing is said of {', '.join(dict.fromkeys(names))}: {note}." for note, names in said.items()]
    _models(section, found)
    for i, ((method, field), curve) in enumerate(dependences(facts, found).items(), 1):
        caption = (
            f"{method}: mean over all else that was tried, {counted(int(curve['cells'].sum()), 'trial')}; "
            "the band is a 95 % interval over seeds."
        )
        section.charts[f"dependence_{i}"] = figures.dependence(curve, field, facts), caption
    both = field_pairs(facts)
    rows = [
        [
            f"{r['method']}: {short(r['a'])} and {short(r['b'])}",
            f"{100 * r['share']:.1f}",
            str(r["cells"]),
        ]
        for r in both.dropna(subset=["share"]).head(10).to_dict("records")
    ]
    if rows:
        section.tables.append(plain_table(["together, beyond each alone", "share of variance (%)", "cells"], rows))
    return section


def _models(section: Section, found: pd.DataFrame) -> None:
    """Adds what Optuna's models of the whole space say."""
    if "fanova" not in found or found["fanova"].isna().all():
        return
    rows = [[f"{r['method']}: {short(r['field'])}", f"{100 * r['fanova']:.1f}", f"{100 * r['ped_anova']:.1f}"]
            for r in found.dropna(subset=["fanova"]).to_dict("records")]  # fmt: skip
    section.tables.append(plain_table(["field", "fANOVA (%)", "PED-ANOVA (%)"], rows))
