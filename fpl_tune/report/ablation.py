"""The section on the ablation path: what each field contributes between the published point and the best cell."""

from __future__ import annotations

import itertools

import pandas as pd

from fpl_tune.errors import ConfigError
from fpl_tune.formatting import counted, figure, plus_minus, quantity, short
from fpl_tune.report.blocks import Section, Table, plain_table
from fpl_tune.report.facts import Facts
from fpl_tune.report.significance import compared, judged, values
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
    frame = values(facts, cells)
    present = set(frame["cell"])
    steps = [(before.id, cell.id) for before, cell in itertools.pairwise(cells) if {before.id, cell.id} <= present]
    tests = compared(facts, frame, {cell: before for before, cell in steps}).to_dict("index")
    rows = []
    for i, step in enumerate(path):
        then, now = cells[i - 1].varied if i else {}, step.cell.varied
        change = ", ".join(f"{short(name)}: {_value(then, name)} → {_value(now, name)}" for name in step.fields)
        reached = [figure(facts.spread(step.cell, VAL)[0], VAL),
                   plus_minus(*facts.spread(step.cell, facts.metric), facts.metric)]  # fmt: skip
        gap = judged(facts, tests[step.cell.id]) if step.cell.id in tests else ["", "", ""]
        rows.append([str(i), change or "published point", *reached, *gap])
    if {cells[0].id, cells[-1].id} <= present and len(path) > 2:
        (whole,) = compared(facts, frame, {cells[-1].id: cells[0].id}).to_dict("records")
        rows.append(["", "all of them", "", "", *judged(facts, whole)])
    header = ["step", "change", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std",
              "difference", "95 % interval", "verdict"]  # fmt: skip
    return plain_table(header, rows)


def _value(varied: dict[str, object], name: str) -> str:
    return shown(varied[name]) if name in varied else "unset"
