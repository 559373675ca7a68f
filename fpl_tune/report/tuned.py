"""Tuned methods by settings: the table that papers print, the chosen values, the gains, and one method against each.

Every method is tuned in every setting with the same budget, and measured on seeds that chose nothing. One whose search
ended with less is marked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import (
    counted,
    joined,
    percent,
    plus_minus,
    quantity,
    some,
    symbol,
    upper,
    words,
)
from fpl_tune.core.metrics import comparable
from fpl_tune.findings.choice import choose, sign
from fpl_tune.findings.comparisons import Comparisons, compare_pairs, turned
from fpl_tune.findings.crossed import Crossed
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.searches import Searched
from fpl_tune.report import costs, sentences
from fpl_tune.report.panels import FIXED, PageTable, Panel, TableRow, Td, judged_text, plain_table
from fpl_tune.search.halving import limit, used
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import aggregate
from fpl_tune.study.standing import CellState

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch
    from fpl_tune.search.space import Param

EDGE = 0.05
"""Share of a range, on its own scale, within which a chosen value is at an end of the range."""
_MEAN = "mean"
"""Title of the column of means over settings."""


class Entry(NamedTuple):
    """An entry of the table: a method in a setting, or its mean over settings."""

    mean: float
    std: float
    seeds: int
    letters: str
    """Methods of a column that share a letter do not differ significantly; empty: not tested."""
    best: bool
    """True if validation chooses it among the tuned methods of the column."""
    short: bool = False
    """True if its search has used less of the budget than others."""

    @property
    def marks(self) -> str:
        """The letters, and ‡ if the search has used less of the budget than others."""
        return f"{self.letters}{'‡' * self.short}"

    def text(self, metric: str) -> str:
        """`97.61 ± 0.11 ab`."""
        return f"{plus_minus(self.mean, self.std, metric)} {self.marks}".strip()


def _crossed(findings: Findings) -> Crossed:
    """The rows and columns."""
    assert findings.tuned_table is not None, "a study without several searches has no such table"
    return findings.tuned_table


def entries(findings: Findings) -> dict[str, dict[str, Entry]]:
    """The table: method -> title of a column -> entry. With several settings, the last column is their mean."""
    crossed = _crossed(findings)
    best = {column: _best(findings, column) if findings.sampled else set[str]() for column in crossed.columns}
    fewer = _short(findings)
    short = {cell.id for search, cell in findings.tuned if search.label in fewer}
    table = {
        method: {
            column: Entry(*findings.spread(cell, findings.metric), len(findings.seeds(cell)),
                          findings.letters.get(cell.id, ""), method in crossed.own and cell.id in best[column],
                          method in crossed.own and cell.id in short)
            for column, cell in row.items()
            if _measured(findings, cell)
        }
        for method, row in crossed.rows.items()
    }  # fmt: skip
    if len(crossed.columns) > 1:
        letters, groups = _letters_over_settings(findings), _groups(findings)
        for method, cells in groups.items():
            by_cell = [findings.by_seed(cell, findings.metric) for cell in cells]
            seeds = set[int].intersection(*({*own} for own in by_cell))
            values = aggregate([float(np.mean([own[seed] for own in by_cell])) for seed in seeds], findings.metric)
            chosen = method in crossed.own and bool(findings.bold) and {c.id for c in cells} == {*findings.chosen}
            tied, marked = letters.get(method, ""), any(entry.short for entry in table[method].values())
            table[method][_MEAN] = Entry(values["mean"], values["std"], len(seeds), tied, chosen, marked)
    return table


def _measured(findings: Findings, cell: Cell) -> bool:
    """True if a cell is compared with others and has the metric."""
    return findings.compared(cell) and bool(findings.by_seed(cell, findings.metric))


def _best(findings: Findings, column: str) -> set[str]:
    """Ids of the tuned cells of a column that the objective chooses there."""
    tuned = {cell.id for _, cell in findings.tuned}
    here = [row[column] for row in _crossed(findings).rows.values() if column in row and row[column].id in tuned]
    choice = choose(map(findings.row, here), findings.rule, findings.table.study)
    return {cell.id for cell in choice.cells} if choice is not None else set()


def best(findings: Findings) -> set[str]:
    """Ids of the tuned cells that the objective chooses in their settings."""
    return set[str]().union(*(_best(findings, column) for column in _crossed(findings).columns))


def _groups(findings: Findings) -> dict[str, list[Cell]]:
    """The cells of each method that has results in all settings, in the order of the columns."""
    columns = _crossed(findings).columns
    whole = {m: [row[c] for c in columns] for m, row in _crossed(findings).rows.items() if row.keys() == {*columns}}
    return {method: cells for method, cells in whole.items() if all(_measured(findings, cell) for cell in cells)}


def _over_settings(findings: Findings) -> pd.DataFrame:
    """The metric by method and seed, as means over settings."""
    return analysis.mean_over(findings.values, {m: [cell.id for cell in own] for m, own in _groups(findings).items()})


def _letters_over_settings(findings: Findings) -> dict[str, str]:
    frame = _over_settings(findings)
    if not findings.sampled or frame["cell"].nunique() < 2 or frame["seed"].nunique() < 2:
        return {}
    return analysis.letters(frame, level=findings.level, **findings.test_options).to_dict()


def column_titles(findings: Findings) -> list[str]:
    """Titles of the table's columns: the settings and, if there are several, their mean."""
    settings = _crossed(findings).columns
    return [*settings, _MEAN] if len(settings) > 1 else settings


def table(findings: Findings) -> PageTable:
    """The table of tuned methods by settings, the best method of each setting in bold."""
    shown_columns = column_titles(findings)
    titles = shown_columns if len(shown_columns) > 1 else [quantity(findings.metric, over="")]
    body = []
    for method, row in entries(findings).items():
        cells = [row.get(column) for column in shown_columns]
        texts = [Td("–") if one is None else Td(one.text(findings.metric), one.mean, one.best) for one in cells]
        body.append(TableRow([Td(method), *texts]))
    return PageTable(["method", *titles], body)


def frame(findings: Findings) -> pd.DataFrame:
    """The table for other programs: a row for each method; for each setting mean, standard deviation, number of seeds,
    letters, best (True if validation chooses it) and short (True if its search used less of the budget than others).
    """
    rows = []
    for method, row in entries(findings).items():
        own: dict[str, Any] = {"method": method}
        for column, entry in row.items():
            setting = "over settings" if column == _MEAN else column
            own |= {f"{setting} {name}".strip(): value for name, value in entry._asdict().items()}
        rows.append(own)
    return pd.DataFrame(rows).set_index("method")


def _spent(findings: Findings) -> str:
    """The costs of the searches in full trials: `5.2 to 6.5`."""
    last = [max((findings.costs.get(cell.id, 0.0) for cell in each.trials), default=0.0) for each in findings.searches]
    return " to ".join(dict.fromkeys([f"{min(last):.3g}", f"{max(last):.3g}"]))


def _short(findings: Findings) -> dict[str, float]:
    """The searches that have used less of the budget than others, by label, with their trials or full trials."""
    search, rows = findings.spec.search, {each.label: map(findings.row, each.trials) for each in findings.searches}
    over = {label: [row for row in own if row.state is not CellState.QUEUED] for label, own in rows.items()}
    amounts = {label: used(own, search) for label, own in over.items()}
    most = min(limit(search), max(amounts.values()))
    return {label: amount for label, amount in amounts.items() if amount < most}


def note(findings: Findings, *, bold: str = "Bold") -> str:
    """Seeds, budget and rules behind the table, in one line; `bold` is how the best method of a column is marked."""
    search, confirm = findings.spec.search, findings.table.design.confirm
    budget = counted(search.trials, "trial") if search.trials else f"the cost of {limit(search):g} full trials"
    short = [f"{label} ({amount:.3g})" for label, amount in _short(findings).items()]
    where, chooses = "in every setting", f"{findings.chosen_on} chooses"
    if search.across:
        where, chooses = "once for all settings", f"the mean of {findings.chosen_on} over settings chooses"
    text = f"Every method is tuned {where} with {'at most' if short else 'the same budget:'} {budget} ({chooses}; "
    text += f"spent: {_spent(findings)} full trials)"
    if findings.confirmed:
        text += f" and measured on {counted(len(confirm), 'fresh seed')}"
    elif confirm:
        text += "; the values are those of the search so far, and optimistic, since the same seeds select the point"
    else:
        text += " and measured on the seeds that chose it (search.confirm=0), so the values are optimistic"
    shown_as = "mean ± standard deviation over seeds" if findings.sampled else "mean over seeds"
    text += f". {upper(quantity(findings.metric))}, {shown_as}, rule “{findings.rule}”. "
    text += f"{bold}: best on {findings.chosen_on}." if findings.sampled else FIXED
    text += f" ‡: the search has used less of the budget: {some(short, 4)}." if short else ""
    if findings.letters:
        text += " Methods of a column that share a letter do not differ significantly (all pairs are compared)."
    return f"{text} {findings.notes}".rstrip()


# -- chosen values -------------------------------------------------------------------------------------------


def marked(chosen: PageTable) -> str:
    """Explains the marks of the chosen values; empty if none is marked."""
    marks = any("†" in td.text for row in chosen.rows for td in row.cells)
    return f"† lies within {100 * EDGE:g} % of an end of its range, which can be wider." * marks


@lru_cache(maxsize=1)  # whether a range can be wider is found by composing runs
def values(findings: Findings) -> PageTable:
    """The chosen values: a row for each method and field, a column for each setting; † marks the end of a range."""
    crossed, parts = _crossed(findings), _parts(findings)
    rows = []
    for method in _searched(findings):
        cells = map(crossed.rows[method].get, crossed.columns)
        chosen = [_chosen(findings, cell, parts) if cell is not None else {} for cell in cells]
        for i, name in enumerate(dict.fromkeys(name for values in chosen for name in values)):
            rows.append([method if i == 0 else "", name, *(values.get(name, "–") for values in chosen)])
    return plain_table(["method", "field", *(column or "chosen value" for column in crossed.columns)], rows)


def _searched(findings: Findings) -> list[str]:
    """The methods that are tuned: all rows but those of references."""
    return _crossed(findings).rows_of(cell.id for _, cell in findings.tuned)


def _chosen(findings: Findings, cell: Cell, parts: Mapping[str, CellSearch]) -> dict[str, str]:
    """The chosen values of a cell as texts, by the titles of the fields."""
    params, edges = cell.suggestion.params if cell.suggestion else {}, _edges(cell, parts)
    own = {param.name: param for param in parts[cell.id].space.params} if cell.id in parts else {}
    searched = {name: v for name, v in params.items() if name not in own or _varies(own[name])}
    return {findings.names.title(name): f"{shown(value, 3)}{'†' * (name in edges)}" for name, value in searched.items()}


def _varies(param: Param) -> bool:
    """False for a field that the study has fixed by a single choice."""
    return len({*param.ends}) > 1


@lru_cache(maxsize=1)  # one study is written at a time, and asks several times
def searched(findings: Findings) -> list[tuple[Searched, CellSearch]]:
    """The searches with their spaces; empty if a method cannot be imported, as in a folder that came without it."""
    from fpl_tune.search.search import stored_searches  # with Optuna

    try:
        parts = stored_searches(findings.spec, findings.table.effective)
    except ConfigError:
        return []
    return list(zip(findings.searches, parts, strict=True))


def _parts(findings: Findings) -> dict[str, CellSearch]:
    """The search of each tuned cell, by its id."""
    return {search.tuned.id: part for search, part in searched(findings) if search.tuned is not None}


def _edges(cell: Cell, parts: Mapping[str, CellSearch]) -> list[str]:
    """The searched fields whose chosen value is at an end of its range that can be moved."""
    params = cell.suggestion.params if cell.suggestion else {}
    if (part := parts.get(cell.id)) is None:
        return []
    own = {param.name: param for param in part.space.params}
    return [n for n, v in params.items() if n in own and at_edge(own[n], v) and part.widens(params, own[n])]


def at_edge(param: Param, value: Any) -> bool:
    """True if a value lies within `EDGE` of an end of its range, on the scale that is searched; of choices, if they are
    at least three numbers and it is the first or the last."""
    from optuna.distributions import CategoricalDistribution

    ends = sorted(v for v in param.ends if isinstance(v, int | float) and not isinstance(v, bool))
    if not isinstance(value, int | float):
        return False
    if isinstance(param.distribution, CategoricalDistribution):
        return len(ends) == len(param.ends) > 2 and value in (ends[0], ends[-1])
    scale = math.log if param.distribution.log else float
    low, high, at = (scale(number) for number in (*ends, value))
    return min(at - low, high - at) <= EDGE * (high - low)


def at_edges(findings: Findings) -> str:
    """Which fields were chosen at an end of their range; empty if none was."""
    parts = _parts(findings)
    named = list(
        dict.fromkeys(symbol(findings.names.title(n)) for _, cell in findings.tuned for n in _edges(cell, parts))
    )
    if not named:
        return ""
    ends = "an end of its range" if len(named) == 1 else "ends of their ranges"
    return f"Chosen at {ends}: {joined(named)}. Widen search.space to see whether more can be gained."


# -- comparisons ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def gains(findings: Findings) -> PageTable | None:
    """The gain of tuning over each method's published or default setting, in each setting; None without any."""
    if not findings.sampled:
        return None
    crossed = _crossed(findings)
    published = {search.tuned.id: search.published for search in findings.searches if search.tuned is not None}
    rows: dict[str, list[str]] = {method: [method] for method in _searched(findings)}
    for column in crossed.columns:
        cells = {method: crossed.rows[method].get(column) for method in rows}
        pairs = {
            cell.id: start.id for cell in cells.values() if cell is not None
            and (start := published[cell.id]) is not None and start.id != cell.id
            and _measured(findings, cell) and _measured(findings, start)
        }  # fmt: skip
        tests = compare_pairs(findings, pairs).to_dict("index") if pairs else {}
        for method, cell in cells.items():
            none = f"{findings.first_point(cell)} chosen" if cell is not None and cell.published else "–"
            test = None if cell is None else tests.get(cell.id)
            rows[method].append(none if test is None else judged_text(findings.metric, test))
    judged_rows = [row for row in rows.values() if {*row[1:]} != {"–"}]
    titles = [column or "gain" for column in crossed.columns]
    return plain_table(["gain of tuning", *titles], judged_rows) if judged_rows else None


def chosen_tables(findings: Findings) -> list[PageTable]:
    """The chosen values, and what tuning gained if there is something to compare."""
    gain = gains(findings)
    return [values(findings), *([gain] if gain is not None else [])]


def gained(findings: Findings) -> str:
    """Explains the table of gains; empty if there is none."""
    if gains(findings) is None:
        return ""
    points = ", in points" if percent(findings.metric) else ""
    return (
        f"The gain of tuning is that over {_first(findings)}{points}, with {findings.confidence} intervals that hold "
        "together in each column."
    )


def _first(findings: Findings) -> str:
    """The settings that gains refer to, in words."""
    by_word: dict[str, list[str]] = {"published": [], "default": []}
    for search, cell in findings.tuned:
        by_word[findings.first_point(search.published or cell)].append(cell.id)
    own = _crossed(findings).rows_of(by_word["default"])
    if not own or not by_word["published"]:
        return f"the {'default' if own else 'published'} setting"
    return f"the published setting, or the default one of {some(own, 3)}"


class Against(NamedTuple):
    """Comparisons of one method with each of the others."""

    method: str
    by_setting: dict[str, dict[str, Mapping[Any, Any]]]
    """Other method -> setting -> comparison; the method less the other."""
    over_settings: dict[str, Mapping[Any, Any]]
    """Other method -> comparison of the means over settings; empty for a study in one setting."""
    chosen: bool
    """True if the method is compared because it was chosen as the best, which its intervals allow for."""


@lru_cache(maxsize=1)
def against(findings: Findings, asked: str | None) -> Against | None:
    """Compares one method with each of the others, in each setting and over settings.

    Args:
        findings: the study.
        asked: the method: the study's `report.reference`, or the page's choice. If it is none of the searched methods,
            it is the method that is chosen by validation.
    """
    crossed = _crossed(findings)
    chosen = crossed.rows_of(findings.chosen)
    method = asked if asked in _searched(findings) else next(iter(chosen), None)
    if method is None or len(crossed.rows) < 2:
        return None
    bias = method in chosen[:1] and method != findings.spec.report.reference

    def each_other(frame: pd.DataFrame, cells: Mapping[str, str]) -> dict[str, Mapping[Any, Any]]:
        """Compares the method's cell with those of the others that share a seed with it."""
        seeds: dict[str, set[int]] = {str(key): {*own} for key, own in frame.groupby("cell")["seed"]}
        mine = cells.get(method, "")
        others = {m: key for m, key in cells.items() if m != method and seeds.get(key, set()) & seeds.get(mine, set())}
        if not others:
            return {}
        tests = compare_pairs(findings, [(key, mine) for key in others.values()], frame, chosen=bias)
        pairs = zip(others, tests.to_dict("records"), strict=True)
        return {other: turned(test) for other, test in pairs if test["seeds"]}

    by_setting: dict[str, dict[str, Mapping[Any, Any]]] = {}
    for column in crossed.columns:  # by column, as the letters are
        cells = {name: row[column].id for name, row in crossed.rows.items() if column in row}
        for other, test in each_other(findings.values, cells).items():
            by_setting.setdefault(other, {})[column] = test
    over = {name: name for name in _groups(findings)} if len(crossed.columns) > 1 else {}
    return Against(method, by_setting, each_other(_over_settings(findings), over) if over else {}, bias)


def panel(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which tuned method is best, in which setting, and what does tuning gain?"""
    if findings.tuned_table is None:
        return None
    return Panel("Tuned methods", [note(findings)], tables=[table(findings)])


def details(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """Which values were chosen, and what did tuning gain?"""
    if findings.tuned_table is None:
        return None
    tables = chosen_tables(findings)
    text = f"The values that {findings.chosen_on} chose. {marked(tables[0])}".strip()
    return Panel("Chosen values", [text, *costs.texts(findings), *filter(None, [gained(findings)])], tables=tables)


def each(findings: Findings, comparisons: Comparisons) -> Panel | None:
    """How does one tuned method compare with each of the others?"""
    if findings.tuned_table is None or not findings.sampled:
        return None
    compared = against(findings, comparisons.reference.asked)
    if compared is None or not compared.by_setting:
        return None
    columns = findings.tuned_table.columns
    rows = [
        [other, *(judged_text(findings.metric, tests.get(c)) for c in columns),
         *([judged_text(findings.metric, compared.over_settings.get(other))] if len(columns) > 1 else [])]
        for other, tests in compared.by_setting.items()
    ]  # fmt: skip
    text = (
        f"{compared.method} less each of the others on the same seeds; {findings.confidence} intervals hold together "
        "in each column. They are fewer than all pairs, so that they can decide where letters do not."
    )
    if compared.chosen:
        text += f" They allow for the choice of {compared.method} among the methods by {findings.chosen_on}."
    header = ["against", *(c or "difference" for c in columns), *([_MEAN] if len(columns) > 1 else [])]
    return Panel(f"{compared.method} against each", [text], tables=[plain_table(header, rows)])


def sentence(findings: Findings, asked: str | None) -> str:
    """The best tuned method on validation, against the next; or a method that is asked for, against the best."""
    columns, rows = _crossed(findings).columns, entries(findings)
    column = _MEAN if len(columns) > 1 else columns[0]
    text, compared = _winner(findings, rows, column), against(findings, asked)
    if compared is None:
        return f"{text}."
    tests = compared.over_settings or {other: by[column] for other, by in compared.by_setting.items() if column in by}
    tuned_too = [method for method in _ranked(findings) if method in tests]
    if not tests:
        return f"{text}."
    best, other = compared.method in _crossed(findings).rows_of(findings.chosen), next(iter([*tuned_too, *tests]))
    name = f"{other}, the next on {findings.chosen_on}" if best and tuned_too else other
    against_it = sentences.differences(findings, {name: tests[other]}, rows[compared.method][column].seeds)
    return f"{text}; {'' if best else f'{compared.method} has '}{against_it}."


def _ranked(findings: Findings) -> list[str]:
    """The tuned methods by the objective, as means over their settings, the best first."""
    rows = {method: row.values() for method, row in _crossed(findings).rows.items() if method in _searched(findings)}
    values = {m: np.mean([comparable(findings.objective(cell)) for cell in cells]) for m, cells in rows.items()}
    return sorted(values, key=lambda method: -sign(findings.objectives[0]) * values[method])


def counts(findings: Findings, comparisons: Comparisons) -> str:
    """The verdicts on one method against each of the others, in each setting; empty if nothing is compared.

    Example: `pfedmoap against each of the others: 3 better in disjoint; 2 better, 1 undecided in Dirichlet.`
    """
    compared = against(findings, comparisons.reference.asked)
    if compared is None or not compared.by_setting:
        return ""
    parts = []
    for column in _crossed(findings).columns:
        verdicts = Counter(str(tests[column]["verdict"]) for tests in compared.by_setting.values() if column in tests)
        where = f" in {column}" if column else ""
        parts += [f"{', '.join(f'{n} {word}' for word, n in verdicts.most_common())}{where}"] if verdicts else []
    return f"{compared.method} against each of the others: {'; '.join(parts)}."


def _winner(findings: Findings, rows: Mapping[str, Mapping[str, Entry]], column: str) -> str:
    crossed, on = _crossed(findings), sentences.of_search(findings)
    columns, chosen = crossed.columns, {*findings.chosen}
    winners = {m: [c for c in columns if c in crossed.rows[m] and crossed.rows[m][c].id in chosen] for m in crossed.own}
    best = [method for method, where in winners.items() if len(where) == len(crossed.rows[method])]
    if len(best) == 1 and column in rows[best[0]]:
        entry = rows[best[0]][column]
        several = len(findings.searches) > len(columns)
        if several and sum(column in rows[method] for method in crossed.own) == 1:  # which is no comparison
            where, mean_of = (f" in all {len(columns)} settings", "a mean of ") if len(columns) > 1 else ("", "")
            value = sentences.reached(findings, entry.mean, entry.std, on)
            return f"Tuned, {best[0]} alone has results{where}: {mean_of}{value}"
        return f"Tuned, {sentences.best(findings, best[0], entry.mean, entry.std, on, len(columns))}"
    by_method = ", ".join(f"{method} ({', '.join(where)})" for method, where in winners.items() if where)
    return f"Tuned in each setting, best on {findings.chosen_on}: {by_method}; {words(findings.metric)} {on}"
