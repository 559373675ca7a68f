"""`fpl-tune export`: a cell of a study as a folder, or its trials as a study of Optuna."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli.common import StoredStudy, app, stored
from fpl_tune.core.formatting import counted


@app.command(epilog="Example: fpl-tune export lambda_sweep best/", rich_help_panel="Maintain")
def export(
    name: StoredStudy,
    out: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="New folder to write; default: named after the study.")
    ] = None,
    cell: Annotated[
        str, typer.Option(help="A cell: best, or its id, label or number; of a search, the number of a trial.")
    ] = "best",
    rule: Annotated[
        str | None, typer.Option(help="Rule by which --cell best selects: final or best_val; default: the study's.")
    ] = None,
    optuna: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Instead write the trials of a search to a storage of Optuna, such as "
            "sqlite:///trials.db, which optuna-dashboard shows.",
        ),
    ] = None,
) -> None:
    """Copy a cell to a folder: prompts, results, and a study file that repeats it.

    To move a whole study, copy its folder in outputs/.
    """
    from fpl_tune.findings.choice import best
    from fpl_tune.study import export as exporting

    store = stored(name)
    if optuna is not None:
        from fpl_tune.search.optuna_study import optuna_studies

        written = [
            f"{study.study_name!r}: {counted(len(study.trials), 'trial')}" for study in optuna_studies(store, optuna)
        ]
        print(f"{'; '.join(written)} in {optuna}; optuna-dashboard {shlex.quote(optuna)} shows them")
        return
    out = out or Path(store.name)
    cells = best(store.table(), rule).cells if cell == "best" else (store.cell(cell),)
    folders = [out / one.id for one in cells] if len(cells) > 1 else [out]  # one per data set, or the only one
    number, again = 0, []
    for one, folder in zip(cells, folders, strict=True):
        number += len(exporting.export(store, one, folder))
        words = [str(folder / f"{store.name}-{one.id}.yaml"), *exporting.naming(one)]
        again.append(f"fpl-tune study {shlex.join(words)}")
    labels = "; ".join(one.label for one in cells)
    print(f"{labels}: {number} files in {shlex.quote(str(out))}; {' and '.join(again)} repeats the cell")
