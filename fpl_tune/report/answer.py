"""The first section: who won, by how much and how sure, with the chart that fits the study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fpl_tune.core.formatting import (
    counted,
    figure,
    gap,
    joined,
    some,
    unit_of_gap,
    upper,
    with_unit,
    words,
)
from fpl_tune.findings import edited
from fpl_tune.findings.claims import counts_sentence
from fpl_tune.findings.comparisons import TREND, Comparisons
from fpl_tune.findings.findings import Findings
from fpl_tune.report import costs, front, main_chart, search, sentences, sweep, tuned
from fpl_tune.report.panels import Panel, plain_table
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import VAL
from fpl_tune.study.standing import CellState

NAMED = 8
"""Cells that a sentence names; further ones are counted."""


def sentence(findings: Findings, comparisons: Comparisons) -> str:
    """The answer to what the study asks: its claims, the plateau of a sweep, the gain of a search, or the best cell.

    A warning follows where rungs of a search mislead, where the objective is the same in all cells, and where the code
    of a method has changed since.
    """
    warnings = [text for foresight in findings.foresights if (text := foresight.warning())]
    if len(findings.tied) > 1 and len(findings.tied) == len(findings.whole) - 1:
        number = counted(len(findings.whole), "trial" if findings.searched else "cell")
        more = " Use more validation images (data.val)." if findings.objectives == [VAL] else ""
        warnings.append(f"All {number} tie on {findings.chosen_on}, which cannot choose between them.{more}")
    if stale := edited.note(findings.table):
        warnings.append(stale)
    return " ".join([_answer(findings, comparisons), *warnings])


def _answer(findings: Findings, comparisons: Comparisons) -> str:
    states = [findings.row(cell).state for cell in findings.cells]
    number = states.count(CellState.DONE) + len(findings.pruned) + len(_diverged(findings))
    so_far = "" if number == len(states) else f"So far, {number} of {counted(len(states), 'cell')} done: "
    if findings.spec.report.claims:
        return f"{so_far}{counts_sentence(findings.claims)}."
    if findings.choice is None and findings.beyond:
        return f"{so_far}{' '.join(findings.beyond)}"
    if findings.choice is None:
        found = _by_setting(findings, comparisons)
        return f"{so_far}{found or 'No cell is chosen, since no two finished cells are comparable on validation'}."
    if findings.best is None:
        return f"{so_far}{front.sentence(findings)}"
    if findings.kind == "sweep":
        return f"{so_far}{sweep.sentence(findings)}"
    if findings.tuned_table is not None:
        return f"{so_far}{tuned.sentence(findings, comparisons.reference.asked)}"
    if findings.kind == "search" and len(findings.searches) == 1:
        return f"{so_far}{search.sentence(findings)}"
    return f"{so_far}{_from_reference(findings, comparisons) or _best(findings, comparisons)}"


def _from_reference(findings: Findings, comparisons: Comparisons) -> str:
    """What changes from one of the study's own cells, as in an ablation, in each setting; empty unless the study's
    reference is one."""
    reference, own = comparisons.reference, {cell.id for cell in findings.whole}
    base = [(setting, cell) for setting, _, cell in findings.places if reference.holds(cell) and cell.id in own]
    if reference.asked is None or not base:
        return ""
    tests = comparisons.frame.to_dict("index")
    changes: dict[str, dict[str, Mapping[Any, Any]]] = {}
    for setting, name, cell in findings.places:
        if cell.id in tests and cell.id in own:
            changes.setdefault(name, {})[setting] = tests[cell.id]
    if not changes:
        return ""
    others = Counter[str]()
    if sum(map(len, changes.values())) > NAMED:  # those that are decided are named, the others counted
        others.update(test["verdict"] for by in changes.values() for test in by.values() if not _is_decided(test))
        left = {name: {where: test for where, test in by.items() if _is_decided(test)} for name, by in changes.items()}
        changes = {name: by for name, by in left.items() if by}
    of, n = f" {words(findings.metric)}", len(findings.seeds(base[0][1]))
    values = list[str]()
    for setting, cell in base:
        mean, std = findings.spread(cell, findings.metric)
        where = f" in {setting}" if setting else ""
        values.append(f"{with_unit(mean, findings.metric, std)}{'' if values else of}{where}")
    parts = [f"{reference.name} reaches {joined(values)} over {counted(n, 'seed')}"]
    for name, by in [*changes.items()][:NAMED]:
        before = "in " if "" not in by else ""
        parts.append(f"{name} {sentences.differences(findings, by, n, before)}")
    parts += [f"{len(changes) - NAMED} more in the table"] if len(changes) > NAMED else []
    if others:
        verdicts = joined([f"{number} {verdict}" for verdict, number in others.items()])
        parts.append(f"{'elsewhere' if changes else 'compared with it'} {verdicts}")
    return f"{'; '.join(parts)}."


def _is_decided(test: Mapping[Any, Any]) -> bool:
    return test["verdict"] in ("better", "worse")


def _best(findings: Findings, comparisons: Comparisons) -> str:
    """The best cell, its value, what it gains over the reference and how sure that is, and which cells are similar."""
    assert findings.best is not None
    assert findings.choice is not None
    means, reference = findings.frame.loc[findings.chosen, "mean"], comparisons.reference.name or ""
    against = comparisons.frame.loc[comparisons.frame.index.isin(findings.chosen)]
    if len(means) > 1:
        name = findings.shared or findings.choice.label
        text = sentences.best(findings, name, means.mean(), settings=len(means))
        by_verdict = {**against["verdict"].value_counts(), "not compared": len(means) - len(against)}
        verdicts = ", ".join(f"{word} in {n}" for word, n in by_verdict.items() if n)
        average = f"{gap(against['difference'].mean(), findings.metric)} against {reference} on average"
        return f"{text}." if against.empty else f"{text}; {average}: {verdicts}."
    tests = {reference: against.iloc[0].to_dict()} if len(against) else {}
    text = sentences.best_cell(findings, findings.best, tests)
    similar = findings.same_group
    if similar and len(similar) < len(findings.own) - 1:
        return f"{text}. It does not differ significantly from {some(list(map(findings.names.of, similar)), 3)}."
    return f"{text}. {'No other cell differs significantly from it.' if similar and len(similar) > 1 else ''}".strip()


def _by_setting(findings: Findings, comparisons: Comparisons) -> str:
    """The result of each setting, and its difference to the reference there, where settings are not ranked; empty
    without results."""
    cells = findings.whole
    if len(cells) < 2:
        return ""
    tests, parts = comparisons.frame.to_dict("index"), list[str]()
    for cell in cells[:NAMED]:
        text = f"{with_unit(findings.frame.loc[cell.id, 'mean'], findings.metric)} at {findings.names.of(cell)}"
        if (test := tests.get(cell.id)) is not None:
            text += f" ({gap(test['difference'], findings.metric)}: {test['verdict']})"
        parts.append(text)
    if len(cells) > NAMED:
        parts.append(f"{len(cells) - NAMED} more in the table")
    against = f", in parentheses against {comparisons.reference.title} there" if tests else ""
    what = upper(words(findings.metric))
    return f"{what} is {joined(parts)}{against}. Values of data and partitions are not ranked against each other"


def _diverged(findings: Findings) -> list[Cell]:
    """The trials of searches that diverged: they are over, while such cells of a grid are to be run again."""
    return [cell for cell in findings.own if cell.role == "trial" and findings.row(cell).state is CellState.DIVERGED]


def decided(findings: Findings, comparisons: Comparisons) -> Panel:
    """Who won, and how sure is that?"""
    panel = Panel(charts=main_chart.drawn(findings))
    if findings.choice is not None and findings.best is not None:
        panel.texts += sweep.references(findings, comparisons) if findings.kind == "sweep" else []
        panel.texts += search.texts(findings)
        if findings.tuned_table is not None:
            texts = tuned.counts(findings, comparisons), tuned.at_edges(findings), costs.sentence(findings)
            panel.texts += [*filter(None, texts)]
    panel.texts += front.texts(findings)
    if tied := findings.tied:
        ties = some(list(map(findings.names.of, tied)), 3)
        panel.texts.append(f"On {findings.chosen_on} the choice ties with {ties}; the smaller values are taken.")
    if findings.pruned:
        broken = len(_diverged(findings))
        whole = len(findings.own) - len(findings.pruned) - broken
        text = f"{whole} of {len(findings.own)} {'trials' if findings.searched else 'cells'} completed"
        text += f"; {broken} diverged" if broken else ""
        panel.texts.append(f"{text}; the others were stopped early and are not compared.")
    if findings.looks:
        panel.texts.append(_looks(findings, comparisons))
    for foresight in findings.foresights:
        if not foresight.low:  # else it is in the answer
            panel.texts.append(
                f"{f'{foresight.label}: e' if foresight.label else 'E'}arly rounds: {foresight.figures()}."
            )
    if len(comparisons.frame) and findings.sampled and findings.tuned_table is None:
        number = comparisons.frame["verdict"].value_counts()
        summary = ", ".join(
            f"{number[v]} {v}" for v in ("better", "worse", TREND, "equal", "identical", "undecided") if v in number
        )
        width = ((comparisons.frame["high"] - comparisons.frame["low"]) / 2).dropna().median()
        points = unit_of_gap(findings.metric)
        sure = f" The median interval is ± {figure(width, findings.metric)}{points}." if width == width else ""
        if findings.kind == "sweep" and sure:
            sure += " Intervals compare values one by one; the fall is tested from the ends of the axis."
        panel.texts.append(f"Compared with {comparisons.reference.title}: {summary} ({findings.basis}).{sure}")
        for note, cells in list(
            comparisons.frame.loc[comparisons.frame["note"] != ""].groupby("note", sort=False).groups.items()
        )[:6]:
            named = [findings.names.of(findings.by_id[str(key)]) for key in cells]
            panel.texts.append(f"{some(named, 3)}: {note}.")
    return panel


def _looks(findings: Findings, comparisons: Comparisons) -> str:
    """Which looks were declared, and at which of them comparisons were decided."""
    declared = joined([*map(str, findings.looks)])
    text = f"Comparisons are evaluated after {declared} seeds, as declared before the first result, with intervals "
    text += f"of {findings.confidence} each, so that all verdicts hold jointly at the 95 % level. "
    text += "A cell stops once its verdict is decided."
    if comparisons.frame.empty:
        open_ = any(findings.row(cell).state is CellState.QUEUED for cell in findings.cells)
        why = "The first look is still to come" if open_ else "No comparison is possible: see the states of the cells"
        return f"{text} {why}."
    counts = comparisons.frame.loc[comparisons.frame["look"] > 0, "look"].value_counts().sort_index().to_dict()
    decided_after = [f"{counted(n, 'comparison')} after {counted(look, 'seed')}" for look, n in counts.items()]
    text += f" Decided: {', '.join(decided_after) or 'none so far'}"
    open_ = int((comparisons.frame["look"] == 0).sum())
    so_far = "after the last look" if comparisons.frame["seen"].max() == findings.looks[-1] else "so far"
    return f"{text}; {counted(open_, 'comparison')} undecided {so_far}." if open_ else f"{text}."


def claims(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which of the study's claims do the results support?"""
    if not findings.claims:
        return None
    texts = [
        f"{counts_sentence(findings.claims)}. A claim holds where the 95 % interval of the difference, paired over "
        "seeds, lies inside of what is claimed, and fails where it lies outside."
    ]
    rows = [[claim.status, claim.says, claim.source or "–", claim.reason] for claim in findings.claims]
    return Panel("Claims", texts, tables=[plain_table(["", "claim", "shown in", "values"], rows)])
