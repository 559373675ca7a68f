"""The last section: commands, versions and the partition."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.formatting import counted, duration, size
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part
from fpl_tune.report.charts import Spec
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import study_file
from fpl_tune.study.partition import Shares


def commands(facts: Facts, tests: pd.DataFrame) -> Part:
    """How much was run, with what, and how again?"""
    search = facts.spec.search
    total = float(np.nansum(facts.table["seconds"] * facts.table["n"]))
    seeds = counted(len(facts.spec.seed_list()), "seed")
    seeds = f"{len(facts.spec.first_seeds())} to {seeds}" if facts.looks else seeds
    texts = [
        f"{counted(len(facts.own), 'cell')} × {seeds}, "
        f"and {counted(len(facts.references), 'reference')}; {duration(total)} of training in all; at most "
        f"{size(facts.table['bytes'].fillna(0).max())} sent in a run, by all clients, both ways."
    ]
    if search.sampler:
        texts.append(f"Searched with {search.sampler} on {', '.join(search.objectives)}.")
    versions = facts.store.fingerprints(facts.cells[0]).get("versions", {})
    texts += [f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."] if versions else []
    code = f"# with all overrides, as it was run\nfpl-tune study {study_file(facts)}\nfpl-tune show {facts.spec.name}"
    if facts.best is not None:
        code += f"\nfpl-tune export {facts.spec.name} --cell best"
    return Part("", texts, code=[code])


def partition(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """Who holds what?"""
    cell = facts.lead
    if cell is None:
        return None
    seed = facts.seeds(cell)[0]
    try:
        held = facts.shares(cell, seed)
    except FplTuneError as problem:
        return Part("Partition", [f"Not drawn, since the data are not at hand: {problem}"])
    if held.hash != str(facts.result(cell, seed).get("split_hash")):
        return Part("Partition", ["Not drawn: the data are no longer those of the results."])
    caption = (
        f"{facts.name(cell)}, seed {seed}: {counted(held.counts.sum(), 'training image')} of "
        f"{counted(len(held.counts), 'client')}; the area of a disc is their number."
    )
    return Part("Partition", charts={"partition": (discs(held), caption)})


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
