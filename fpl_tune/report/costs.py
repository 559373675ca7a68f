"""Costs of chosen points above those that tuning started from, and the gain at no higher cost."""

from __future__ import annotations

import math

from fpl_tune.core.formatting import gap, size, some
from fpl_tune.core.nested import get_field
from fpl_tune.findings.choice import choose
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.searches import Searched
from fpl_tune.study.cells import Cell, shown

_FIELDS = {
    "protocol.rounds": "rounds",
    "protocol.epochs": "local epochs",
    "protocol.participation": "participation",
}
"""Fields that multiply what clients compute, in words."""
_BYTES = 1.01
"""Ratio of bytes above which a cell sends more: other seeds may draw other clients."""


def higher(findings: Findings, cell: Cell, than: Cell) -> dict[str, str]:
    """The costs of a cell that are higher than those of another: in words -> `10 instead of 1`."""
    costs = {}
    for name, words in _FIELDS.items():
        mine, other = get_field(cell.node, name), get_field(than.node, name)
        if mine > other:
            costs[words] = f"{shown(mine)} instead of {shown(other)}"
    mine, other = (findings.frame.loc[each.id, "bytes"] for each in (cell, than))
    return {**costs, "bytes": f"{size(mine)} a seed instead of {size(other)}"} if mine > _BYTES * other else costs


def of_search(findings: Findings, search: Searched) -> dict[str, str]:
    """The costs of a search's chosen point that are higher than those of its first one; see `higher`."""
    if search.tuned is None or search.published is None:
        return {}
    return higher(findings, search.tuned, search.published)


def text(findings: Findings, search: Searched, name: str) -> str:
    """The costs of the chosen point of a search above its published or default one, as a sentence about `name`; empty
    if there are none.

    The gain at no higher cost follows, by the best trial on validation that costs no more than that one.
    """
    costs = ", ".join(f"{words} {values}" for words, values in of_search(findings, search).items())
    first = findings.first_point(search.published) if search.published is not None else ""
    more = f"{costs}; {_at_no_higher_cost(findings, search)}"
    return f"{name} costs more than the {first} setting: {more}." if costs else ""


def _at_no_higher_cost(findings: Findings, search: Searched) -> str:
    def best(cells: list[Cell]) -> Cell | None:
        choice = choose(map(findings.row, cells), findings.rule_of_trials, findings.table.study)
        return choice.cell if choice is not None else None

    first = best([cell for cell in search.trials if cell.published])
    if first is None:
        return "nothing is known at no higher cost"
    trial = best([cell for cell in search.trials if not higher(findings, cell, first)])
    if trial is None or trial.published:
        return f"no completed trial that costs no more was better on {findings.chosen_on}"
    mine, other = (findings.by_seed(cell, findings.metric) for cell in (trial, first))
    gained = [value - other[seed] for seed, value in mine.items() if seed in other]
    if not gained:
        return "no seed is paired at no higher cost"
    mean = gap(math.fsum(gained) / len(gained), findings.metric)
    return f"at no higher cost, trial {trial.trial_number} gains {mean} on the seeds that chose it"


def sentence(findings: Findings) -> str:
    """The searches whose chosen values cost more than the first ones, and what; empty if there are none."""
    costs = {search.label: of_search(findings, search) for search in findings.searches}
    named = [label for label, own in costs.items() if own]
    words = dict.fromkeys(words for own in costs.values() for words in own)
    what = f"The chosen values of {some(named, 4, '; ')} cost more than those before tuning"
    return f"{what} ({', '.join(words)})." if named else ""


def texts(findings: Findings) -> list[str]:
    """A line for each search whose chosen point costs more than its published or default one."""
    return [*filter(None, (text(findings, search, search.label) for search in findings.searches))]
