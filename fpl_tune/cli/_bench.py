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
    if format != "table":
        output.emit([m.row() for m in found], format)
        return
    for m in found:
        shown = {
            "seconds": f"{m.seconds:.3g}",
            "plain path": f"{m.plain_seconds:.3g} s, {m.ratio:.1f} times as long",
            "text encoding": f"{100 * m.text_share:.0f} % of the time, {m.tokens:,} tokens",
            "operations": f"{m.operations:.3g}, {100 * m.matrix_rate_share:.0f} % of the measured matrix rate",
            "peak memory": output.size(m.peak_memory_bytes),
            "measured": m.note,
        }
        output.emit([{m.name: k, "": v} for k, v in shown.items()], format)
