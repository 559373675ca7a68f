"""Reports: one self-contained page, charts, and the table in Markdown, LaTeX and CSV.

It reads a study's store; no lower package imports it. The page has five sections, each in the file of its name:
`answer` (with `main_chart`), `table` (with `paper`), `curves`, `robustness`, `reproduce`. A section has parts, which
are functions of the findings of a study and of the comparisons with its reference: they write figures and compute none.
`charts.py` holds the forms of charts, which `vega.py` draws; `page.js` links table and charts.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fpl_tune.core.files import digest, stamps
from fpl_tune.core.formatting import counted
from fpl_tune.findings import edited
from fpl_tune.study import tracking

if TYPE_CHECKING:
    from fpl_tune.report.notebook import Summary
    from fpl_tune.study.store import Store

__all__ = ["build", "sentence", "summary"]


def build(
    store: Store,
    out: Path | None = None,
    *,
    metric: str | None = None,
    rule: str | None = None,
    reference: str | None = None,
    figures: bool = False,
    running: bool = False,
) -> Path:
    """Writes report.html, and table and costs as .md, .tex and .csv, of a study, finished or not, unless they are up to
    date.

    Args:
        store: the study.
        out: folder to write to; None: the study's own.
        metric, rule, reference: what is shown, and what cells are compared with; None: what the study's `report` says.
        figures: also write every chart to figures/ as SVG, PNG and PDF.
        running: the study runs, and its page is written again: a browser that shows it loads it again.

    Returns:
        The page, which needs no other file and no network.

    Raises:
        ConfigError: there is no such metric, rule or reference in the study.
    """
    folder = store.folder if out is None else out
    seen = [each for folders in (store.folder / "cells", Path(__file__).parent) for each in stamps(folders)]
    stale = edited.note(store.table())
    state = digest(
        repr([store.stated(), seen, metric, rule, reference, running, tracking.lasting(store.folder), stale])
    )
    files = [folder / "report.html", *(folder / f"table.{kind}" for kind in ("md", "tex", "csv"))]
    if figures or not all(file.is_file() for file in files) or state not in files[0].read_text("utf-8")[:2000]:
        from fpl_tune.findings.findings import Findings
        from fpl_tune.report.page import write  # these take their time to load

        store.check()  # leaves out what is damaged
        findings = Findings(store.spec(), store.table(), metric=metric, rule=rule)
        write(findings, reference, folder, state=state, figures=figures, running=running)
    return files[0]


def sentence(store: Store) -> str:
    """The answer of a study's page, which is written if it is not up to date; see `build` for what is raised."""
    description = re.search(r'<meta name="description" content="(.*?)">', build(store).read_text(encoding="utf-8"))
    return html.unescape(description[1]) if description else ""


def summary(store: Store, *, pictured: bool = True) -> Summary:
    """The results of a study, finished or not: the page's sentence, main chart and table. Nothing is written.

    Args:
        store: the study.
        pictured: whether the chart is drawn.
    """
    from fpl_tune.report.notebook import Summary, cut

    store.check()
    results = store.table()
    if not any(row.results for row in results.rows.values()):
        return Summary(f"{store.name} has no results yet: none of {counted(len(results.rows), 'cell')} has run.")
    from fpl_tune.findings.comparisons import compare
    from fpl_tune.findings.findings import Findings
    from fpl_tune.report import answer, charts, main_chart, table, tuned, vega  # these take their time to load

    findings = Findings(store.spec(), results)
    comparisons = compare(findings)
    by_setting = findings.tuned_table is not None
    listed = findings.entries if findings.confirmed else None
    whole = tuned.table(findings) if by_setting else table.table(findings, comparisons, listed)
    first_rows = {findings.numbers[c.id] for c in findings.cells if c.is_reference or c.id in findings.marked}
    shown = cut(whole, first_rows)
    spec, caption = next(iter(main_chart.drawn(findings).values()), (None, ""))
    return Summary(
        answer.sentence(findings, comparisons),
        shown,
        len(whole.rows) - len(shown.rows),
        tuned.note(findings) if by_setting else table.note(findings, comparisons),
        vega.png(spec, charts.cell_rows(findings)) if pictured and spec is not None else b"",
        caption,
    )
