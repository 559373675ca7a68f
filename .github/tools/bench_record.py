"""What the records of a study in MLflow cost: the driver's share, and the work of the recorder's thread beside it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from fpl_tune import config
from fpl_tune.config import RunSpec
from fpl_tune.core.paths import shipped
from fpl_tune.execute.callback import Outcome
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.study.cells import expand
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store
from fpl_tune.testing.bench.measure import Row
from fpl_tune.track import Recorder


def bench_record(run: RunSpec, device: str = "cpu", *, cache_dir: Path) -> list[Row]:
    """A trial of three seeds, then the recording of its results, as those of each cell of `lambda_sweep`, in SQLite.

    On a busy machine the trial's processor time counts instead of its wall time, if it is less.

    Raises:
        RuntimeError: MLflow failed.
    """
    began = time.perf_counter(), time.process_time()
    histories = Simulation(run, (1, 2, 3), cache_dir=cache_dir, device=device).run_all()
    trial = min(time.perf_counter() - began[0], time.process_time() - began[1])
    with tempfile.TemporaryDirectory(prefix="fpl-tune-") as folder:
        spec = config.compose_study(str(shipped("studies", "lambda_sweep.yaml")))
        store, cells = Store(Path(folder), spec.name), expand(spec)
        store.begin(spec, cells)
        for cell in cells:
            for seed, history in zip(spec.seed_list(), histories, strict=True):
                store.put(cell, seed, history, make_result("done", history))
        recorder = Recorder(f"sqlite:///{folder}/mlflow.db")
        recorder.on_study_start(store, cells, [])
        opened = time.perf_counter()
        recorder.open()
        ready, worked = time.perf_counter(), time.process_time()
        for cell in cells:
            recorder.on_cell_end(cell, {})
        told = time.perf_counter()
        recorder.wait()
        worked = time.process_time() - worked
        recorder.on_study_end(store, Outcome(len(cells), 0, 0, 0, 0.0, 0))
        if recorder.problem is not None:
            raise RuntimeError(recorder.problem)
    seconds = {
        "trial of three seeds": trial,
        "time the study waits for a cell's record": (told - ready) / len(cells),
        "work of the recorder's thread for a cell (CPU)": worked / len(cells),
        "start of the recorder, once a study": ready - opened,
    }
    return [{"bench": what, "seconds": value, "trial_share": value / trial} for what, value in seconds.items()]
