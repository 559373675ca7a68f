"""The second section: all cells in a table, which is also written as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis
from fpl_tune.analysis import Ranks
from fpl_tune.core.formatting import (
    counted,
    duration,
    figure,
    megabytes,
    p_value,
    percent,
    plus_minus,
    quantity,
    short,
    signed,
)
from fpl_tune.report import charts
from fpl_tune.report.blocks import Part, Row, Table, Td, plain_table
from fpl_tune.report.charts import Spec
from fpl_tune.report.facts import BASE_NOVEL, Facts, without_data
from fpl_tune.report.reference import Reference, against, judged
from fpl_tune.search.gains import gains
from fpl_tune.study.cells import Cell, label, shown
from fpl_tune.study.results import VAL
from fpl_tune.study.selection import choose

_ALWAYS = 7
"""Columns that are shown though all cells have the same text, besides those of test sets: up to the seeds."""


def cells(facts: Facts, tests: pd.DataFrame) -> Part:
    """Which cell is best, and is it better than the reference?"""
    part = Part(texts=[note(facts)], tables=[table(facts, tests)])
    if apart := tests.attrs["apart"]:
        part.texts.append(f"Not compared: {counted(apart, 'cell')} on other data or partitions.")
    return part


def table(facts: Facts, tests: pd.DataFrame) -> Table:
    """A row per cell: name and accuracy first, since a narrow screen shows these alone.

    Columns after those of test sets are left out where all cells have the same text, or where it is the cell's name.

    Args:
        facts: the study.
        tests: what `reference.against` found.
    """
    tested = tests.to_dict("index")
    lines = [_columns(facts, cell, tested.get(cell.id, {})) for cell in facts.listed]
    columns = [([td.text for _, td in column], column[0][0]) for column in zip(*lines, strict=True)]
    always = _ALWAYS + len(facts.sets)
    kept = [i for i, (texts, _) in enumerate(columns) if i < always or not _says_nothing(texts, columns[0][0])]
    rows = []
    for cell, line in zip(facts.listed, lines, strict=True):
        kind = "best" if cell.id in facts.chosen else "reference" if facts.reference.holds(cell) else ""
        rows.append(Row([line[i][1] for i in kept], kind, facts.keys[cell.id]))
    return Table([columns[i][1] for i in kept], rows, main=True)


def _says_nothing(texts: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether all texts of a column are the same, or the labels of the cells again."""
    same = len(texts) > 1 and len(set(texts)) == 1
    return same or all(text in (name, "–") for text, name in zip(texts, labels, strict=True))


def _columns(facts: Facts, cell: Cell, test: Mapping[Any, Any]) -> list[tuple[str, Td]]:
    """Names and fields of a cell's columns; `test` is its comparison with the reference."""
    row: dict[str, Any] = facts.table.loc[cell.id].to_dict()
    status, wanted = str(row["status"]), len(facts.spec.seed_list())
    name = f"{facts.name(cell)} (published)" if cell.id in facts.published else facts.name(cell)
    gap = judged(facts, test) if test else ["–", "–", "–"]
    beside = [(title(other), Td(figure(row[other], other))) for other in facts.sets]
    return [
        ("cell", Td(name, cell.number)),
        ("validation accuracy (%)", Td(figure(row["val"], VAL))),
        (f"{title(facts.metric)} ± std", Td(plus_minus(row["mean"], row["std"], facts.metric))),
        *zip(_compared_header(facts.reference), map(Td, gap), strict=True),
        ("seeds", Td(str(row["n"]) if row["n"] >= wanted else f"{row['n']} of {wanted}")),
        *beside,
        *((short(axis), Td(_value(row[axis]))) for axis in facts.axes),
        ("status", Td(status)),
        ("MB", Td(megabytes(row["bytes"]))),
        ("time", Td(duration(row["seconds"]), "" if math.isnan(row["seconds"]) else round(row["seconds"], 1))),
        *((title(other), Td(figure(row[other], other))) for other in facts.whole),
    ]


def _compared_header(reference: Reference) -> list[str]:
    return ["Δ" if reference.name is None else f"Δ vs {reference.name}", "95 % interval", "verdict"]


def title(metric: str) -> str:
    """A metric as the title of a column; harmonic means say of what."""
    named = {BASE_NOVEL: "HM(base, novel) (%)", "test/harmonic_mean": "HM(test, base, novel) (%)"}
    return named.get(metric, quantity(metric, over=""))


def _value(value: Any) -> str:
    """A field's value, numbers in three digits."""
    if value is None or value != value:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else shown(value)


def comparisons(facts: Facts, tests: pd.DataFrame) -> dict[str, dict[int, list[str]]]:
    """For every reference that the page offers, the texts of the compared columns by the number of the cell."""
    found = {}
    for name in facts.reference.choices():
        rows = tests if name == facts.reference.name else against(facts, Reference(facts, name))
        found[name] = {facts.keys[str(key)]: judged(facts, row) for key, row in rows.to_dict("index").items()}
    return found


def note(facts: Facts) -> str:
    """Explains the values of the table."""
    width = facts.spec.report.rope
    equal = f" Differences below {width:g} {'point' if width == 1 else 'points'} count as equal (report.rope)."
    return (
        f"± is the standard deviation over seeds; {facts.basis}. The best cell (bold) is chosen by validation "
        "accuracy. Δ is paired over seeds; its 95 % intervals hold for all rows together, and decide the verdict."
        f"{equal if percent(facts.metric) else ''}"
    )


def markdown(facts: Facts, found: Table) -> str:
    """A pipe table, the best cell in bold."""
    rows = [[_bold(row, "**{}**", td.text.replace("|", "\\|")) for td in row.cells] for row in found.rows]
    lines = [f"| {' | '.join(row)} |" for row in (found.header, ["---"] * len(found.header), *rows)]
    return "\n".join([*lines, "", note(facts), ""])


def _bold(row: Row, form: str, text: str) -> str:
    return form.format(text) if row.kind == "best" else text


_LATEX = {"±": r"$\pm$", "–": "--", "“": "``", "”": "''", "×": r"$\times$", "<": r"$<$", ">": r"$>$", "→": r"$\to$",
          "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "∞": r"$\infty$", "−": "$-$", "…": r"\dots{}",
          "²": "$^2$", "·": r"$\cdot$"}  # fmt: skip


def latex_text(text: str) -> str:
    """Text with LaTeX's own characters escaped, and Greek letters and signs as its commands."""
    escaped = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    escaped |= {sign: f"\\{sign}" for sign in "{}$&#%_"} | _LATEX
    return "".join(escaped.get(sign) or _greek(sign) or sign for sign in text)


def _greek(sign: str) -> str:
    """A Greek letter as LaTeX's command; capitals that look Latin are Latin letters; empty for other signs."""
    found = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(sign, ""))
    if found is None:
        return ""
    name = {"LAMDA": "lambda"}.get(found[2], found[2].lower())
    if found[1] == "SMALL":
        return "o" if name == "omicron" else f"$\\{name}$"
    own = ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")
    return (
        f"$\\{name.capitalize()}$" if name in own else {"eta": "H", "rho": "P", "chi": "X"}.get(name, name[0].upper())
    )


def latex(facts: Facts, found: Table) -> str:
    """A booktabs table, references below a rule, the best cell in bold. Needs \\usepackage{booktabs}."""
    numbers = {facts.keys[cell.id] for cell in facts.references}
    parts: list[list[str]] = [[], []]
    for row in found.rows:
        fields = [_bold(row, r"\textbf{{{}}}", latex_text(td.text)) for td in row.cells]
        parts[row.number in numbers].append(f"    {' & '.join(fields)} \\\\")
    return "\n".join([
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(f'{facts.spec.title or facts.spec.name}. {note(facts)}')}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(found.header) - 1)}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex_text, found.header))} \\\\",
        *(line for part in parts if part for line in (r"    \midrule", *part)),
        r"    \bottomrule", r"  \end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def csv(facts: Facts, tests: pd.DataFrame) -> str:
    """All columns of the table and the tests as numbers, shares not percents."""
    named = tests.rename(columns={"low": "difference_low", "high": "difference_high", "clients": "paired_clients",
                                  "seeds": "paired_seeds"})  # fmt: skip
    return facts.table.join(named).to_csv()


def winners(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """So tuned, how do the parts of the axes compare?"""
    parts: dict[str, list[Cell]] = {}
    for cell in facts.listed:
        if cell.role == "trial" and facts.table.loc[cell.id, "status"] == "done":
            parts.setdefault(facts.part(cell), []).append(cell)
    if len(parts) < 2:
        return None
    rows = []
    gained = {gain.best.id: gain for gain in gains(facts.store, facts.rule, facts.metric)}
    for part, trials in parts.items():
        choice = choose(facts.frame, trials, facts.spec, facts.rule)
        if choice is None:
            continue
        cell = choice.cell
        row = facts.table.loc[cell.id]
        gap = signed(tests.loc[cell.id, "difference"], facts.metric) if cell.id in tests.index else "–"
        searched = label({name: value for name, value in cell.varied.items() if name not in facts.gridded})
        mean = plus_minus(row["mean"], row["std"], facts.metric)
        gain = gained.get(cell.id)
        over = signed(gain.gain, facts.metric) if gain and gain.published else "–"
        rows.append([part, figure(row["val"], VAL), mean, gap, over, str(len(trials)), searched])
    text = (
        f"The best trial of each part of the axes by validation accuracy; {facts.basis}. The published point is the "
        "best one by validation of those that the search tried first."
    )
    header = ["", "validation accuracy (%)", f"{title(facts.metric)} ± std", f"Δ vs {facts.reference.name}",
              "Δ vs published", "trials", "found"]  # fmt: skip
    return Part("Best of each search", [text], tables=[plain_table(header, rows)])


def datasets(facts: Facts, tests: pd.DataFrame) -> Part | None:
    """How do the cells rank over data sets?"""
    if len({cell.run.data.name for cell in facts.finished}) < 2 or not percent(facts.metric):
        return None
    rows = [
        (cell.run.data.name, without_data(cell), seed, value)
        for cell in facts.finished
        for seed, value in facts.by_seed(cell, facts.metric).items()
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["dataset", "cell", "seed", "value"]))
    if frame["cell"].nunique() < 2:
        return None
    if frame.duplicated(["dataset", "cell", "seed"]).any():
        return None
    ranks = analysis.mean_ranks(frame)
    part = Part("Over data sets", [f"Mean ranks over {counted(ranks.datasets, 'data set')}."])
    if np.isfinite(ranks.critical_difference):
        part.texts = [
            f"Mean ranks over {counted(ranks.datasets, 'data set')}; ranks that differ by less than "
            f"{ranks.critical_difference:.2f} (Nemenyi, 5 %) are not told apart and are joined by a bar; Friedman's "
            f"p = {p_value(ranks.p)}."
        ]
        part.charts["ranks"] = critical_difference(ranks), "The best is on top."
    part.texts += [f"Limits: {ranks.note}."] if ranks.note else []
    wide = frame.pivot_table(index="dataset", columns="cell", values="value")
    means: dict[str, float] = wide.mean().to_dict()
    named = [[str(name), f"{rank:.2f}", figure(means[str(name)], facts.metric)] for name, rank in ranks.ranks.items()]
    part.tables = [plain_table(["cell", "mean rank", "mean over data sets (%)"], named)]
    return part


def critical_difference(found: Ranks) -> Spec:
    """Mean ranks over data sets, the best on top; bars join the cells whose ranks do not differ (Demsar 2006)."""
    rows = [{"name": str(name), "rank": float(rank)} for name, rank in found.ranks.items()]
    rank = {row["name"]: row["rank"] for row in rows}
    groups = [
        {"first": rank[group[0]], "last": rank[group[-1]], "name": name} for group in found.groups for name in group
    ]
    x = charts.number("rank", f"mean rank over {found.datasets} data sets (1 is the best)", ".2~f")
    y = charts.names("name", None, list(rank))
    bar = {"x": {**x, "field": "first"}, "x2": {"field": "last"}, "y": y}
    return charts.chart(
        rows,
        charts.layer("point", {"x": x, "y": y, "tooltip": charts.tips(y, x)}, size=80),
        charts.layer("rule", bar, groups, strokeWidth=5, color="#d1582a", opacity=0.55),
        title=f"critical difference {found.critical_difference:.2f}",
        height={"step": 24},
    )
