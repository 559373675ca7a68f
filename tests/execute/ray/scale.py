"""What a study of many short trials costs the driver.

    python tests/execute/ray/scale.py --cells 1000 --address host:port

Prints, every hundred cells, the memory of the driver and of its workers on this machine, the seconds of a cell, and how
many of them the driver spent in the store. Not a test: figures depend on the machine.

Measured with 1,000 cells of one round over two worker nodes of one core, on a machine of 2 cores with nothing else to
do: 56 s in all. The driver takes 6.5 s of its processor before the 100th cell and 18.2 s before the 1,000th, so 13 ms a
cell, and holds 510 MB and then 564 MB, so 60 kB a cell (a row in Tune's list and a result in the store's memory).
Workers hold 560 to 617 MB and do not grow. Writing the store takes 1.2 ms of a cell. `results.csv` is the only thing
whose cost grows with all cells so far; it is written less often the longer it takes, so that it never takes more than a
twentieth of the time. So n cells take the driver

    5.2 s + 0.013 s * n of processor, 0.50 GB + 60 kB * n of memory, and it follows at most 77 cells a second.

10,000 cells: 2.3 minutes of processor and 1.1 GB. 100 nodes of 16 slots end 1,600 / t cells a second, t being a trial's
seconds: where t is less than 21 s slots lie idle, whatever the nodes do. MLflow's writer, off the driver's loop, takes
about 30 ms for a record of 30 metrics in SQLite: beyond some 30 records a second its queue grows until the study ends.
The line is fitted to 1,000 cells on one machine: more than three nodes, or several machines, were not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fpl_tune import config
from fpl_tune.execute import ray
from fpl_tune.execute.job import Job
from fpl_tune.execute.runner import Callback, run_study
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store

STUDY = """
defaults: [/study, {override /method: promptfl}, _self_]
data: {train_per_class: 12, test_per_class: 3, shots: 2, domains: [clipart]}
partition: {n_clients: 2}
protocol: {rounds: 1, epochs: 1}
axes: {optim: {lr: LEVELS}}
"""
_EVERY = 100


class Gauge(Callback):
    """Prints a line every so many cells."""

    def __init__(self) -> None:
        self.cells, self.began, self.store_seconds = 0, 0.0, 0.0

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self.began = time.perf_counter()
        put = store.put

        def timed(*given: Any, **named: Any) -> None:
            start = time.perf_counter()
            put(*given, **named)
            self.store_seconds += time.perf_counter() - start

        store.put = timed  # type: ignore[method-assign]

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.cells += 1
        if self.cells % _EVERY == 0:
            print(json.dumps(self.row()), flush=True)

    def row(self) -> dict[str, float]:
        workers = [_resident(p) for p in Path("/proc").glob("[0-9]*") if b"Trainable" in _said(p / "cmdline")]
        used = os.times()
        return {
            "cells": self.cells,
            "seconds": round(time.perf_counter() - self.began, 1),
            "driver_cpu": round(used.user + used.system, 1),
            "store_seconds": round(self.store_seconds, 2),
            "driver_mb": _resident(Path("/proc/self")) >> 20,
            "workers": len(workers),
            "workers_mb": max(workers, default=0) >> 20,
        }


def _resident(process: Path) -> int:
    """Bytes that a process holds in memory now."""
    pages = _said(process / "statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _said(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--address", default=None)
    parser.add_argument("--parallel", type=int, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scale.yaml")
        levels = [round(1e-3 * (1 + i / given.cells), 9) for i in range(given.cells)]
        path.write_text(STUDY.replace("LEVELS", json.dumps(levels)))
        overrides = [f"execution.address={given.address!r}"] if given.address else []
        overrides += [f"execution.parallel={given.parallel}"] if given.parallel else []
        outcome = run_study(
            *config.compose_study(str(path), overrides),
            root=Path(folder, "out"),
            executor=ray.execute,
            callbacks=[Gauge()],
        )
        print(json.dumps({"done": outcome.done, "failed": outcome.failed, "seconds": round(outcome.seconds, 1)}))


if __name__ == "__main__":
    main()
