"""Reports: one self-contained page, figures, and the table in Markdown, LaTeX and CSV.

The room reads a study's store; nothing below imports it. Open `sections.py` first: a section is a function of the
facts of a study and the tests against its reference. `figures.py` holds the figures, made of the layers of `charts.py`;
`vega.py` draws them, `page.js` links table and charts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from fpl_tune.core.files import digest, stamps, write_text
from fpl_tune.core.formatting import counted, figure, plus_minus, quantity, signed, size
from fpl_tune.report import tables, vega
from fpl_tune.report.blocks import Section
from fpl_tune.report.charts import Spec
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
    figures: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes report.html and table.md, .tex and .csv of a study, finished or not, unless they are up to date.

    Args:
        store: the study.
        out: folder to write to; None: the study's own.
        metric, rule, reference: what is shown, and what cells are tested against; None: what the study's `report` says.
        figures: also write every chart to figures/ as SVG, PNG and PDF.
        progress: receives (steps done, steps in all).

    Returns:
        The page, which needs no other file and no network.

    Raises:
        ConfigError: there is no such metric, rule or reference in the study.
    """
    folder = store.folder if out is None else out
    page, state = folder / "report.html", _state(store, metric, rule, reference)
    if not figures and _written(page) == state:
        return page
    facts = Facts(store, metric=metric, rule=rule, reference=reference)
    tests = against_reference(facts)
    sections: list[Section] = []
    charts: dict[str, Spec] = {}
    pictures: dict[str, str] = {}
    for done, make in enumerate(SECTIONS):
        if progress is not None:
            progress(done, len(SECTIONS))
        section = make(facts, tests)
        if section is None:
            continue
        sections.append(section)
        for name, (spec, _) in section.charts.items():
            charts[name], pictures[name] = spec, vega.svg(spec, facts.rows)
            if figures:
                vega.files(spec, facts.rows, folder / "figures" / name)
    table = tables.main(facts, tests)
    write_text(folder / "table.md", tables.markdown(facts, table))
    write_text(folder / "table.tex", tables.latex(facts, table))
    write_text(folder / "table.csv", tables.csv(facts, tests))
    text = _template().render(
        facts=facts,
        title=facts.spec.title or facts.spec.name,
        words=_words(facts),
        when=max((str(result.get("finished", "")) for result in facts.results()), default="")[:16].replace("T", " "),
        tiles=_tiles(facts, tests),
        sections=sections,
        pictures=pictures,
        digest=state,
        asset=_asset,
        data=vega.to_json({"study": facts.spec.name, "cells": facts.rows}),
        specs=vega.to_json({"charts": charts, "config": vega.CONFIG}),
    )
    write_text(page, text)
    return page


def _state(store: Store, *options: str | None) -> str:
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


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("fpl_tune.report", "")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2")


def _words(facts: Facts) -> str:
    """Explains the words of the page."""
    rules = {"final": "the last round", "best_val": "each seed's best round on validation",
             "best_test": "each seed's best round on test", "mean_last5": "the last five evaluated rounds"}  # fmt: skip
    text = (
        f"A cell is one configuration of the study, run with {counted(len(facts.spec.seed_list()), 'seed')}. The best "
        f"cell is chosen by validation accuracy. Figures are those of {rules[facts.rule]} (rule “{facts.rule}”)."
    )
    if facts.references:
        text += " References are there to compare with and are never chosen; differences are to the one in italics."
    return text


def _tiles(facts: Facts, tests: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The answers in figures, as name, value and remark: the best cell, what it gains, what is done."""
    found: list[tuple[str, str, str]] = []
    counts, several = facts.table["status"].value_counts(), len(facts.chosen) > 1
    if facts.choice is not None and facts.best is not None:
        best = facts.table.loc[facts.best.id]
        label = facts.shared or facts.choice.label if several else facts.name(facts.best)
        small = f"{quantity(facts.metric)}: {plus_minus(best['mean'], best['std'], facts.metric)}"
        if several:
            small = f"{facts.choice.by}: {figure(facts.choice.val, VAL)} %"
        if label != facts.choice.label:
            small += f"; {facts.choice.label}"
        found.append(("best cell, by validation", label, small))
        if not several and facts.best.id in tests.index and facts.reference is not None:
            test = tests.loc[facts.best.id]
            small = f"{test['verdict']}, {counted(test['seeds'], 'seed')}"
            found.append((f"against {facts.reference}", signed(test["difference"], facts.metric), small))
    rest = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "done") or "none left"
    found.append(("cells done", f"{counts.get('done', 0)} of {len(facts.table)}", rest))
    found.append(("largest traffic of a run", size(facts.table["bytes"].max()), "all clients, both ways"))
    return found
