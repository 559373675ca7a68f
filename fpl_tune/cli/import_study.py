"""`fpl-tune import`: take an exported study into the outputs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import app
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.paths import output_root


@app.command("import", epilog="Example: fpl-tune import ~/carry/sweep", rich_help_panel="Maintain")
def import_study(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder written by fpl-tune export.")],
) -> None:
    """Copy an exported study into the outputs here, and send it to MLflow."""
    from fpl_tune import track
    from fpl_tune.study import transfer

    store = transfer.import_study(folder, output_root())
    try:
        track.sync(store)
    except EnvironmentProblem as problem:
        output.warn(f"{problem} The study is imported; `fpl-tune doctor --fix` sends it to MLflow later.")
    print(store.folder)
