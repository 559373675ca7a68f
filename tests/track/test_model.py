"""The best cell's prompts as a model of MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpl_tune import track
from fpl_tune.core.files import save_tensors
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.study.cells import expand
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # of mlflow.pyfunc, while it loads
def test_the_best_cell_is_served(compose: Any, uri: str, tmp_path: Path, feature_cache: Path, keyed) -> None:
    spec = compose("axes: {optim: {lr: [0.01]}}", "seeds=1", "protocol.rounds=1", name="toy")
    store = Store(tmp_path / "out", spec.name)
    store.begin(spec, expand(spec))
    (cell,) = store.cells()
    trial = Simulation(cell.run, [1], cache_dir=feature_cache)
    (history,) = trial.run_all()
    leaves, facts = trial.deployed()[1]
    save_tensors({**trial.prompts()[1], **leaves}, tmp_path / "trained", facts)
    store.put(cell, 1, history, make_result("done", history, split_hash="x"), tmp_path / "trained")
    track.sync(store, uri)
    run = keyed(uri)["study"].info.run_id
    from mlflow import pyfunc, set_tracking_uri

    set_tracking_uri(uri)

    pictures = [np.asarray(trial.world.dataset.test.read(row)) for row in range(3)]
    names = pyfunc.load_model(f"runs:/{run}/model").predict(pictures)
    assert len(names) == 3
    assert set(names) <= set(trial.tasks[0].known.names)
