"""`fpl-tune export`: a study, or one of its cells, as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli.common import StoredStudy, app, stored


@app.command(epilog="Example: fpl-tune export lambda_sweep best/ --cell best", rich_help_panel="Maintain")
def export(
    name: StoredStudy,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")],
    cell: Annotated[
        str | None, typer.Option(help="Only this cell: best, or its id, number or label; default: the whole study.")
    ] = None,
    rule: Annotated[str, typer.Option(help="Rule by which --cell best selects: final or best_val.")] = "final",
) -> None:
    """Copy a study to a folder that `import` reads; or one cell: prompts, nearest words, a script that repeats it."""
    from fpl_tune.study import export as exporting
    from fpl_tune.study import selection, transfer

    store = stored(name)
    if cell is None:
        print(transfer.export_study(store, out))
        return
    cells = selection.best(store, rule).cells if cell == "best" else (store.cell(cell),)
    places = [out / one.id for one in cells] if len(cells) > 1 else [out]  # one per data set, or the only one
    files = [path for one, place in zip(cells, places, strict=True) for path in exporting.export(store, one, place)]
    scripts = " and ".join(f"sh {path}" for path in files if path.name == "reproduce.sh")
    print(f"{'; '.join(one.label for one in cells)}: {len(files)} files in {out}; {scripts} repeats the cell")
