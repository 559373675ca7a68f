"""`fpl-tune status`: the progress of studies, and the processes that run them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, app, stored
from fpl_tune.core.formatting import counted, left
from fpl_tune.core.paths import output_folder, stored_studies
from fpl_tune.study.lock import owner
from fpl_tune.study.standing import CellState


@app.command(epilog="Example: fpl-tune status lambda_sweep", rich_help_panel="Results")
def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]", help="A study that has results; default: all.", autocompletion=stored_studies
        ),
    ] = None,
    format: FormatOption = "table",
) -> None:
    """Show cells by state, finished seeds, and the process that runs a study; without a name, list all studies."""
    if name is None:
        rows = [_row(study) for study in stored_studies()]
        if rows or format != "table":
            output.emit(rows, format)
        else:
            print(f"No results in {output_folder()}. Run a study first: fpl-tune study NAME.")
        return
    from fpl_tune.execute import manage

    values = manage.status(stored(name))
    if format == "table":
        print(_sentence(values))
    else:
        output.emit(values, format)


def _row(name: str) -> dict[str, Any]:
    """A study's row, from the names of its files: results are not read, so the list appears immediately."""
    folder = output_folder() / name
    running = owner(folder) is not None
    try:
        cells = json.loads((folder / "cells.json").read_text(encoding="utf-8"))["cells"]
        results = sum(len(list(folder.glob(f"cells/{cell['id']}/seed=*/result.json"))) for cell in cells)
    except (OSError, ValueError, TypeError, KeyError):
        output.warn(f"The list of cells of {name} cannot be read. Run the study again.")
        return {"study": name, "cells": None, "results": None, "running": running}
    return {"study": name, "cells": len(cells), "results": results, "running": running}


def _sentence(values: dict[str, Any]) -> str:
    """A study's status as a sentence."""
    states = ", ".join(f"{values[name]} {name}" for name in map(str, CellState) if values[name])
    by = "not running"
    if values["run_by"]:
        by = f"{left(values['seconds_left'], ending=values['ending'])}; run by {values['run_by']}"
    wanted = values["seeds_wanted"]
    seeds = f"{values['seeds']} of {counted(wanted, 'seed')} {'has' if wanted == 1 else 'have'} a result"
    return f"{values['study']}: {counted(values['cells'], 'cell')} ({states}); {seeds}; {by}"
