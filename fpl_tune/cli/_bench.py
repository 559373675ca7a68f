"""`fpl-tune bench`."""

from __future__ import annotations

from collections.abc import Sequence

from fpl_tune import bench as measure
from fpl_tune import config
from fpl_tune.cli import output
from fpl_tune.paths import cache_root
from fpl_tune.trial import device_of


def bench(kind: str, overrides: Sequence[str], format: str) -> None:
    """Composes a run, measures, prints a row a measurement."""
    run = config.compose_run(overrides)
    config.check(run)
    device = device_of("auto")
    if kind == "study":
        output.emit(measure.bench_study(run), format)
        return
    if kind == "text":
        found = measure.bench_text(run, device)
    else:
        action = {"round": measure.bench_round, "trial": measure.bench_trial}[kind]
        found = action(run, device, cache_dir=cache_root())
    rows = [m.row() for m in found]
    if format == "table":
        for m, row in zip(found, rows, strict=True):
            row.update(
                tokens=f"{m.tokens:,}",
                operations=f"{m.operations:.3g}",
                matrix_rate_share=f"{100 * m.matrix_rate_share:.0f} %",
                text_share=f"{100 * m.text_share:.0f} %",
                peak_memory_bytes=output.size(m.peak_memory_bytes),
                ratio=f"{m.ratio:.1f}",
            )
            note = row.pop("note")
            output.console().print(f"{m.name}: {note}")
    output.emit(rows, format)
