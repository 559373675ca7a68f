"""The fourth section: what the choice is worth, clients, what models rely on, reporting rules."""

from __future__ import annotations

import math

import numpy as np

from fpl_tune.core.formatting import counted, percent, signed
from fpl_tune.core.metrics import TEST_SELECTED_RULES
from fpl_tune.findings.comparisons import Comparisons
from fpl_tune.findings.findings import Findings
from fpl_tune.report import charts
from fpl_tune.report.panels import Panel


def clients(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Who gains, who loses?"""
    places, title = charts.notable(findings)
    rows = [
        {"name": name, "panel": setting, "seed": seed, "client": client, "value": value}
        for setting, name, cell in places
        for seed in findings.seeds(cell)
        for client, value in enumerate(findings.clients(cell, seed).tolist(), 1)
        if math.isfinite(value)
    ]
    if not rows:
        return None
    order = list(dict.fromkeys(row["name"] for row in rows))
    x, y = charts.measured(findings.metric, "value"), charts.names("name", None, order)
    tooltip = charts.tips(y, charts.names("seed", "seed"), charts.names("client", "client"), x)
    drawn = charts.chart(
        rows,
        charts.layer(
            "boxplot", {"x": x, "y": y}, extent="min-max", opacity=0.45, size=16, median={"color": "currentColor"}
        ),
        charts.layer("point", {"x": x, "y": y, "tooltip": tooltip}, size=14, opacity=0.55),
        height={"step": 28},
        **title,
    )
    drawn = charts.panels(drawn, list(dict.fromkeys(row["panel"] for row in rows)), order)
    caption = f"One point per client and seed; box: quartiles, line: median, whiskers: extremes. {findings.basis}."
    return Panel("Clients", charts={"clients": (drawn, caption)})


def diagnoses(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """What do the models of the best cell rely on?"""
    cell, panel = findings.lead, Panel("What the models rely on")
    last = [findings.row(cell).history(seed)[-1] for seed in findings.seeds(cell)] if cell is not None else []
    for name in sorted({name for record in last for name in record if name.startswith("diagnosis/")}):
        values = 100 * np.array([record[name] for record in last if name in record])
        mean, std = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        rows = [{"name": str(i + 1), "value": v, "low": v - std[i], "high": v + std[i]} for i, v in enumerate(mean)]
        what = name.removeprefix("diagnosis/")
        caption = (
            f"{what}; validation images, last round, mean over clients, n = {counted(len(values), 'seed')}; whiskers: "
            "standard deviation over seeds."
        )
        panel.charts[charts.file_name(name)] = charts.bars(rows, f"{what} (%)"), caption
    return panel if panel.charts else None


def rules(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How much would the papers' ways of reporting add?"""
    every = dict.fromkeys([findings.rule, *TEST_SELECTED_RULES])
    by_rule = {rule: findings.table.values(findings.metric, rule).groupby("cell")["value"].mean() for rule in every}
    named = {"best_test": "the best test round", "mean_last5": "the mean of the last five evaluated rounds"}
    added = [f"{signed((by_rule[rule] - by_rule[findings.rule]).mean(), findings.metric)} for {named[rule]}"
             for rule in TEST_SELECTED_RULES if rule in by_rule and not by_rule[rule].empty]  # fmt: skip
    text = f"Papers also report by test accuracies. Mean change over cells, in points: {', '.join(added)}."
    return Panel("Reporting rules", [text]) if added and percent(findings.metric) else None
