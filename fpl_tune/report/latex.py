"""The table of a study in LaTeX (booktabs): methods by settings as papers print them, else the columns of the page."""

from __future__ import annotations

from collections.abc import Mapping
from html.entities import codepoint2name
from typing import NamedTuple

from fpl_tune.core.formatting import figure, percent, plus_minus, quantity
from fpl_tune.report.panels import PageTable
from fpl_tune.report.table import note
from fpl_tune.study.cells import Cell, axes_of, is_setting, label, shown
from fpl_tune.study.comparisons import Comparisons
from fpl_tune.study.findings import Findings
from fpl_tune.study.selection import sign

_LATEX = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "…": r"\dots{}"},
    **{"±": r"$\pm$", "“": "``", "”": "''", "×": r"$\times$", "<": "$<$", ">": "$>$", "→": r"$\to$", "≤": r"$\leq$"},
    **{"≥": r"$\geq$", "≈": r"$\approx$", "∞": r"$\infty$", "−": "$-$", "²": "$^2$", "·": r"$\cdot$"},
    **{sign: rf"$\{codepoint2name[ord(sign)]}$" for sign in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"},
}
"""Signs that LaTeX reads as its own, or has commands for."""


def text_of(text: str) -> str:
    """Text with LaTeX's own characters escaped, and Greek letters and signs as its commands."""
    return text.translate(str.maketrans(_LATEX))


def table(findings: Findings, comparisons: Comparisons, page_table: PageTable) -> str:
    """The table as LaTeX, with what its values are as a comment. Needs \\usepackage{booktabs}.

    A study of methods (labelled variants, or names of methods) on one axis of settings (data, partition or protocol)
    has a row per method and a column per setting, the best value of each column in bold. Other studies have the rows
    and columns of the page, the chosen cell in bold.

    Args:
        findings: the study.
        comparisons: its comparisons with the reference.
        page_table: the page's table; see `table.table`.
    """
    crossed = _crossed(findings)
    return _listed(findings, comparisons, page_table) if crossed is None else _by_setting(findings, crossed)


def _listed(findings: Findings, comparisons: Comparisons, page_table: PageTable) -> str:
    rows = [[text_of(td.text) for td in row.cells] for row in page_table.rows]
    rows = [[rf"\textbf{{{text}}}" for text in texts] if row.kind == "best" else texts
            for texts, row in zip(rows, page_table.rows, strict=True)]  # fmt: skip
    titles, columns = " & ".join(map(text_of, page_table.header)), f"l{'r' * (len(page_table.header) - 1)}"
    return _tabular(findings, note(findings, comparisons), columns, [rf"{titles} \\ \midrule"], rows)


class _Crossed(NamedTuple):
    """Methods by settings, in the study's order."""

    columns: list[str]
    rows: dict[str, dict[str, Cell]]
    """Method -> setting -> cell; the references come last."""


def _crossed(findings: Findings) -> _Crossed | None:
    """The cells by method and setting; None where the study has other axes, or a cell has no place."""
    axes = axes_of(findings.spec.axes)
    settings = [axis for axis, values in axes.items() if all(is_setting({axis: value}) for value in values)]
    others = [axis for axis in axes if axis not in settings]
    if findings.kind != "table" or (len(settings), len(others)) != (1, 1):
        return None
    (where,), (what,) = settings, others
    if what != "method" and not all(isinstance(value, Mapping) for value in axes[what]):
        return None
    rows: dict[str, dict[str, Cell]] = {}
    columns = [_setting(where, value) for value in axes[where]]
    for cell in findings.cells:
        name = label({axis: value for axis, value in cell.varied.items() if axis != where})
        if where in cell.varied:
            places = [_setting(where, cell.varied[where])]
        elif where.startswith("protocol.") and not cell.run.learns:
            places = columns  # what trains nothing is run once for all of them
        else:
            return None
        row = rows.setdefault(name, {})
        if not set(places) <= set(columns) - row.keys():
            return None
        row.update(dict.fromkeys(places, cell))
    return _Crossed(columns, rows)


def _setting(axis: str, value: object) -> str:
    """The title of a column: the value alone where it is a word."""
    return shown(value) if isinstance(value, (str, Mapping)) else label({axis: value})


def _by_setting(findings: Findings, crossed: _Crossed) -> str:
    """Values are mean ± standard deviation of cells that are compared; all that print the best of a column are bold."""
    columns, rows = crossed
    values = {cell.id: findings.spread(cell, findings.metric) for cell in findings.finished if findings.compared(cell)}
    means = {key: figure(mean, findings.metric) for key, (mean, _) in values.items()}
    best: dict[str, str] = {}
    for column in columns if sign(findings.metric) else ():
        here = [row[column].id for row in rows.values() if column in row and row[column].id in values]
        if here:
            best[column] = means[max(here, key=lambda key: sign(findings.metric) * values[key][0])]

    def shown_in(column: str, cell: Cell | None) -> str:
        if cell is None or cell.id not in values:
            return text_of("–")
        text = text_of(plus_minus(*values[cell.id], findings.metric))
        return rf"\textbf{{{text}}}" if means[cell.id] == best.get(column) else text

    body = [[text_of(name), *(shown_in(c, row.get(c)) for c in columns)] for name, row in rows.items()]
    n, metric = len(columns), text_of(quantity(findings.metric, over=""))
    head = [
        rf" & \multicolumn{{{n}}}{{c}}{{{metric}}} \\ \cmidrule(lr){{2-{n + 1}}}",
        rf" & {' & '.join(map(text_of, columns))} \\ \midrule",
    ]
    over = " of the mean over clients" if percent(findings.metric) and findings.metric.endswith("/acc_mean") else ""
    caption = f"Mean ± standard deviation over seeds{over}; {findings.basis}. Bold: the best mean of each column."
    return _tabular(findings, " ".join([caption, findings.rates]), f"l{'c' * n}", head, body)


def _tabular(findings: Findings, caption: str, columns: str, head: list[str], rows: list[list[str]]) -> str:
    comment = " ".join(f"{findings.spec.title or findings.spec.name}. {caption}".split())
    top = [f"% {comment}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head]
    return "\n".join([*top, *(rf"{' & '.join(row)} \\" for row in rows), r"\bottomrule", r"\end{tabular}", ""])
