"""The table of a study in LaTeX (booktabs): methods by settings as papers print them, else the columns of the page."""

from __future__ import annotations

from html.entities import codepoint2name

from fpl_tune.core.formatting import percent, plus_minus, quantity
from fpl_tune.findings.comparisons import Comparisons
from fpl_tune.findings.crossed import Crossed
from fpl_tune.findings.findings import Findings
from fpl_tune.report import costs, front, tuned
from fpl_tune.report.panels import FIXED, PageTable
from fpl_tune.report.table import bold, note
from fpl_tune.study.cells import Cell

_LATEX = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "…": r"\dots{}"},
    **{"±": r"$\pm$", "“": "``", "”": "''", "×": r"$\times$", "<": "$<$", ">": "$>$", "→": r"$\to$", "≤": r"$\leq$"},
    **{"≥": r"$\geq$", "≈": r"$\approx$", "∞": r"$\infty$", "−": "$-$", "²": "$^2$", "·": r"$\cdot$"},
    **{"†": r"$\dagger$", "‡": r"$\ddagger$"},
    **{sign: rf"$\{codepoint2name[ord(sign)]}$" for sign in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"},
}
"""Signs that LaTeX reads as its own, or has commands for."""


def text_of(text: str) -> str:
    """Text with LaTeX's own characters escaped, and Greek letters and signs as its commands."""
    return text.translate(str.maketrans(_LATEX))


def table(findings: Findings, comparisons: Comparisons, page_table: PageTable) -> str:
    """The table as LaTeX, with what its values are as a comment. Needs \\usepackage{booktabs}.

    A study of methods (labelled variants, or names of methods) on one axis of settings (data, partition or protocol)
    has a row per method and a column per setting; so has a study with searches in the cells of its axes, of tuned
    methods. Other studies have the rows and columns of the page. What the page has in bold is bold here.

    Args:
        findings: the study.
        comparisons: its comparisons with the reference.
        page_table: the page's table; see `table.table`.
    """
    if findings.crossed is None:
        return _listed(findings, comparisons, page_table)
    return _tuned(findings) if findings.searched else _by_setting(findings, findings.crossed)


def _listed(findings: Findings, comparisons: Comparisons, page_table: PageTable) -> str:
    rows = [[text_of(td.text) for td in row.cells] for row in page_table.rows]
    rows = [[rf"\textbf{{{text}}}" for text in texts] if row.kind == "best" else texts
            for texts, row in zip(rows, page_table.rows, strict=True)]  # fmt: skip
    titles, columns = " & ".join(map(text_of, page_table.header)), f"l{'r' * (len(page_table.header) - 1)}"
    return _tabular(findings, note(findings, comparisons), columns, [rf"{titles} \\ \midrule"], rows)


def _tuned(findings: Findings) -> str:
    """Tuned methods by settings. Letters of significance are superscripts."""
    columns, rows = tuned.column_titles(findings), []
    for method, row in tuned.entries(findings).items():
        texts = [text_of(method)]
        for entry in map(row.get, columns):
            text = text_of(plus_minus(entry.mean, entry.std, findings.metric) if entry else "–")
            text = rf"\textbf{{{text}}}" if entry and entry.best else text
            texts.append(rf"{text}\textsuperscript{{{text_of(entry.marks)}}}" if entry and entry.marks else text)
        rows.append(texts)
    head = rf" & {' & '.join(map(text_of, tuned.table(findings).header[1:]))} \\ \midrule"
    return _tabular(findings, tuned.note(findings), f"l{'c' * len(columns)}", [head], rows)


def values(findings: Findings) -> str:
    """The values that a search has chosen, for an appendix; see `tuned.values`."""
    page_table = tuned.values(findings)
    columns = "l" * len(page_table.header)
    return _plain(findings, page_table, "Chosen values.", columns, tuned.marked(page_table))


def costs_table(findings: Findings) -> str:
    """What each method costs in each setting; see `costs.table`."""
    page_table = costs.table(findings)
    columns = "".join("l" if name in ("method", "setting") else "r" for name in page_table.header)
    return _plain(findings, page_table, f"Costs. {costs.NOTE}", columns)


def fronts(findings: Findings) -> str:
    """The hypervolume of each method in each setting; see `front.volumes`."""
    page_table = front.volumes(findings)
    return _plain(findings, page_table, front.note(findings), f"l{'c' * (len(page_table.header) - 1)}")


def _plain(findings: Findings, page_table: PageTable, caption: str, columns: str, below: str = "") -> str:
    rows = [
        [rf"\textbf{{{text_of(td.text)}}}" if td.bold else text_of(td.text) for td in row.cells]
        for row in page_table.rows
    ]
    head = rf"{' & '.join(map(text_of, page_table.header))} \\ \midrule"
    return _tabular(findings, caption, columns, [head], rows, below)


def _by_setting(findings: Findings, crossed: Crossed) -> str:
    """Values are mean ± standard deviation of cells that are compared."""
    columns, compared = crossed.columns, {cell.id for cell in findings.finished if findings.compared(cell)}

    def entry(cell: Cell | None) -> str:
        if cell is None or cell.id not in compared:
            return text_of("–")
        text = text_of(plus_minus(*findings.spread(cell, findings.metric), findings.metric))
        return rf"\textbf{{{text}}}" if cell.id in findings.bold else text

    body = [[text_of(name), *(entry(row.get(column)) for column in columns)] for name, row in crossed.rows.items()]
    n, metric = len(columns), text_of(quantity(findings.metric, over=""))
    head = [
        rf" & \multicolumn{{{n}}}{{c}}{{{metric}}} \\ \cmidrule(lr){{2-{n + 1}}}",
        rf" & {' & '.join(map(text_of, columns))} \\ \midrule",
    ]
    over = " of the mean over clients" if percent(findings.metric) and findings.metric.endswith("/acc_mean") else ""
    caption = f"Mean ± standard deviation over seeds{over}; {findings.basis}. {bold(findings)}"
    caption = caption if findings.sampled else f"Mean over seeds; {findings.basis}. {FIXED}"
    return _tabular(findings, " ".join([caption, findings.notes]), f"l{'c' * n}", head, body)


def _tabular(
    findings: Findings, caption: str, columns: str, head: list[str], rows: list[list[str]], foot: str = ""
) -> str:
    """A table whose caption is a comment; `foot` explains marks below it."""
    comment = " ".join(f"{findings.spec.title or findings.spec.name}. {caption}".split())
    top = [f"% {comment}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head]
    below = [rf"\multicolumn{{{len(columns)}}}{{l}}{{\footnotesize {text_of(foot)}}} \\"] if foot else []
    body = (rf"{' & '.join(row)} \\" for row in rows)
    return "\n".join([*top, *body, r"\bottomrule", *below, r"\end{tabular}", ""])
