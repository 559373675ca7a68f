"""The last section: commands, versions and the partition."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np

from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.formatting import counted, duration, size
from fpl_tune.findings import limits
from fpl_tune.findings.comparisons import Comparisons
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.partition import ClassCounts
from fpl_tune.report import charts
from fpl_tune.report.charts import Spec
from fpl_tune.report.panels import Panel


def study_file(findings: Findings) -> str:
    """The resolved study for a shell: with it, a command runs the study with the overrides that it was run with."""
    path = (findings.table.folder / "study.yaml").resolve()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def commands(findings: Findings, comparisons: Comparisons) -> Panel:
    """How much was run, with what, and how again?"""
    search = findings.spec.search
    total = float(np.nansum(findings.frame["seconds"] * findings.frame["n"]))
    seeds = counted(len(findings.spec.seed_list()), "seed")
    seeds = f"{len(findings.spec.first_seeds())} to {seeds}" if findings.looks else seeds
    texts = [
        f"{counted(len(findings.own), 'cell')} × {seeds}, "
        f"and {counted(len(findings.references), 'reference')}; {duration(total)} of training in all; at most "
        f"{size(findings.frame['bytes'].fillna(0).max())} sent in a run, by all clients, both ways."
    ]
    if search.sampler:
        within = f", within {limits.in_words(findings.table.study)}" if search.limits else ""
        texts.append(f"Searched with {search.sampler} on {', '.join(search.objectives)}{within}.")
    runs = findings.row(findings.cells[0]).results.values()
    versions = next((run.fingerprints for run in runs), {}).get("versions", {})
    texts += [f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."] if versions else []
    code = f"# with all overrides, as it was run\nfpl-tune study {study_file(findings)}"
    code += f"\nfpl-tune show {findings.spec.name}"
    if findings.best is not None:
        code += f"\nfpl-tune export {findings.spec.name} --cell best"
    return Panel("", texts, code=[code])


def partition(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Who holds what?"""
    cell = findings.lead
    if cell is None:
        return None
    seed = findings.seeds(cell)[0]
    try:
        clients = findings.class_counts(cell, seed)
    except FplTuneError as problem:
        return Panel("Partition", [f"Not drawn, since the data are not at hand: {problem}"])
    if clients.hash != findings.row(cell).results[seed].split_hash:
        return Panel("Partition", ["Not drawn: the data are no longer those of the results."])
    caption = (
        f"{findings.names.of(cell)}, seed {seed}: {counted(clients.counts.sum(), 'training image')} of "
        f"{counted(len(clients.counts), 'client')}; the area of a disc is their number."
    )
    return Panel("Partition", charts={"partition": (discs(clients), caption)})


def discs(clients: ClassCounts) -> Spec:
    """A disc for every client and class, its area the number of training images."""
    rows = [
        {
            "client": int(n) + 1,
            "class": clients.classes[k],
            "images": int(clients.counts[n, k]),
            "domain": clients.domains[n],
        }
        for n, k in zip(*np.nonzero(clients.counts), strict=True)
    ]
    x, y = charts.names("class", "class", clients.classes), {**charts.names("client", "client"), "sort": "ascending"}
    y["type"] = "ordinal"
    area = {"field": "images", "type": "quantitative", "title": "images", "legend": None}
    domain = charts.names("domain", "domain")
    colour = {**domain, "legend": {"title": None} if len({row["domain"] for row in rows}) > 1 else None}
    channels = {"x": {**x, "axis": {"labelAngle": -90}}, "y": y, "size": area, "color": colour}
    disc = charts.layer("circle", {**channels, "tooltip": charts.tips(y, x, area, domain)}, rows, opacity=0.8)
    return {**disc, "height": {"step": max(8, min(22, 600 // len(clients.counts)))}}
