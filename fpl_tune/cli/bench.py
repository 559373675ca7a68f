"""`fpl-tune bench`: what text encoding or a round costs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, app
from fpl_tune.core.formatting import size
from fpl_tune.core.paths import cache_root


@app.command(epilog="Example: fpl-tune bench text --format json", rich_help_panel="Run")
def bench(
    kind: Annotated[Literal["text", "round"], typer.Argument(help="What to measure.")] = "round",
    overrides: Overrides = None,
    format: FormatOption = "table",
) -> None:
    """Measure what text encoding or a round costs, beside the plain path in the same run."""
    from fpl_tune import config
    from fpl_tune.core.device import resolve
    from fpl_tune.testing import bench as measure

    run, device = config.compose_run(overrides or []), resolve("auto")
    with output.progress("") as progress:
        if kind == "text":
            rows = measure.bench_text(run, device, progress=progress)
        else:
            rows = measure.bench_round(run, device, cache_dir=cache_root(), progress=progress)
    if format != "table":
        output.emit(rows, format)
        return
    for row in rows:
        name = row.pop("bench")
        output.emit([{name: key.replace("_", " "), "": _shown(key, value)} for key, value in row.items()], format)


def _shown(key: str, value: Any) -> str:
    """A figure as the table prints it."""
    if key.endswith("_bytes"):
        return size(value)
    if key.endswith("_share"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else value
