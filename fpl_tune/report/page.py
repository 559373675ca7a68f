"""The page: its sections in order, and the files that are written beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jinja2

from fpl_tune.core.files import write_text
from fpl_tune.findings.comparisons import Comparisons, compare, offered_references
from fpl_tune.findings.findings import Findings
from fpl_tune.report import answer, charts, costs, curves, front, latex, reproduce, robustness, table, tuned, vega
from fpl_tune.report.panels import Panel
from fpl_tune.report.paper import paper
from fpl_tune.study import tracking

Question = Callable[[Findings, Comparisons], Panel | None]
SECTIONS: tuple[tuple[str, str, bool, tuple[Question, ...]], ...] = (
    ("answer", "Answer", False, (answer.decided, answer.claims)),
    ("table", "Table", False, (front.panel, front.volume, tuned.panel, tuned.each, tuned.details, table.cells,
                               table.each, table.settings, paper, costs.panel)),
    ("curves", "Curves and search", False,
     (curves.matters, curves.slices, curves.learning, curves.history, curves.explore, curves.grid, curves.ablation)),
    ("robustness", "Robustness", True, (robustness.clients, robustness.diagnoses, robustness.rules)),
    ("reproduce", "Reproduce", True, (reproduce.commands, reproduce.partition)),
)  # fmt: skip
"""Id, title, whether it is folded, and the questions of every section."""


def write(findings: Findings, reference: str | None, folder: Path, *, state: str, figures: bool, running: bool) -> None:
    """Writes the page, the tables and, if asked for, the figures of a study; see `report.build`."""
    comparisons = compare(findings, reference)
    if reference is not None:
        comparisons.reference.check()
    sections: list[tuple[str, str, bool, list[Panel]]] = []
    for key, title, folded, questions in SECTIONS:
        panels = [panel for question in questions if (panel := question(findings, comparisons)) is not None]
        sections.append((key, title, folded, panels))
    specs = {n: spec for *_, panels in sections for panel in panels for n, (spec, _) in panel.charts.items()}
    rows = charts.cell_rows(findings)
    if figures:
        for name, spec in specs.items():
            vega.files(spec, rows, folder / "figures" / name)
    cells = next(each for *_, panels in sections for panel in panels for each in panel.tables if each.main)
    by_setting = findings.tuned_table is not None
    listing = table.table(findings, comparisons, findings.entries) if findings.confirmed else cells
    tables, note = [listing], table.note(findings, comparisons)
    if by_setting:
        tables = [tuned.table(findings), *tuned.chosen_tables(findings)]
        note = " ".join(filter(None, [tuned.note(findings), tuned.marked(tables[1]), tuned.gained(findings)]))
    write_text(folder / "table.md", table.markdown(tables, note))
    write_text(folder / "table.tex", latex.table(findings, comparisons, listing))
    if by_setting:
        write_text(folder / "values.tex", latex.values(findings))
        write_text(folder / "table.csv", tuned.frame(findings).to_csv())
    else:
        renamed = {"low": "difference_low", "high": "difference_high", "seeds": "paired_seeds"}
        frame = findings.frame.join(comparisons.frame.rename(columns=renamed))
        shown = [cell.id for cell in (findings.entries if findings.confirmed else findings.cells)]
        write_text(folder / "table.csv", frame.loc[shown].to_csv())
    write_text(folder / "costs.md", table.markdown([costs.table(findings)], costs.NOTE))
    write_text(folder / "costs.tex", latex.costs_table(findings))
    write_text(folder / "costs.csv", costs.frame(findings).to_csv(index=False))
    for kind in ("md", "tex", "csv"):  # of a study that had several objectives
        (folder / f"fronts.{kind}").unlink(missing_ok=True)
    if findings.choice is not None and findings.choice.front:
        tables = [front.volumes(findings), front.points(findings)]
        write_text(folder / "fronts.md", table.markdown(tables, front.note(findings)))
        write_text(folder / "fronts.tex", latex.fronts(findings))
        write_text(folder / "fronts.csv", front.frame(findings).to_csv(index=False))
    offered = {
        name: comparisons if name == comparisons.reference.name else compare(findings, name)
        for name in offered_references(findings, comparisons)
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fpl_tune.report", ""),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        study=findings.spec,
        title=findings.spec.title or findings.spec.name,
        when=max((r.finished for c in findings.cells for r in findings.row(c).results.values()), default=""),
        sentence=answer.sentence(findings, comparisons),
        sections=sections,
        reference=comparisons.reference.name,
        references={name: compared.reference.title for name, compared in offered.items()},
        mlflow=tracking.lasting(findings.table.folder),
        digest=state,
        library=vega.library(),
        written=time.time() if running else 0,
        data=vega.to_json(
            {"study": findings.spec.name, "cells": rows, "references": table.texts_of(findings, offered)}
        ),
        specs=vega.to_json({"charts": specs, "config": vega.CONFIG}),
    )
    write_text(folder / "report.html", text)
