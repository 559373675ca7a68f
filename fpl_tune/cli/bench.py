"""`fpl-tune bench`: the cost of text encoding, of a round, or a client's operations."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, app
from fpl_tune.core.paths import usable_cache


@app.command(epilog="Example: fpl-tune bench text --format json", rich_help_panel="Run")
def bench(
    kind: Annotated[Literal["text", "round", "operations"], typer.Argument(help="What to measure.")] = "round",
    overrides: Overrides = None,
    format: FormatOption = "table",
) -> None:
    """Measure text encoding or a round, or count a client's operations, beside those of the plain path."""
    from fpl_tune import bench as measure
    from fpl_tune import config
    from fpl_tune.core.device import resolve

    run, device = config.compose_run(overrides or []), resolve("auto")
    with output.progress("") as progress:
        if kind == "text":
            rows = measure.bench_text(run, device, progress=progress)
        elif kind == "operations":
            rows = measure.bench_operations(run)
        else:
            rows = measure.bench_round(run, device, cache_dir=usable_cache(), progress=progress)
    for row in rows if format == "table" else [rows]:
        output.emit(row, format)
