"""Reports: one self-contained page, charts, and the table in Markdown, LaTeX and CSV.

The room reads a study's store; nothing below imports it. The page has five sections, each in the file of its name:
`answer`, `table` (with `paper`), `curves`, `robustness`, `reproduce`. A section has parts, which are functions of the
facts of a study and the comparisons with its reference. `charts.py` holds the forms of charts, which `vega.py` draws;
`page.js` links table and charts.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fpl_tune.core.files import digest, stamps
from fpl_tune.core.formatting import counted
from fpl_tune.study import tracking
from fpl_tune.study.looks import Look

if TYPE_CHECKING:
    from fpl_tune.report.notebook import Summary
    from fpl_tune.study.store import Store

__all__ = ["build", "look", "sentence", "summary"]


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
    """Writes report.html and table.md, .tex and .csv of a study, finished or not, unless they are up to date.

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
    seen = [found for each in (store.folder / "cells", Path(__file__).parent) for found in stamps(each)]
    study = (store.folder / "study.yaml").read_text(encoding="utf-8")
    state = digest(repr([study, seen, metric, rule, reference, running, tracking.lasting(store.folder)]))
    files = [folder / "report.html", *(folder / f"table.{kind}" for kind in ("md", "tex", "csv"))]
    if figures or not all(file.is_file() for file in files) or state not in files[0].read_text("utf-8")[:2000]:
        from fpl_tune.report.facts import Facts  # these take their time to load
        from fpl_tune.report.page import write

        facts = Facts(store, metric=metric, rule=rule, reference=reference)
        write(facts, folder, state=state, figures=figures, running=running)
    return files[0]


def sentence(store: Store) -> str:
    """The answer of a study's page, which is written if it is not up to date; see `build` for what is raised."""
    found = re.search(r'<meta name="description" content="(.*?)">', build(store).read_text(encoding="utf-8"))
    return html.unescape(found[1]) if found else ""


def look(store: Store) -> Look | None:
    """Looks at the comparisons of a study whose seeds are added until they are decided, as its page shows them.

    Args:
        store: the study, all of whose trials are over.

    Returns:
        What is decided, and the cells that run on to the next look; None before the first look.
    """
    from fpl_tune.report.facts import Facts
    from fpl_tune.report.reference import against

    facts = Facts(store)
    tests = against(facts)
    if tests.empty:
        return None
    left = tests.loc[tests["look"] == 0]
    at = int((tests if left.empty else left)["seen"].min())  # cells that joined later catch up first
    further = next((n for n in facts.looks if n > at), 0)
    now = left.loc[left["seen"] == at]
    open_ = {*now.index, *now["reference"]} if further else set[str]()
    goes_on = tuple(cell.id for cell in facts.cells if cell.id in open_)
    return Look(at, len(tests), len(tests) - len(left), goes_on, tuple(range(at + 1, further + 1)))


def summary(store: Store, *, pictured: bool = True) -> Summary:
    """What a study found, finished or not: the page's sentence, main chart and table. Nothing is written.

    Args:
        store: the study.
        pictured: whether the chart is drawn.
    """
    from fpl_tune.report.notebook import Summary, cut

    cells = store.cells()
    if not any(store.seeds(cell) for cell in cells):
        return Summary(f"{store.name} has no results yet: none of {counted(len(cells), 'cell')} has run.")
    from fpl_tune.report import answer, table, vega  # these take their time to load
    from fpl_tune.report.facts import Facts
    from fpl_tune.report.reference import against

    facts = Facts(store)
    tests = against(facts)
    whole = table.table(facts, tests)
    shown = cut(whole, {facts.keys[c.id] for c in facts.cells if c.is_reference or c.id in facts.marked})
    spec, caption = next(iter(answer.main_chart(facts).values()), (None, ""))
    return Summary(
        answer.sentence(facts, tests),
        shown,
        len(whole.rows) - len(shown.rows),
        table.note(facts),
        vega.png(spec, facts.rows) if pictured and spec is not None else b"",
        caption,
    )
