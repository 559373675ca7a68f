"""`fpl-tune verify`: run the first rounds of a cell again and compare."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, StoredStudy, app, stored


@app.command(epilog="Example: fpl-tune verify lambda_sweep --rounds 3", rich_help_panel="Results")
def verify(
    name: StoredStudy,
    cell: Annotated[str | None, typer.Option(help="Id, number or label of a cell; default: the best one.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to run again.")] = 2,
    format: FormatOption = "table",
) -> None:
    """Run the first rounds of a cell again and compare metrics; exit code 1 if they differ."""
    from fpl_tune.execute.verify import verify as verify_cell
    from fpl_tune.study import selection

    store = stored(name)
    chosen = store.cell(cell) if cell else selection.best(store).cell
    with output.progress("running again") as progress:
        found = verify_cell(store, chosen, rounds=rounds, progress=progress)
    output.emit({**vars(found), "cell": found.cell.label}, format)
    if not found.agrees:
        sys.exit(1)
