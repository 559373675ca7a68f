"""`fpl-tune world`: exports weights, images and clients for other code to run on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import Overrides, app


@app.command(epilog="Example: fpl-tune world my_world/ partition.n_clients=5", rich_help_panel="Set up")
def world(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to write.")],
    overrides: Overrides = None,
) -> None:
    """Export towers, images and clients in the layout of OpenAI's CLIP and CoOp, for other code to run on.

    `fpl-tune parity` compares what that code computes.
    """
    from fpl_tune import config
    from fpl_tune.parity import export_world

    given, seeds = config.take_seeds(overrides or [])
    run = config.compose_run(given)
    with output.progress("images") as progress:
        export_world(run, out, seeds=seeds, overrides=[each.text for each in given], progress=progress)
    print(f"{shlex.quote(str(out))}: its README.md says where code must point, and what it writes for fpl-tune parity")
