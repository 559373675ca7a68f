"""`fpl-tune report`: write a study's report page again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli.common import RuleOption, StoredStudy, app, stored


@app.command(epilog="Example: fpl-tune report lambda_sweep", rich_help_panel="Results")
def report(
    name: StoredStudy,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: the study's own.")] = None,
    metric: Annotated[str | None, typer.Option(help="Metric to show, such as test/acc_worst10.")] = None,
    rule: RuleOption = None,
    reference: Annotated[
        str | None, typer.Option(help="What cells are tested against: a reference, a cell, or a value such as lam=0.")
    ] = None,
    figures: Annotated[bool, typer.Option("--figures", help="Also write every chart as SVG, PNG and PDF.")] = False,
) -> None:
    """Write the report page and tables (Markdown, LaTeX, CSV) of a study, and its figures if asked for."""
    from fpl_tune.report import build

    store = stored(name)
    page = build(store, out, metric=metric, rule=rule, reference=reference, figures=figures)
    store.refresh_tables()
    print(page)
    for name in ("table", "costs"):
        for kind in ("md", "tex", "csv"):
            print(page.with_name(f"{name}.{kind}"))
    if figures:
        print(page.with_name("figures"))
