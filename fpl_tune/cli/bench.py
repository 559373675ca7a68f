"""`fpl-tune bench`: what a step, a round, a trial or its records cost."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli.common import Format, FormatOption, Overrides, app

if TYPE_CHECKING:
    from fpl_tune.config import RunSpec


class Bench(str, Enum):
    """What `bench` measures."""

    text = "text"
    round = "round"
    trial = "trial"
    record = "record"
    gpu = "gpu"
    desk = "desk"  # these three for one release: they are scripts of the repository now
    search = "search"
    statistics = "statistics"


@app.command(epilog="Example: fpl-tune bench text --format json", rich_help_panel="Run")
def bench(
    kind: Annotated[Bench, typer.Argument(metavar="KIND", help="What to measure.")] = Bench.round,
    overrides: Overrides = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="gpu: count and predict without a GPU.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Measure what a step, a round or a trial costs, beside the plain path in the same run.

    `record` measures MLflow. `gpu` measures steps of pFedMoAP on a GPU; with --simulate it counts their launches,
    synchronisations and copies without one, and predicts their time.
    """
    from fpl_tune import bench as measure
    from fpl_tune import config
    from fpl_tune.cli import output
    from fpl_tune.cli.deprecated import moved_bench
    from fpl_tune.device import resolve
    from fpl_tune.formatting import size
    from fpl_tune.paths import cache_root

    if kind in (Bench.desk, Bench.search, Bench.statistics):
        raise typer.Exit(moved_bench(kind.value, overrides or [], format))
    if kind is Bench.gpu:
        with output.progress("") as progress:
            steps = measure.simulate_gpu(progress) if simulate else measure.bench_gpu(progress=progress)
        for row in steps if format is Format.table else ():
            output.emit([{row["bench"]: k, "": _rounded(v)} for k, v in row.items() if k != "bench"], format)
        if format is not Format.table:
            output.emit(steps, format)
        return
    run = config.compose_run(overrides or [])
    device, cache = resolve("auto"), cache_root()
    if kind is Bench.record:
        rows = _record(run, device)
        if format is Format.table:
            shares = (f"{row['share of the trial']:.2%}" for row in rows)
            rows = [{**row, "share of the trial": share} for row, share in zip(rows, shares, strict=True)]
        output.emit(rows, format)
        return
    with output.progress("") as progress:
        if kind is Bench.text:
            found = measure.bench_text(run, device, progress=progress)
        else:
            action = measure.bench_round if kind is Bench.round else measure.bench_trial
            found = action(run, device, cache_dir=cache, progress=progress)
    if format is not Format.table:
        output.emit([m.row() for m in found], format)
        return
    for m in found:
        shown = {
            "seconds": f"{m.seconds:.3g}",
            "plain path": f"{m.plain_seconds:.3g} s, {m.ratio:.1f} times as long",
            "text encoding": f"{100 * m.text_share:.0f} % of the time, {m.tokens:,} tokens",
            "operations": f"{m.operations:.3g}, {100 * m.matrix_rate_share:.0f} % of the measured matrix rate",
            "peak memory": size(m.peak_memory_bytes),
            "measured": m.note,
        }
        output.emit([{m.name: k, "": v} for k, v in shown.items()], format)


def _rounded(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def _record(run: RunSpec, device: str) -> list[dict[str, Any]]:
    """Times a trial of three seeds, then the recording of as many rounds of 100 metrics each.

    On a busy machine the trial's processor time counts instead of its wall time, if it is less.
    """
    from fpl_tune import track
    from fpl_tune.paths import cache_root
    from fpl_tune.trial import Trial

    began = time.perf_counter(), time.process_time()
    trial = Trial(run, (1, 2, 3), cache_dir=cache_root(), device=device)
    while not trial.done:
        trial.step()
    seconds = min(time.perf_counter() - began[0], time.process_time() - began[1])
    found = track.benchmark(seeds=3, rounds=trial.round, metrics=100)
    rows: list[dict[str, Any]] = [
        {"what": "trial of three seeds", "seconds": seconds},
        {"what": "time the study waits for a cell's record", "seconds": found["driver_per_cell"]},
        {"what": "work of the recorder's thread for a cell (CPU)", "seconds": found["cell_cpu"]},
        {"what": "start of the recorder, once a study", "seconds": found["start"]},
    ]
    return [{**row, "share of the trial": row["seconds"] / seconds} for row in rows]
