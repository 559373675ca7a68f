"""Verbs that stop, mend and carry studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import work
from fpl_tune.cli.frame import Format, Formats, Stored, app


@app.command(epilog="Example: fpl-tune stop lambda_sweep", rich_help_panel="Keep in order")
def stop(name: Stored) -> None:
    """Ask whoever runs a study to end after the round, with a checkpoint."""
    work.manage.stop(name)


@app.command(epilog="Example: fpl-tune retry lambda_sweep --failed", rich_help_panel="Keep in order")
def retry(
    name: Stored,
    failed: Annotated[bool, typer.Option("--failed", help="Only seeds that failed, not those that diverged.")] = False,
) -> None:
    """Forget failed and diverged seeds, so that the next run tries them again."""
    work.manage.retry(name, failed)


@app.command(epilog="Example: fpl-tune doctor --fix", rich_help_panel="Keep in order")
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Close dead runs, and send what MLflow lacks.")] = False,
    address: Annotated[str | None, typer.Option(help="Look at this Ray cluster; default: RAY_ADDRESS.")] = None,
    checkpoints: Annotated[str | None, typer.Option(help="URL of checkpoints that its nodes must reach.")] = None,
    data_root: Annotated[list[str] | None, typer.Option(help="Folder of data that its nodes must have.")] = None,
    format: Formats = Format.table,
) -> None:
    """What this machine and every node of a cluster have, and whether MLflow holds what the studies hold."""
    work.doctor.doctor(fix, format.value, address, checkpoints, data_root or [])


@app.command("export", epilog="Example: fpl-tune export lambda_sweep ~/carry/sweep", rich_help_panel="Keep in order")
def export_(name: Stored, out: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")]) -> None:
    """Copy a study to one folder that can be carried to another machine."""
    work.manage.export(name, out)


@app.command("import", epilog="Example: fpl-tune import ~/carry/sweep", rich_help_panel="Keep in order")
def import_(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An exported study.")]) -> None:
    """Take an exported study into the outputs here, MLflow records included."""
    work.manage.import_(folder)
