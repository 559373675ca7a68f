"""`fpl-tune bench`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fpl_tune import bench as measure
from fpl_tune import config
from fpl_tune.cli import output
from fpl_tune.config import RunSpec
from fpl_tune.formatting import duration, size
from fpl_tune.paths import cache_root
from fpl_tune.trial import device_of

_PAUSE = 5.0  # seconds between two lines where there is no terminal


def bench(kind: str, overrides: Sequence[str], format: str) -> None:
    """Composes a run, measures, prints a row a measurement."""
    run = config.compose_run(overrides)
    config.check(run)
    device = device_of("auto")
    if kind == "record":
        return _record(run, device, format)
    if kind == "desk":
        with _told() as progress:
            return _rows(measure.bench_desk(overrides, device, cache_dir=cache_root(), progress=progress), format)
    with _told() as progress:
        if kind == "text":
            found = measure.bench_text(run, device, progress=progress)
        elif kind == "study":
            found = measure.bench_study(overrides, device, cache_dir=cache_root(), progress=progress)
        else:
            action = {"round": measure.bench_round, "trial": measure.bench_trial}[kind]
            found = action(run, device, cache_dir=cache_root(), progress=progress)
    if format != "table":
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


def _rows(rows: list[dict[str, Any]], format: str) -> None:
    if format == "table":
        rows = [{**row, "seconds": f"{row['seconds']:.3g}"} for row in rows]
    output.emit(rows, format)


def _record(run: RunSpec, device: str, format: str) -> None:
    """A trial of three seeds, then the recording of as many rounds of 100 figures each.

    A busy machine stretches the trial's wall clock, so that its processor time counts where that is less.
    """
    from fpl_tune import track
    from fpl_tune.trial import Trial

    began = time.perf_counter(), time.process_time()
    trial = Trial(run, (1, 2, 3), cache_dir=cache_root(), device=device)
    while not trial.done:
        trial.step()
    seconds = min(time.perf_counter() - began[0], time.process_time() - began[1])
    found = track.benchmark(seeds=3, rounds=trial.round, metrics=100)
    rows = [
        {"what": "trial of three seeds", "seconds": seconds, "share of the trial": 1.0},
        {"what": "wait of the study for a cell's record", "seconds": found["driver_per_cell"]},
        {"what": "work of the recorder's thread for a cell (CPU)", "seconds": found["cell_cpu"]},
        {"what": "start of the recorder, once a study", "seconds": found["start"]},
    ]
    for row in rows:
        row["share of the trial"] = row["seconds"] / seconds
    if format == "table":
        rows = [
            {**r, "seconds": f"{r['seconds']:.2g}", "share of the trial": f"{r['share of the trial']:.2%}"}
            for r in rows
        ]
    output.emit(rows, format)


@contextmanager
def _told() -> Iterator[measure.Progress]:
    """What is being measured, on standard error: a bar on a terminal, a line every few seconds elsewhere."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        whole: list[float] = []

        def tell(done: float, total: float, what: str) -> None:
            if whole != [total]:
                bar.reset(task, total=total)
                whole[:] = [total]
            bar.update(task, completed=done, description=what)

        yield tell


def _lines(clock: Callable[[], float] = time.monotonic) -> measure.Progress:
    """Lines with the time that is left, as far as the work done so far tells it."""
    began, said, whole = clock(), clock() - _PAUSE, 0.0

    def tell(done: float, total: float, what: str) -> None:
        nonlocal began, said, whole
        now = clock()
        if total != whole:
            began, whole = now, total
        if now - said >= _PAUSE:
            left = f", about {duration((now - began) * (total - done) / done)} left" if done else ""
            print(f"{100 * done / total:3.0f} %  {what}{left}", file=sys.stderr, flush=True)
            said = now

    return tell
