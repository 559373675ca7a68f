"""What recording costs: the driver's share, and the work of the recorder's thread beside it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from fpl_tune import config
from fpl_tune.execute.callback import Outcome
from fpl_tune.study.cells import expand
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store
from fpl_tune.track.recorder import Recorder

_STUDY = "defaults: [/study, _self_]\naxes: {optim: {lr: [%s]}}\nseeds: [%s]\n"


def benchmark(*, cells: int = 8, seeds: int = 3, rounds: int = 10, metrics: int = 100) -> dict[str, float]:
    """Records a made-up study in a fresh SQLite file.

    Returns:
        seconds: `start` (import of mlflow and the making of the new file's tables, in the thread), `driver_per_cell`
        (what a finished cell holds the driver up), `cell` and `cell_cpu` (work of the thread per cell, wall clock and
        processor time).
    """
    with tempfile.TemporaryDirectory(prefix="fpl-tune-") as folder:
        root = Path(folder)
        study = root / "benchmark.yaml"
        study.write_text(
            _STUDY % (", ".join(str(1e-3 * (1 + i)) for i in range(cells)), ", ".join(map(str, range(seeds))))
        )
        spec, node = config.compose_study(str(study))
        store = Store(root, spec.name)
        store.begin(node, expand(spec, node))
        for cell in store.cells():
            for seed in range(seeds):
                history = [_record(seed, number, metrics) for number in range(1, rounds + 1)]
                store.put(cell, seed, history, make_result("done", history))
        return _timed(store, root)


def _record(seed: int, number: int, metrics: int) -> dict[str, float]:
    named = dict.fromkeys(("val/acc_mean", "test/acc_mean", "comm/up_bytes", "comm/down_bytes"), 0.5)
    rest = {f"m/{i}": i / number for i in range(metrics - len(named) - 1)}
    return {"seed": seed, "round": number, "time/seconds": float(number), **named, **rest}


def _timed(store: Store, root: Path) -> dict[str, float]:
    recorder = Recorder(f"sqlite:///{root}/mlflow.db", root)
    cells = store.cells()
    began = time.perf_counter()
    recorder.on_study_start(store, cells, [])
    recorder.later(recorder.open, store)
    recorder.wait()
    ready, worked = time.perf_counter(), time.process_time()
    for cell in cells:
        recorder.on_cell_end(cell, {})
    told = time.perf_counter()
    recorder.wait()
    written, worked = time.perf_counter(), time.process_time() - worked
    recorder.on_study_end(store, Outcome(len(cells), 0, 0, 0, 0.0, 0))
    if recorder.problem is not None:
        raise RuntimeError(recorder.problem)
    return {
        "start": ready - began,
        "driver_per_cell": (told - ready) / len(cells),
        "cell": (written - ready) / len(cells),
        "cell_cpu": worked / len(cells),
    }
