"""The main table of a report, in Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fpl_tune.formatting import duration, figure, interval, megabytes, p_value, plus_minus, quantity, short, signed
from fpl_tune.report.facts import Facts
from fpl_tune.study import earlier
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import VAL


@dataclass(frozen=True)
class Row:
    """One cell as text."""

    number: int
    cells: list[str]
    sort: list[float | str]
    """What the page sorts by, one for each of `cells`."""
    best: bool
    reference: bool


def _extra(facts: Facts) -> list[str]:
    """Metrics of methods that have a column: those of a part, such as a domain, have none."""
    return [name for name in facts.extra if name.count("/") == 1]


def _value(value: Any) -> tuple[str, float | str]:
    """A field's value in three digits, and its key of sorting."""
    if value is None or value != value:
        return "–", ""
    if isinstance(value, float):
        return f"{value:.3g}", value
    return shown(value), value if isinstance(value, int) else shown(value)


def rows(facts: Facts, tests: pd.DataFrame) -> tuple[list[str], list[Row]]:
    """Column names and a row per cell: name and accuracy first, since a narrow screen shows these alone.

    Columns after these are left out where all cells have the same text, or where it is the cell's name.

    Args:
        facts: the study.
        tests: what `significance.against_reference` found.
    """
    tested = tests.to_dict("index")
    lines = [_columns(facts, cell, tested.get(cell.id)) for cell in facts.listed]
    columns = list(zip(*lines, strict=True))
    labels = [text for _, text, _ in columns[0]] if columns else []
    kept = [
        i for i, column in enumerate(columns) if i < 3 or not _says_nothing([text for _, text, _ in column], labels)
    ]
    return [columns[i][0][0] for i in kept], [
        Row(facts.keys[cell.id], [line[i][1] for i in kept], [line[i][2] for i in kept], cell.id in facts.chosen,
            facts.is_reference(cell))
        for cell, line in zip(facts.listed, lines, strict=True)
    ]  # fmt: skip


def _says_nothing(texts: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether all texts of a column are the same, or the labels of the cells again."""
    same = len(texts) > 1 and len(set(texts)) == 1
    return same or all(text in (label, "–") for text, label in zip(texts, labels, strict=True))


def _columns(facts: Facts, cell: Cell, test: Mapping[Hashable, Any] | None) -> list[tuple[str, str, Any]]:
    """Name, text and key of sorting of a cell's columns; `test` is its comparison with the reference."""
    row: dict[str, Any] = facts.table.loc[cell.id].to_dict()
    judged = str(test["verdict"]) if test else "–"
    test = test or dict.fromkeys(("difference", "low", "high", "p"), math.nan)
    marks = {"published": facts.published, "earlier run": facts.earlier}
    name = " ".join([facts.name(cell), *(f"({mark})" for mark, cells in marks.items() if cell.id in cells)])
    versus = f"Δ vs {facts.reference}" if facts.reference is not None else "Δ"
    return [
        ("cell", name, cell.number),
        ("validation accuracy (%)", figure(row["val"], VAL), row["val"]),
        (f"{quantity(facts.metric, over='')} ± std", plus_minus(row["mean"], row["std"], facts.metric), row["mean"]),
        (versus, signed(test["difference"], facts.metric), test["difference"]),
        ("95 % interval", interval({"low": test["low"], "high": test["high"]}, facts.metric), test["low"]),
        ("verdict", judged, judged),
        *((short(axis), *_value(row[axis])) for axis in facts.axes),
        ("status", str(row["status"]), str(row["status"])),
        ("seeds", str(row["n"]), int(row["n"])),
        ("p", p_value(test["p"]), test["p"]),
        ("MB", megabytes(row["bytes"]), row["bytes"]),
        ("time", duration(row["seconds"]), row["seconds"]),
        *((quantity(name, over=""), figure(row[name], name), row[name]) for name in _extra(facts)),
    ]


def note(facts: Facts) -> str:
    """Explains the values of the table."""
    before = earlier.note(facts.store)
    return (
        f"{f'{before}. '.capitalize() if before else ''}"
        f"± is the standard deviation over seeds; {facts.basis}. The best cell (bold) is chosen by validation "
        "accuracy. Δ is paired over seeds, with its 95 % interval; p: paired t over seeds after Holm's correction."
    )


def markdown(facts: Facts, header: Sequence[str], body: Sequence[Row]) -> str:
    """A pipe table, the best cell in bold."""
    lines = [_pipe(header), _pipe(["---"] * len(header))]
    lines += [_pipe([f"**{c}**" if row.best else c for c in map(_escape_pipe, row.cells)]) for row in body]
    return "\n".join([*lines, "", note(facts), ""])


def _pipe(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_pipe(text: str) -> str:
    return text.replace("|", "\\|")


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


def latex(facts: Facts, header: Sequence[str], body: Sequence[Row]) -> str:
    """A booktabs table, references below a rule, the best cell in bold. Needs \\usepackage{booktabs}."""
    caption = f"{facts.spec.title or facts.spec.name}. {note(facts)}"
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(caption)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex_text, header))} \\\\",
        r"    \midrule",
    ]
    references = {facts.keys[cell.id] for cell in facts.references}
    own = [row for row in body if row.number not in references]
    below = [row for row in body if row.number in references]
    for part in (own, below):
        if part is below and own and below:
            lines.append(r"    \midrule")
        for row in part:
            cells = [rf"\textbf{{{latex_text(c)}}}" if row.best else latex_text(c) for c in row.cells]
            lines.append(f"    {' & '.join(cells)} \\\\")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def csv(facts: Facts, tests: pd.DataFrame) -> str:
    """All columns of the table and the tests as numbers, shares not percents."""
    named = tests.rename(columns={"low": "difference_low", "high": "difference_high", "clients": "paired_clients",
                                  "seeds": "paired_seeds"})  # fmt: skip
    return facts.table.join(named).to_csv()
