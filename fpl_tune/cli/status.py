"""`fpl-tune status`: how far studies are, and which process runs them."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import Format, FormatOption, app, check_results, stored
from fpl_tune.core.formatting import counted
from fpl_tune.core.paths import output_folder, stored_studies
from fpl_tune.study.lock import owner
from fpl_tune.study.status import Status

if TYPE_CHECKING:
    from fpl_tune.study.store import Store

_WATCH_SECONDS = 2.0
_LINE_SECONDS = 30.0  # between lines that differ in the ETA alone


@app.command(epilog="Example: fpl-tune status lambda_sweep --watch", rich_help_panel="Results")
def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]",
            help="A study that has results; default: all.",
            autocompletion=stored_studies,
            callback=check_results,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the study until no process runs it.")] = False,
    format: FormatOption = "table",
) -> None:
    """Cells by state, finished seeds, and the process that runs a study; without a name, all studies with results."""
    if name is None:
        list_results(format)
    elif watch and format == "table" and owner(output_folder() / name) is not None:
        _watch(stored(name))
    else:
        print_status(name, format)


def print_status(name: str, format: Format) -> None:
    """Prints how far a study is."""
    from fpl_tune.execute import manage

    found = manage.status(stored(name))
    if format == "table":
        print(_sentence(found))
    else:
        output.emit(found, format)


def list_results(format: Format) -> None:
    """Prints a row per study that has results; reads no results, so that the list appears at once."""
    rows = []
    for name in stored_studies():
        folder = output_folder() / name
        row: dict[str, Any] = {"study": name, "cells": None, "with results": None, "seeds": None}
        try:
            cells = json.loads((folder / "cells.json").read_text(encoding="utf-8"))["cells"]
            ended = [path.parent for cell in cells for path in folder.glob(f"cells/{cell}/seed=*/result.json")]
            row |= {"cells": len(cells), "with results": len({seed.parent for seed in ended})}
            row["seeds"] = len({seed.name for seed in ended})
        except (OSError, ValueError, TypeError, KeyError):
            output.warn(f"The list of cells of {name} cannot be read. Repair it: fpl-tune doctor --fix.")
        row["running"] = owner(folder) is not None
        if format == "table" and not output.room():  # no column that would be folded
            row = {column: row[column] for column in ("study", "cells", "running")}
        rows.append(row)
    if rows or format != "table":
        output.emit(rows, format)
    else:
        print(f"No results in {output_folder()}. Run a study first: fpl-tune study NAME.")


def _watch(store: Store) -> None:
    """Shows the status until no process runs the study: on a terminal a line that changes, else a line per change."""
    from rich.live import Live

    from fpl_tune.execute import manage

    talk, shown, due = output.console(), "", 0.0
    with Live(console=talk, refresh_per_second=1) if talk.is_terminal else nullcontext() as live:
        while True:
            found = manage.status(store)
            state = _sentence({**found, "seconds_left": None})
            if live is not None:
                live.update(_sentence(found))
            elif state != shown or time.monotonic() >= due:
                shown, due = state, time.monotonic() + _LINE_SECONDS
                print(_sentence(found), flush=True)
            if found["run_by"] is None:
                return
            time.sleep(_WATCH_SECONDS)


def _sentence(found: dict[str, Any]) -> str:
    """A study's status in words."""
    states = ", ".join(f"{found[name]} {name}" for name in map(str, Status) if found[name])
    by = "not running"
    if found["run_by"]:
        by = f"{output.left(found['seconds_left'], ending=found['ending'])}; run by {found['run_by']}"
    wanted = found["seeds_wanted"]
    seeds = f"{found['seeds']} of {counted(wanted, 'seed')} {'has' if wanted == 1 else 'have'} a result"
    return f"{found['study']}: {counted(found['cells'], 'cell')} ({states}); {seeds}; {by}"
