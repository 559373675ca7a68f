"""Sections on what a study decides: comparisons, claims, the choice itself, sources of variation, data sets."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.formatting import counted, figure, p_value, percent, quantity, upper
from fpl_tune.report import charts, figures
from fpl_tune.report.blocks import Section, plain_table
from fpl_tune.report.charts import Spec
from fpl_tune.report.facts import Facts, without_data
from fpl_tune.report.significance import values
from fpl_tune.study import claims as study_claims
from fpl_tune.study.results import VAL

_OPEN = 10
"""Comparisons in words that are listed at once; more are folded."""


def decisions(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which cells differ from the reference, how sure is that, and how many seeds decide the rest?"""
    if tests.empty:
        return None
    counts = tests["verdict"].value_counts()
    summary = ", ".join(f"{counts[v]} {v}" for v in ("better", "worse", "equal", "undecided") if v in counts)
    width = facts.spec.report.rope
    rope = f"Smaller differences than {width:g} {'point' if width == 1 else 'points'} count as equal (report.rope). "
    texts = [
        f"Of {counted(len(tests), 'comparison')} with {facts.reference}: {summary}. {tests.attrs['advice'].text}",
        f"{rope if percent(facts.metric) else ''}Seeds, not clients, are the independent units: intervals are "
        "Student's over the seeds' means; verdicts are corrected by Holm's method.",
    ]
    order = {verdict: i for i, verdict in enumerate(("better", "worse", "undecided", "equal"))}
    rows = tests.assign(_order=tests["verdict"].map(order)).sort_values("_order", kind="stable")
    if apart := tests.attrs["apart"]:
        texts.append(f"Not compared: {counted(apart, 'cell')} on other data or partitions than {facts.reference}.")
    told = [[r["sentence"] + (f" Limits: {r['note']}." if r["note"] not in r["sentence"] else "")]
            for r in rows.to_dict("records")]  # fmt: skip
    table = plain_table(["comparison"], told, fold="The comparisons in words" if len(told) > _OPEN else "")
    return Section("decisions", "What is decided", texts, tables=[table])


def choice(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What is the choice of the best cell worth after the choice itself?"""
    if facts.best is None or not percent(facts.metric) or len(facts.chosen) > 1:
        return None
    own = [cell.id for cell in facts.own]
    val, test = (frame.loc[frame["cell"].isin(own)] for frame in map(facts.validation, (VAL, facts.metric)))
    try:
        found = analysis.overtuning(val, test, rule=facts.spec.report.select)
    except ValueError as problem:
        return Section("choice", "What the choice is worth", [str(problem)])
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
        f"put first, which noise flatters. Rule of selection: {facts.spec.report.select} (report.select).",
        "Corrected: for every seed, the cell that the other seeds' validation selects is tested on that seed.",
    ]
    texts += [f"Limits: {found.note}."] if found.note else []
    table = plain_table(["", "", quantity(facts.metric, over="")], rows)
    return Section("choice", "What the choice is worth", texts, tables=[table])


def variation(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """What varies more: the seed, the partition, the clients or the hyper-parameters?"""
    if not percent(facts.metric) or len(facts.own) < 2:
        return None
    split = analysis.variance_split(values(facts, facts.own))
    note = split.attrs["note"]
    if split.empty:
        return None
    known = split.dropna()
    bars = [{"name": str(name), "value": 100 * sd} for name, sd in known["sd"].items()]
    drawn = charts.bars(bars, "standard deviation (points)")
    caption = f"{upper(quantity(facts.metric, over=''))}, method of moments over cells, seeds and clients"
    text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in known["share"].items())
    texts = [f"Shares of the variance: {text}.", *([f"Limits: {note}."] if note else [])]
    return Section("variation", "Sources of variation", texts, {"variation": (drawn, f"{caption}.")})


def datasets(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How do the cells compare over data sets?"""
    rows = []
    for cell in facts.cells:
        name = without_data(cell)
        for seed, value in facts.by_seed(cell, facts.metric).items():
            rows.append((cell.run.data.name, name, seed, value))
    frame = pd.DataFrame(rows, columns=pd.Index(["dataset", "cell", "seed", "value"]))
    if frame["dataset"].nunique() < 2 or frame["cell"].nunique() < 2 or not percent(facts.metric):
        return None
    if frame.duplicated(["dataset", "cell", "seed"]).any():
        return None
    ranks = analysis.mean_ranks(frame)
    n = counted(ranks.datasets, "data set")
    texts = [f"Mean ranks over {n}; ranks that differ by less than {ranks.critical_difference:.2f} (Nemenyi) are not "
             f"told apart; Friedman's p = {p_value(ranks.p)}."]  # fmt: skip
    if not np.isfinite(ranks.critical_difference):
        texts = [f"Mean ranks over {n}."]
    texts += [f"Limits: {ranks.note}."] if ranks.note else []
    texts += [f"Not told apart: {', '.join(group)}." for group in ranks.groups]
    drawn: dict[str, tuple[Spec, str]] = {}
    if np.isfinite(ranks.critical_difference):
        caption = "A bar joins cells whose mean ranks differ by less than the critical difference (Nemenyi, 5 %)."
        drawn["ranks"] = figures.critical_difference(ranks), caption
    table = plain_table(["cell", "mean rank"], [[str(cell), f"{rank:.2f}"] for cell, rank in ranks.ranks.items()])
    return Section("datasets", "Over data sets", texts, drawn, [table])


def claims(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which of the study's claims do the results support?"""
    judged = study_claims.evaluate(facts.store, facts.rule)
    if not judged:
        return None
    texts = [
        f"{study_claims.counts(judged)}. A claim holds where the 95 % interval of the difference, paired over seeds, "
        "lies inside of what is claimed, and fails where it lies outside."
    ]
    rows = [[claim.status, claim.says, claim.source or "–", claim.reason] for claim in judged]
    return Section("claims", "Claims", texts, tables=[plain_table(["", "claim", "shown in", "figures"], rows)])
