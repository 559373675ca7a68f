"""`fpl-tune export`: a cell of a study, as a folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli.common import StoredStudy, app, stored


@app.command(epilog="Example: fpl-tune export lambda_sweep best/", rich_help_panel="Maintain")
def export(
    name: StoredStudy,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")],
    cell: Annotated[str, typer.Option(help="A cell: best, or its id, number or label.")] = "best",
    rule: Annotated[str, typer.Option(help="Rule by which --cell best selects: final or best_val.")] = "final",
) -> None:
    """Copy a cell to a folder: prompts, results, and a study file that repeats it.

    To move a whole study, copy its folder in the outputs.
    """
    from fpl_tune.study import export as exporting
    from fpl_tune.study import selection

    store = stored(name)
    cells = selection.best(store, rule).cells if cell == "best" else (store.cell(cell),)
    places = [out / one.id for one in cells] if len(cells) > 1 else [out]  # one per data set, or the only one
    files = [path for one, place in zip(cells, places, strict=True) for path in exporting.export(store, one, place)]
    again = " and ".join(f"fpl-tune study {shlex.quote(str(p))}" for p in files if p.name.startswith(f"{name}-"))
    labels = "; ".join(one.label for one in cells)
    print(f"{labels}: {len(files)} files in {shlex.quote(str(out))}; {again} repeats the cell")
