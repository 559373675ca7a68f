"""`fpl-tune bench`: what a step, a round, a trial or its records cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli.common import Format, FormatOption, Overrides, app

if TYPE_CHECKING:
    from fpl_tune.bench import Progress
    from fpl_tune.config import RunSpec

_PAUSE = 5.0  # seconds between two lines where there is no terminal


class Bench(str, Enum):
    """What `bench` measures."""

    text = "text"
    round = "round"
    trial = "trial"
    desk = "desk"
    record = "record"
    search = "search"
    statistics = "statistics"
    gpu = "gpu"


@app.command(epilog="Example: fpl-tune bench text --format json", rich_help_panel="Run")
def bench(
    kind: Annotated[Bench, typer.Argument(help="What to measure.")] = Bench.round,
    overrides: Overrides = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="gpu: count and predict without a GPU.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Measure what a step, a round or a trial costs, beside the plain path in the same run.

    `desk` measures planning, starting and searching; `record` measures MLflow. `search` simulates a cluster of
    64 workers and reports how many of them a search keeps busy, with and without batches. `statistics` simulates
    studies of known truth and reports false positives, coverage, power and importance; about a minute.
    `gpu` measures steps of pFedMoAP on a GPU; with --simulate it counts their launches, synchronisations
    and copies without one, and predicts their time.
    """
    from fpl_tune import bench as measure
    from fpl_tune import config
    from fpl_tune.cli import output
    from fpl_tune.device import resolve
    from fpl_tune.formatting import size
    from fpl_tune.paths import cache_root

    if kind is Bench.statistics:
        with _progress() as progress:
            simulated = measure.bench_statistics(progress=progress)
        output.emit(simulated, format)
        return
    if kind is Bench.search:
        with _progress() as progress:
            busy = measure.bench_search(overrides or [], progress=progress)
        if format is Format.table:
            shown = {
                "utilisation": "{:.1%}",
                "hours": "{:.1f}",
                "best validation": "{:.3f}",
                "trials a second": "{:.0f}",
            }
            busy = [{k: shown.get(k, "{}").format(v) for k, v in row.items()} for row in busy]
        output.emit(busy, format, title="64 workers, log-normal trials, median 5 minutes, simulated")
        return
    if kind is Bench.gpu:
        with _progress() as progress:
            steps = measure.simulate_gpu(progress) if simulate else measure.bench_gpu(progress=progress)
        for row in steps if format is Format.table else ():
            output.emit([{row["bench"]: k, "": _rounded(v)} for k, v in row.items() if k != "bench"], format)
        if format is not Format.table:
            output.emit(steps, format)
        return
    run = config.compose_run(overrides or [])
    device, cache = resolve("auto"), cache_root()
    if kind is Bench.record:
        _emit_seconds(_record(run, device), format, "{:.2g}")
        return
    with _progress() as progress:
        if kind is Bench.desk:
            rows = measure.bench_desk(overrides or [], device, cache_dir=cache, progress=progress)
            _emit_seconds(rows, format, "{:.3g}")
            return
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


def _emit_seconds(rows: list[dict[str, Any]], format: Format, digits: str) -> None:
    from fpl_tune.cli import output

    if format is Format.table:
        rows = [{**row, "seconds": digits.format(row["seconds"])} for row in rows]
        rows = [{k: f"{v:.2%}" if k == "share of the trial" else v for k, v in row.items()} for row in rows]
    output.emit(rows, format)


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


@contextmanager
def _progress() -> Iterator[Progress]:
    """What is being measured, on standard error: a bar on a terminal, else a line every few seconds."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        whole: list[float] = []

        def update(done: float, total: float, what: str) -> None:
            if whole != [total]:
                bar.reset(task, total=total)
                whole[:] = [total]
            bar.update(task, completed=done, description=what)

        yield update


def _lines(clock: Callable[[], float] = time.monotonic) -> Progress:
    """Prints lines with the ETA, estimated from the work done so far."""
    from fpl_tune.formatting import duration

    began, printed, whole = clock(), clock() - _PAUSE, 0.0

    def update(done: float, total: float, what: str) -> None:
        nonlocal began, printed, whole
        now = clock()
        if total != whole:
            began, whole = now, total
        if now - printed >= _PAUSE:
            left = f", about {duration((now - began) * (total - done) / done)} left" if done else ""
            print(f"{100 * done / total:3.0f} %  {what}{left}", file=sys.stderr, flush=True)
            printed = now

    return update
