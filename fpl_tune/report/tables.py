"""The main table of a report, in Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fpl_tune.formatting import duration, figure, interval, megabytes, p_value, plus_minus, quantity, short, signed
from fpl_tune.report.facts import Facts
from fpl_tune.study import earlier
from fpl_tune.study.cells import shown


@dataclass(frozen=True)
class Row:
    """One cell as text."""

    number: int
    cells: list[str]
    sort: list[float | str]
    """What the page sorts by, one for each of `cells`."""
    best: bool
    reference: bool


def header(facts: Facts) -> list[str]:
    """Column names of `rows`: name and accuracy first, since a narrow screen shows these alone."""
    metric = quantity(facts.metric, over="")
    versus = f"Δ vs {facts.reference}" if facts.reference is not None else "Δ"
    fields = list(map(short, facts.axes))
    return ["cell", "validation accuracy (%)", f"{metric} ± std", versus, "95 % interval", "verdict", *fields, "status",
            "seeds", "p", "MB", "time", *(quantity(name, over="") for name in _extra(facts))]  # fmt: skip


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


def rows(facts: Facts, tests: pd.DataFrame) -> list[Row]:
    """A row per cell; `tests` is what `significance.against_reference` found."""
    found = []
    tested = tests.to_dict("index")
    for cell in facts.listed:
        row: dict[str, Any] = facts.table.loc[cell.id].to_dict()
        test = tested.get(cell.id, dict.fromkeys(tests.columns, math.nan))
        judged = str(test["verdict"]) if cell.id in tested else "–"
        marks = {"published": facts.published, "earlier run": facts.earlier}
        name = " ".join([facts.name(cell), *(f"({mark})" for mark, cells in marks.items() if cell.id in cells)])
        columns: list[tuple[str, Any]] = [
            (name, cell.number),
            (figure(row["val"], "val/acc_mean"), row["val"]),
            (plus_minus(row["mean"], row["std"], facts.metric), row["mean"]),
            (signed(test["difference"], facts.metric), test["difference"]),
            (interval(test, facts.metric), test["low"]),
            (judged, judged),
            *(_value(row[axis]) for axis in facts.axes),
            (str(row["status"]), str(row["status"])),
            (str(row["n"]), int(row["n"])),
            (p_value(test["p"]), test["p"]),
            (megabytes(row["bytes"]), row["bytes"]),
            (duration(row["seconds"]), row["seconds"]),
            *((figure(row[name], name), row[name]) for name in _extra(facts)),
        ]
        texts, keys = [text for text, _ in columns], [key for _, key in columns]
        found.append(Row(facts.keys[cell.id], texts, keys, cell.id in facts.chosen, facts.is_reference(cell)))
    return found


def note(facts: Facts) -> str:
    """Explains the values of the table."""
    before = earlier.note(facts.store)
    return (
        f"{f'{before}. '.capitalize() if before else ''}"
        f"± is the standard deviation over seeds; {facts.basis}. The best cell (bold) is chosen by validation "
        "accuracy. Δ is paired over seeds, with its 95 % interval; p: paired t over seeds after Holm's correction."
    )


def markdown(facts: Facts, body: Sequence[Row]) -> str:
    """A pipe table, the best cell in bold."""
    lines = [_pipe(header(facts)), _pipe(["---"] * len(header(facts)))]
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


def latex(facts: Facts, body: Sequence[Row]) -> str:
    """A booktabs table, references below a rule, the best cell in bold. Needs \\usepackage{booktabs}."""
    columns = header(facts)
    caption = f"{facts.spec.title or facts.spec.name}. {note(facts)}"
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(caption)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex_text, columns))} \\\\",
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
