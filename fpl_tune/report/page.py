"""The page: its sections in order, and the files that are written beside it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np
import pandas as pd

from fpl_tune.core.files import digest, stamps, write_text
from fpl_tune.report import answer, curves, reproduce, robustness, table, vega
from fpl_tune.report.blocks import Part
from fpl_tune.report.facts import Facts
from fpl_tune.report.paper import paper
from fpl_tune.report.reference import against

if TYPE_CHECKING:
    from fpl_tune.study.store import Store

Question = Callable[[Facts, pd.DataFrame], Part | None]
SECTIONS: tuple[tuple[str, str, bool, tuple[Question, ...]], ...] = (
    ("answer", "Answer", False, (answer.decided, answer.claims)),
    ("table", "Table", False, (table.cells, table.winners, table.datasets, paper)),
    ("curves", "Curves and search", False,
     (curves.learning, curves.explore, curves.grid, curves.matters, curves.ablation)),
    ("robustness", "Robustness", True, (robustness.choice, robustness.clients, robustness.diagnoses, robustness.rules)),
    ("reproduce", "Reproduce", True, (reproduce.commands, reproduce.environment, reproduce.partition)),
)  # fmt: skip
"""Id, title, whether it is folded, and parts of every section."""


def build(
    store: Store,
    out: Path | None = None,
    *,
    metric: str | None = None,
    rule: str | None = None,
    reference: str | None = None,
    figures: bool = False,
    running: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes report.html and table.md, .tex and .csv of a study, finished or not, unless they are up to date.

    Args:
        store: the study.
        out: folder to write to; None: the study's own.
        metric, rule, reference: what is shown, and what cells are compared with; None: what the study's `report` says.
        figures: also write every chart to figures/ as SVG, PNG and PDF.
        running: the study runs, and its page is written again: a browser that shows it loads it again.
        progress: receives (steps done, steps in all).

    Returns:
        The page, which needs no other file and no network.

    Raises:
        ConfigError: there is no such metric, rule or reference in the study.
    """
    folder = store.folder if out is None else out
    page, state = folder / "report.html", _state(store, metric, rule, reference, running)
    if not figures and _written(page) == state:
        return page
    facts = Facts(store, metric=metric, rule=rule, reference=reference)
    tests = against(facts)
    sections: list[tuple[str, str, bool, list[Part]]] = []
    for done, (key, title, folded, questions) in enumerate(SECTIONS):
        if progress is not None:
            progress(done, len(SECTIONS))
        parts = [part for question in questions if (part := question(facts, tests)) is not None]
        sections.append((key, title, folded, parts))
    charts = {n: spec for *_, parts in sections for part in parts for n, (spec, _) in part.charts.items()}
    if figures:
        for name, spec in charts.items():
            vega.files(spec, facts.rows, folder / "figures" / name)
    cells = table.table(facts, tests)
    write_text(folder / "table.md", table.markdown(facts, cells))
    texts, best = [[td.text for td in row.cells] for row in cells.rows], [row.kind == "best" for row in cells.rows]
    caption = f"{facts.spec.title or facts.spec.name}. {table.note(facts)}"
    write_text(folder / "table.tex", table.latex(cells.header, texts, np.flatnonzero(best), caption))
    compared = tests.rename(columns={"low": "difference_low", "high": "difference_high", "seeds": "paired_seeds"})
    write_text(folder / "table.csv", facts.table.join(compared).to_csv())
    text = _template().render(
        facts=facts,
        title=facts.spec.title or facts.spec.name,
        when=max((facts.result(c, s)["finished"] for c in facts.cells for s in facts.seeds(c)), default=""),
        sentence=answer.sentence(facts, tests),
        sections=sections,
        references=(references := table.comparisons(facts, tests)),
        digest=state,
        library=vega.library(),
        written=time.time() if running else 0,
        data=vega.to_json({"study": facts.spec.name, "cells": facts.rows, "references": references}),
        specs=vega.to_json({"charts": charts, "config": vega.CONFIG}),
    )
    write_text(page, text)
    return page


def _state(store: Store, *options: object) -> str:
    """A digest of everything that the page depends on: the study, the files of its seeds, the options, this package."""
    seen = [found for folder in (store.folder / "cells", Path(__file__).parent) for found in stamps(folder)]
    study = (store.folder / "study.yaml").read_text(encoding="utf-8")
    return digest(repr([study, seen, options]))


def _written(page: Path) -> str | None:
    """The state that a page was written from; None if there is no page or table."""
    if not (page.is_file() and all(page.with_name(f"table.{kind}").is_file() for kind in ("md", "tex", "csv"))):
        return None
    with page.open(encoding="utf-8") as file:
        found = re.search(r'name="fpl-store" content="(\w+)"', file.read(2000))
    return found[1] if found else None


def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("fpl_tune.report", "")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2")
