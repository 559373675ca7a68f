"""What methods cost: their table, and the costs of chosen points above those that tuning started from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from fpl_tune.core.formatting import figure, gap, megabytes, points, size, some
from fpl_tune.core.metrics import TEST, TOTAL_BYTES, comparable
from fpl_tune.core.nested import get_field
from fpl_tune.findings.choice import choose
from fpl_tune.findings.comparisons import Comparisons
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.searches import Searched
from fpl_tune.report import charts
from fpl_tune.report.panels import PageTable, Panel, TableRow, Td
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import aggregate, value_of

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
    what = f"The chosen values of {some(named, 4)} cost more than those before tuning"
    return f"{what} ({', '.join(words)})." if named else ""


def texts(findings: Findings) -> list[str]:
    """A line for each search whose chosen point costs more than its published or default one."""
    return [*filter(None, (text(findings, search, search.label) for search in findings.searches))]


# -- the table -----------------------------------------------------------------------------------------------


REACHED = 0.9
"""Share of the final test accuracy to which rounds are counted."""
_OF_CLIENT = {
    "parameters learned": ("cost/learned", 1.0),
    "parameters sent": ("cost/sent", 1.0),
    "MB": ("cost/client_bytes", 1e-6),
    "GFLOP": ("cost/client_flops", 1e-9),
    "memory MB": ("cost/client_memory", 1e-6),
}
"""Columns of a client in a round: their metrics, and the factors to their units."""
EXACT = (*_OF_CLIENT, "MB in total")
"""Columns that follow from the configuration. Times are those of a machine, and rounds vary by chance."""
NOTE = (
    "Of a client and round: the parameters that it learns and sends, MB up and down together, operations forward and "
    "backward, memory (towers, a step, and what it learns with gradients and moments), and its share of the seconds in "
    "which all clients and seeds are trained together, in the median round and without tests. In total: MB of all "
    "clients and rounds, both ways. "
    f"Rounds: the first evaluated one with {100 * REACHED:g} % of the final test accuracy, mean ± standard deviation "
    "over seeds; all else does not vary by chance. Bold: the lowest of a setting among methods that learn."
)


class Cost(NamedTuple):
    """The costs of a method in a setting: means over seeds by column; NaN where records do not have them."""

    method: str
    setting: str
    """Empty in a study in one setting."""
    figures: dict[str, float]

    @property
    def learns(self) -> bool:
        """True if clients learn or send anything."""
        return any(self.figures[name] > 0 for name in ("parameters learned", "MB in total"))


@lru_cache(maxsize=1)  # one study is written at a time, and asks several times
def of_methods(findings: Findings) -> list[Cost]:
    """The costs of what the study compares, in each setting; of many cells, of those that charts draw."""
    drawn = {name for _, name, _ in charts.notable(findings)[0]}
    return [Cost(name, where, _figures(findings, cell)) for where, name, cell in findings.places
            if name in drawn and findings.compared(cell)]  # fmt: skip


def _figures(findings: Findings, cell: Cell) -> dict[str, float]:
    """The columns of a cell: means over its seeds."""
    seeds = [_of_seed(findings.row(cell).history(seed)) for seed in findings.seeds(cell)]
    over = {name: aggregate([seed[name] for seed in seeds]) for name in (seeds[0] if seeds else ())}
    return {**{name: each["mean"] for name, each in over.items()}, "rounds std": over["rounds"]["std"]} if over else {}


def _of_seed(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The costs of a seed that ran to the end."""
    last = history[-1]
    shares = [
        record.get("time/train_seconds", math.nan) / (record.get("train/clients", 1) or math.nan) for record in history
    ]
    return {
        **{name: factor * last.get(metric, math.nan) for name, (metric, factor) in _OF_CLIENT.items()},
        "MB in total": value_of(history, TOTAL_BYTES) / 1e6,
        "seconds": median(shares),
        "rounds": _rounds_to(history),
    }


def _rounds_to(history: Sequence[Mapping[str, Any]]) -> float:
    """The first evaluated round with `REACHED` of the final test accuracy; NaN without a round before the last one."""
    tested = [(record["round"], record[TEST]) for record in history if TEST in record]
    if len(tested) < 2:
        return math.nan
    goal = comparable(REACHED * tested[-1][1])
    return next(float(number) for number, value in tested if comparable(value) >= goal)


def frame(findings: Findings) -> pd.DataFrame:
    """The table for other programs: a row for each method and setting, without units in its numbers."""
    rows: list[dict[str, Any]] = [{"method": c.method, "setting": c.setting, **c.figures} for c in of_methods(findings)]
    return pd.DataFrame(rows, columns=pd.Index(["method", "setting", *EXACT, "seconds", "rounds", "rounds std"]))


def table(findings: Findings) -> PageTable:
    """The table, the lowest figure of each setting in bold."""
    costs, rows = of_methods(findings), list[TableRow]()
    several = len({cost.setting for cost in costs}) > 1
    for cost in costs:
        own, fields = cost.figures, [Td(cost.method), *([Td(cost.setting)] if several else [])]
        peers = [other for other in costs if other.setting == cost.setting and other.learns]
        for name in EXACT:
            text = megabytes(1e6 * own[name]) if "MB" in name else figure(own[name], "")
            values = {other.figures[name] for other in peers}
            fields.append(Td(text, bold=len(values) > 1 and cost.learns and own[name] == min(values)))
        fields.append(Td("–" if math.isnan(own["seconds"]) or not cost.learns else f"{own['seconds']:.3g}"))
        rows.append(TableRow([*fields, Td(points(own["rounds"], own["rounds std"], 1))]))
    names = ["method", *(["setting"] if several else [])]
    return PageTable([*names, *EXACT, "seconds", f"rounds to {100 * REACHED:g} %"], rows)


def panel(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """What does each method cost?"""
    written = table(findings)
    return Panel("Costs", [NOTE], tables=[written]) if written.rows else None
