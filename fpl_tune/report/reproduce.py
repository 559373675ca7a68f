"""The last section: commands, what varied, the environment and the partition."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

import numpy as np
import pandas as pd

from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.formatting import counted, duration, listed, size
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part, plain_table
from fpl_tune.report.charts import Spec
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import study_file
from fpl_tune.search.components import label_of
from fpl_tune.study.cells import shown
from fpl_tune.study.partition import Shares, shares

_PARTITIONS = 5
"""Partitions drawn; seeds beyond are counted."""


def commands(facts: Facts, tests: pd.DataFrame) -> Part:
    """What was run, and how again?"""
    rows = [[axis, ", ".join(dict.fromkeys(shown(v) for v in facts.table[axis] if v is not None and v == v))]
            for axis in facts.axes]  # fmt: skip
    rows = [[name, values if len(values) < 160 else f"{values[:157]}…"] for name, values in rows]
    search = facts.spec.search
    total = float(np.nansum(facts.table["seconds"] * facts.table["n"]))
    texts = [
        f"{counted(len(facts.own), 'cell')} × {counted(len(facts.spec.seed_list()), 'seed')}, "
        f"and {counted(len(facts.references), 'reference')}; {duration(total)} of training in all; at most "
        f"{size(facts.table['bytes'].max())} sent in a run, by all clients, both ways."
    ]
    if search.sampler:
        budget = counted(search.trials, "trial")
        texts.append(
            f"Searched with {label_of(search.sampler)}, {budget} for each cell of the axes, "
            f"on {', '.join(search.objectives)}."
        )
    study = study_file(facts)
    code = f"# with all overrides, as it was run\nfpl-tune study {study}\nfpl-tune show {facts.spec.name}"
    if facts.best is not None:
        code += f"\nfpl-tune export {facts.spec.name} --cell best"
    return Part("", texts, tables=[plain_table(["field", "values"], rows)] if rows else [], code=[code])


def environment(facts: Facts, tests: pd.DataFrame) -> Part:
    """With what was it run?"""
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
    return Part("Environment", texts)


def partition(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Who holds what, and on which domains is the best cell good?"""
    cell = facts.best or next(iter(facts.cells), None)
    seeds = facts.seeds(cell) if cell is not None else []
    if cell is None or not seeds:
        return None
    try:
        drawn = {seed: shares(cell.run, seed) for seed in seeds}
    except FplTuneError as problem:
        return Part("Partition", [f"Not drawn, since the data are not at hand: {problem}"])
    if any(drawn[seed].hash != str(facts.result(cell, seed).get("split_hash")) for seed in seeds):
        return Part("Partition", ["Not drawn: the data are no longer those of the results."])
    part = Part("Partition")
    alike: dict[bytes, list[int]] = {}
    for seed, held in drawn.items():  # seeds that differ in images alone share a picture
        alike.setdefault(held.counts.tobytes() + "".join(held.domains).encode(), []).append(seed)
    for same in list(alike.values())[:_PARTITIONS]:
        held = drawn[same[0]].counts
        caption = (
            f"{facts.name(cell)}, {listed('seed', same)}: {counted(held.sum(), 'training image')} of "
            f"{counted(len(held), 'client')}; the area of a disc is their number"
            f"{', the same in these seeds, drawn anew in each' if len(same) > 1 else ''}."
        )
        part.charts["partition" if not part.charts else f"partition_seed{same[0]}"] = discs(drawn[same[0]]), caption
    if len(alike) > _PARTITIONS:
        part.texts.append(f"The first {_PARTITIONS} of {len(alike)} partitions are drawn.")
    known = {seed: facts.clients(cell, seed) for seed in seeds}
    by_domain = {
        name: {seed: known[seed][np.array(drawn[seed].domains) == name] for seed in seeds}
        for name in dict.fromkeys(name for held in drawn.values() for name in held.domains)
        if all(len(known[seed]) == len(drawn[seed].domains) for seed in seeds)
    }
    boxes = charts.boxes(by_domain, facts.metric)
    if len(by_domain) > 1 and boxes is not None:
        part.charts["domains"] = boxes, f"Clients of {facts.name(cell)} by their domain, all seeds; {facts.basis}."
    return part


def discs(held: Shares) -> Spec:
    """A disc for every client and class, its area the number of training images."""
    rows = [
        {"client": int(n) + 1, "class": held.classes[k], "images": int(held.counts[n, k]), "domain": held.domains[n]}
        for n, k in zip(*np.nonzero(held.counts), strict=True)
    ]
    x, y = charts.names("class", "class", held.classes), {**charts.names("client", "client"), "sort": "ascending"}
    y["type"] = "ordinal"
    area = {"field": "images", "type": "quantitative", "title": "images", "legend": None}
    domain = charts.names("domain", "domain")
    colour = {**domain, "legend": {"title": None} if len({row["domain"] for row in rows}) > 1 else None}
    place = {"x": {**x, "axis": {"labelAngle": -90}}, "y": y, "size": area, "color": colour}
    disc = charts.layer("circle", {**place, "tooltip": charts.tips(y, x, area, domain)}, rows, opacity=0.8)
    return {**disc, "height": {"step": max(8, min(22, 600 // len(held.counts)))}}
