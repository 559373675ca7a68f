"""Reports: one self-contained page, figures, and the table in Markdown, LaTeX and CSV."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from fpl_tune.files import write_text
from fpl_tune.formatting import counted
from fpl_tune.report import canvas, tables, words
from fpl_tune.report.blocks import Section
from fpl_tune.report.facts import Facts
from fpl_tune.report.sections import SECTIONS
from fpl_tune.report.significance import against_reference
from fpl_tune.study.results import VAL

if TYPE_CHECKING:
    import pandas as pd

    from fpl_tune.study.store import Store

__all__ = ["build"]


def build(
    store: Store,
    out: Path | None = None,
    *,
    metric: str | None = None,
    rule: str | None = None,
    reference: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes report.html, figures/*.png and .pdf, and table.md, .tex, .csv of a study, finished or not.

    Args:
        store: the study.
        out: folder to write to; None: the study's own.
        metric, rule, reference: what is shown, and what cells are tested against; None: what the study's `report` says.
        progress: hears (steps done, steps in all).

    Returns:
        the page, which needs no other file.

    Raises:
        ConfigError: there is no such metric, rule or reference in the study.
    """
    folder = store.folder if out is None else out
    facts = Facts(store, metric=metric, rule=rule, reference=reference)
    tests = against_reference(facts)
    steps, total = itertools.count(1), 2 * len(SECTIONS)
    step = (lambda: progress(next(steps), total)) if progress else (lambda: None)
    made: list[Section | None] = []
    for section in SECTIONS:
        step()
        made.append(section(facts, tests))
    shown: list[dict[str, Any]] = []
    for section in made:
        step()
        if section is None:
            continue
        drawn = []
        for name, (figure, caption) in section.drawn.items():
            canvas.files(figure, folder / "figures" / name)
            shape = {"svg": canvas.svg(figure, name), "width": canvas.width(figure)}
            drawn.append({**shape, "caption": caption, "fold": section.folds.get(name)})
        shown.append({**vars(section), "figures": drawn})
    body = tables.rows(facts, tests)
    write_text(folder / "table.md", tables.markdown(facts, body))
    write_text(folder / "table.tex", tables.latex(facts, body))
    write_text(folder / "table.csv", tables.csv(facts, tests))
    page = _template().render(
        title=facts.spec.title or facts.spec.name,
        name=facts.spec.name,
        note=facts.spec.note,
        when=_when(facts),
        tiles=_tiles(facts, tests),
        sections=shown,
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("fpl_tune.report", "")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2")


def _when(facts: Facts) -> str:
    ends = [
        r["finished"]
        for c in facts.cells
        for s in facts.seeds(c)
        if (r := facts.store.result(c, s)) and "finished" in r
    ]
    return max(ends)[:16].replace("T", " ") + " UTC" if ends else ""


def _tiles(facts: Facts, tests: pd.DataFrame) -> list[dict[str, str]]:
    """The answers in figures: the best cell, what it gains, what is done."""
    found = []
    counts = facts.table["status"].value_counts()
    if facts.choice is not None and facts.best is not None:
        best = facts.table.loc[facts.best.id]
        figure = words.plus_minus(best["mean"], best["std"], facts.metric)
        small = f"{words.quantity(facts.metric)}: {figure}"
        if len(facts.chosen) > 1:
            small = f"{facts.choice.by}: {words.figure(facts.choice.val, VAL)} %"
        found.append({"name": "best cell, by validation", "value": facts.choice.label, "small": small})
        if len(facts.chosen) == 1 and facts.best.id in tests.index and facts.reference is not None:
            test = tests.loc[facts.best.id]
            found.append({
                "name": f"against {facts.reference}", "value": words.signed(test["difference"], facts.metric),
                "small": f"{test['verdict']}; p = {words.p_value(test['p'])} (Holm), {counted(test['seeds'], 'seed')}",
            })  # fmt: skip
    rest = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "done") or "none left"
    found.append({"name": "cells done", "value": f"{counts.get('done', 0)} of {len(facts.table)}", "small": rest})
    total = facts.table["bytes"].max()
    found.append(
        {"name": "largest traffic of a run", "value": f"{words.megabytes(total)} MB", "small": "all clients, both ways"}
    )
    return found
