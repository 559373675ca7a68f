"""Sections on what was trained: learning curves, clients, what the models rely on, partitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.formatting import counted, listed, quantity, upper
from fpl_tune.report import charts, figures
from fpl_tune.report.blocks import Section
from fpl_tune.report.facts import Facts
from fpl_tune.study.partition import Shares, shares
from fpl_tune.study.results import VAL

PARTITIONS = 5
"""Partitions drawn; seeds beyond are counted."""

_UNIFORM = 0.05
"""Largest deviation of a share from equal shares, relative to them, that counts as equal."""

SHOWN = 8
"""Cells drawn at once; of more, those with the highest validation accuracy."""


def learning(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How fast is it learned?"""
    cells = facts.notable(SHOWN)
    if not cells:
        return None
    which = "references, and the cells that validation puts first" if len(facts.cells) > len(cells) else "all cells"
    section = Section("learning", "Learning curves", [f"Mean over seeds and their standard deviation; {which}."])
    for name in dict.fromkeys([VAL, facts.metric, *facts.whole]):
        every = [(facts.name(cell), facts.keys[cell.id], facts.curve(cell, name)) for cell in cells]
        if curves := [one for one in every if len(one[2]) > 1]:
            file = {VAL: "learning_validation", facts.metric: "learning"}.get(
                name, f"learning_{name.replace('/', '_')}"
            )
            section.charts[file] = figures.by_round(curves, name), _caption(name, curves)
    parts = sorted(set(facts.extra) - set(facts.whole))
    ranked = [*([facts.best] if facts.best else []), *cells]
    for group, found in itertools.groupby(parts, key=lambda name: name.partition("/")[0]):
        names = list(found)
        cell = next((c for c in ranked if len(facts.curve(c, names[0])) > 1), None)
        if cell is not None:
            curves = [(name.split("/")[-2], -1, facts.curve(cell, name)) for name in names]
            metric = f"{group}/{names[0].rpartition('/')[2]}"
            caption = f"{facts.name(cell)}, {group} by part."
            section.charts[f"learning_{group}_parts"] = figures.by_round(curves, metric), caption
    return section if section.charts else None


def _caption(metric: str, curves: Sequence[tuple[str, int, pd.DataFrame]]) -> str:
    """Names a single curve, which has no legend."""
    of = f" of {curves[0][0]}, the only one that was evaluated more than once" if len(curves) == 1 else ""
    return f"{upper(quantity(metric, unit=False))}{of}."


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
            continue
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
    stored = {seed: str(facts.result(cell, seed).get("split_hash")) for seed in seeds}
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
