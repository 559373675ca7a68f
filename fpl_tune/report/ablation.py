"""The section on the ablation path: what each field contributes between the published point and the best cell."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.errors import ConfigError
from fpl_tune.formatting import counted, figure, interval, percent, plus_minus, quantity, short, signed
from fpl_tune.report.blocks import Section, Table, plain_table
from fpl_tune.report.facts import Facts
from fpl_tune.report.significance import values
from fpl_tune.search.ablation import Step, ablation_paths
from fpl_tune.study.cells import shown
from fpl_tune.study.results import VAL


def ablation(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which of the changes from the published point to the best cell make the difference?"""
    if not facts.ablated:
        return None
    section = Section("ablation", "From the published point to the best cell")
    command = f"fpl-tune study {facts.spec.name} ablate=best"
    try:
        paths = ablation_paths(facts.spec, facts.store.node(), facts.store)
    except ConfigError as problem:
        section.texts.append(str(problem))
        return section
    section.texts.append(
        "One field changes in each row, in the order of the share of variance that it explains alone on validation; "
        "every row is a run of its own. Differences are to the row above, paired by seed, with 95 % intervals; "
        f"verdicts after Holm's correction over the rows; {facts.basis}."
    )
    missing = 0
    for path in paths:
        missing += sum(not facts.seeds(step.cell) for step in path)
        section.tables.append(_table(facts, path))
    if missing:
        section.texts.append(f"{counted(missing, 'step')} without results: {command}")
    return section


def _table(facts: Facts, path: list[Step]) -> Table:
    """A row per step, and the whole path in the last one."""
    cells = [step.cell for step in path]
    frame, shares = values(facts, cells), percent(facts.metric)
    present = set(frame["cell"])
    pairs = {b.id: a.id for a, b in itertools.pairwise(cells) if {a.id, b.id} <= present}
    rope = facts.spec.report.rope / 100
    tests = analysis.compare(frame, pairs, rope=rope, shares=shares)
    rows = []
    for i, step in enumerate(path):
        before = cells[i - 1].varied if i else {}
        change = ", ".join(
            f"{short(name)}: {_value(before, name)} → {_value(step.cell.varied, name)}" for name in step.fields
        )
        rows.append([str(i), change or "published point", *_figures(facts, step), *_difference(facts, tests, step)])
    if {cells[0].id, cells[-1].id} <= present and len(path) > 2:
        whole = analysis.compare(frame, {cells[-1].id: cells[0].id}, rope=rope, shares=shares)
        rows.append(["", "all of them", "", "", *_difference(facts, whole, path[-1])])
    header = ["step", "change", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std",
              "difference", "95 % interval", "verdict"]  # fmt: skip
    return plain_table(header, rows)


def _value(varied: dict[str, object], name: str) -> str:
    return shown(varied[name]) if name in varied else "unset"


def _figures(facts: Facts, step: Step) -> list[str]:
    """Validation accuracy and the metric of a step."""
    found = facts.values(step.cell, facts.metric)
    if not found:
        return ["–", "–"]
    frame = facts.validation(VAL)
    val = float(frame.loc[frame["cell"] == step.cell.id, "value"].mean())
    std = float(np.std(found, ddof=1)) if len(found) > 1 else float("nan")
    return [figure(val, VAL), plus_minus(float(np.mean(found)), std, facts.metric)]


def _difference(facts: Facts, tests: pd.DataFrame, step: Step) -> list[str]:
    """Difference, interval and verdict of a step."""
    if step.cell.id not in tests.index:
        return ["", "", ""]
    test = tests.loc[step.cell.id]
    ends = interval(test, facts.metric)  # pyright: ignore[reportArgumentType] - a row of a frame
    return [signed(float(test["difference"]), facts.metric), ends, str(test["verdict"])]
