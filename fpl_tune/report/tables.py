"""The main table of a report, in Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fpl_tune.core.formatting import duration, figure, interval, megabytes, plus_minus, quantity, short, signed
from fpl_tune.report.blocks import Row, Table, Td
from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import VAL


def _value(value: Any) -> tuple[str, float | str]:
    """A field's value in three digits, and its key of sorting."""
    if value is None or value != value:
        return "–", ""
    if isinstance(value, float):
        return f"{value:.3g}", value
    return shown(value), value if isinstance(value, int) else shown(value)


def main(facts: Facts, tests: pd.DataFrame) -> Table:
    """A row per cell: name and accuracy first, since a narrow screen shows these alone.

    Columns after these are left out where all cells have the same text, or where it is the cell's name.

    Args:
        facts: the study.
        tests: what `significance.against_reference` found.
    """
    tested = tests.to_dict("index")
    lines = [_columns(facts, cell, tested.get(cell.id, {})) for cell in facts.listed]
    columns = [([td.text for _, td in column], column[0][0]) for column in zip(*lines, strict=True)]
    kept = [i for i, (texts, _) in enumerate(columns) if i < 3 or not _says_nothing(texts, columns[0][0])]
    rows = []
    for cell, line in zip(facts.listed, lines, strict=True):
        kind = "best" if cell.id in facts.chosen else "reference" if facts.is_reference(cell) else ""
        rows.append(Row([line[i][1] for i in kept], kind, facts.keys[cell.id]))
    return Table([columns[i][1] for i in kept], rows, sortable=True)


def _says_nothing(texts: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether all texts of a column are the same, or the labels of the cells again."""
    same = len(texts) > 1 and len(set(texts)) == 1
    return same or all(text in (label, "–") for text, label in zip(texts, labels, strict=True))


def _columns(facts: Facts, cell: Cell, test: Mapping[Any, Any]) -> list[tuple[str, Td]]:
    """Names and fields of a cell's columns; `test` is its comparison with the reference."""
    row: dict[str, Any] = facts.table.loc[cell.id].to_dict()
    gap, low = (float(test.get(name, math.nan)) for name in ("difference", "low"))
    judged, status = str(test.get("verdict", "–")), str(row["status"])
    marks = {"published": facts.published, "earlier run": facts.earlier}
    name = " ".join([facts.name(cell), *(f"({mark})" for mark, cells in marks.items() if cell.id in cells)])
    found = [
        ("cell", name, cell.number),
        ("validation accuracy (%)", figure(row["val"], VAL), row["val"]),
        (f"{quantity(facts.metric, over='')} ± std", plus_minus(row["mean"], row["std"], facts.metric), row["mean"]),
        (f"Δ vs {facts.reference}" if facts.reference is not None else "Δ", signed(gap, facts.metric), gap),
        ("95 % interval", interval(test, facts.metric) if test else "–", low),
        ("verdict", judged, judged),
        *((short(axis), *_value(row[axis])) for axis in facts.axes),
        ("status", status, status),
        ("seeds", str(row["n"]), int(row["n"])),
        ("MB", megabytes(row["bytes"]), row["bytes"]),
        ("time", duration(row["seconds"]), row["seconds"]),
        *((quantity(name, over=""), figure(row[name], name), row[name]) for name in facts.whole),
    ]
    return [(name, Td(text, "" if key != key else key)) for name, text, key in found]


def note(facts: Facts) -> str:
    """Explains the values of the table."""
    before = facts.store.earlier_note()
    return (
        f"{f'{before}. '.capitalize() if before else ''}"
        f"± is the standard deviation over seeds; {facts.basis}. The best cell (bold) is chosen by validation "
        "accuracy. Δ is paired over seeds, with its 95 % interval."
    )


def markdown(facts: Facts, table: Table) -> str:
    """A pipe table, the best cell in bold."""
    rows = [[_bold(row, "**{}**", td.text.replace("|", "\\|")) for td in row.cells] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in (table.header, ["---"] * len(table.header), *rows)]
    return "\n".join([*lines, "", note(facts), ""])


def _bold(row: Row, form: str, text: str) -> str:
    return form.format(text) if row.kind == "best" else text


_LATEX: list[tuple[str, str]] = [
    ("±", r"$\pm$"), ("Δ", r"$\Delta$"), ("–", "--"), ("“", "``"), ("”", "''"), ("λ", r"$\lambda$"), ("μ", r"$\mu$"),
    ("α", r"$\alpha$"), ("×", r"$\times$"), ("<", r"$<$"), (">", r"$>$"),
]  # fmt: skip


def latex_text(text: str) -> str:
    """Text with LaTeX's own characters escaped."""
    escape: Callable[[re.Match[str]], str] = lambda m: (  # noqa: E731
        {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}.get(m[0], "\\" + m[0])
    )
    text = re.sub(r"[\\{}$&#%_~^]", escape, text)
    for sign, code in _LATEX:
        text = text.replace(sign, code)
    return text


def latex(facts: Facts, table: Table) -> str:
    """A booktabs table, references below a rule, the best cell in bold. Needs \\usepackage{booktabs}."""
    numbers = {facts.keys[cell.id] for cell in facts.references}
    parts: list[list[str]] = [[], []]
    for row in table.rows:
        cells = [_bold(row, r"\textbf{{{}}}", latex_text(td.text)) for td in row.cells]
        parts[row.number in numbers].append(f"    {' & '.join(cells)} \\\\")
    return "\n".join([
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(f'{facts.spec.title or facts.spec.name}. {note(facts)}')}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex_text, table.header))} \\\\",
        *(line for part in parts if part for line in (r"    \midrule", *part)),
        r"    \bottomrule", r"  \end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def csv(facts: Facts, tests: pd.DataFrame) -> str:
    """All columns of the table and the tests as numbers, shares not percents."""
    named = tests.rename(columns={"low": "difference_low", "high": "difference_high", "clients": "paired_clients",
                                  "seeds": "paired_seeds"})  # fmt: skip
    return facts.table.join(named).to_csv()
