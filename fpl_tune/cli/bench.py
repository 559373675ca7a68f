"""`fpl-tune bench`: what a step, a round or a trial costs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, app
from fpl_tune.core.formatting import size
from fpl_tune.core.paths import cache_root


@app.command(epilog="Example: fpl-tune bench text --format json", rich_help_panel="Run")
def bench(
    kind: Annotated[
        Literal["text", "round", "trial", "gpu"], typer.Argument(metavar="KIND", help="What to measure.")
    ] = "round",
    overrides: Overrides = None,
    format: FormatOption = "table",
) -> None:
    """Measure what a step, a round or a trial costs, beside the plain path in the same run.

    `gpu` measures steps of pFedMoAP on a GPU.
    """
    from fpl_tune import config
    from fpl_tune.core.device import resolve
    from fpl_tune.testing import bench as measure

    run, device, cache = config.compose_run(overrides or []), resolve("auto"), cache_root()
    with output.progress("") as progress:
        if kind == "gpu":
            rows = measure.bench_gpu(progress=progress)
        elif kind == "text":
            rows = measure.bench_text(run, device, progress=progress)
        else:
            action = measure.bench_round if kind == "round" else measure.bench_trial
            rows = action(run, device, cache_dir=cache, progress=progress)
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
