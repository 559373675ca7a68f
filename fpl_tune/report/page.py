"""The page: its sections in order, and the files that are written beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jinja2
import pandas as pd

from fpl_tune.core.files import write_text
from fpl_tune.report import answer, curves, latex, reproduce, robustness, table, vega
from fpl_tune.report.blocks import Part
from fpl_tune.report.facts import Facts
from fpl_tune.report.paper import paper
from fpl_tune.report.reference import against
from fpl_tune.study import tracking

Question = Callable[[Facts, pd.DataFrame], Part | None]
SECTIONS: tuple[tuple[str, str, bool, tuple[Question, ...]], ...] = (
    ("answer", "Answer", False, (answer.decided, answer.claims)),
    ("table", "Table", False, (table.cells, table.each, table.settings, table.winners, paper)),
    ("curves", "Curves and search", False,
     (curves.matters, curves.slices, curves.learning, curves.explore, curves.grid, curves.ablation)),
    ("robustness", "Robustness", True, (robustness.choice, robustness.clients, robustness.diagnoses, robustness.rules)),
    ("reproduce", "Reproduce", True, (reproduce.commands, reproduce.partition)),
)  # fmt: skip
"""Id, title, whether it is folded, and parts of every section."""


def write(facts: Facts, folder: Path, *, state: str, figures: bool, running: bool) -> None:
    """Writes the page, the tables and, if asked for, the figures of a study; see `report.build`."""
    tests = against(facts)
    sections: list[tuple[str, str, bool, list[Part]]] = []
    for key, title, folded, questions in SECTIONS:
        parts = [part for question in questions if (part := question(facts, tests)) is not None]
        sections.append((key, title, folded, parts))
    charts = {n: spec for *_, parts in sections for part in parts for n, (spec, _) in part.charts.items()}
    if figures:
        for name, spec in charts.items():
            vega.files(spec, facts.rows, folder / "figures" / name)
    cells = next(found for *_, parts in sections for part in parts for found in part.tables if found.main)
    write_text(folder / "table.md", table.markdown(facts, cells))
    write_text(folder / "table.tex", latex.table(facts, cells))
    compared = tests.rename(columns={"low": "difference_low", "high": "difference_high", "seeds": "paired_seeds"})
    write_text(folder / "table.csv", facts.table.join(compared).to_csv())
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fpl_tune.report", ""),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        facts=facts,
        title=facts.spec.title or facts.spec.name,
        when=max((facts.result(c, s)["finished"] for c in facts.cells for s in facts.seeds(c)), default=""),
        sentence=answer.sentence(facts, tests),
        sections=sections,
        references=(references := table.comparisons(facts, tests)),
        mlflow=tracking.lasting(facts.store.folder),
        digest=state,
        library=vega.library(),
        written=time.time() if running else 0,
        data=vega.to_json({"study": facts.spec.name, "cells": facts.rows, "references": references}),
        specs=vega.to_json({"charts": charts, "config": vega.CONFIG}),
    )
    write_text(folder / "report.html", text)
