"""`fpl-tune stop`: end a running study after its round."""

from __future__ import annotations

from fpl_tune.cli.common import StoredStudy, app, stored


@app.command(epilog="Example: fpl-tune stop lambda_sweep", rich_help_panel="Maintain")
def stop(name: StoredStudy) -> None:
    """Ask the process that runs a study to end after the round, with a checkpoint."""
    from fpl_tune.execute import manage

    manage.stop(stored(name))
    print("The study ends after the round, with a checkpoint. The same command continues it.")
