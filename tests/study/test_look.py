"""What is asked of stored studies: best, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.study.cells import expand
from fpl_tune.study.export import export
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

Compose = Callable[..., Any]
MakeStore = Callable[..., Store]


def test_best_reads_validation_only(make_store: MakeStore) -> None:
    store = make_store()
    chosen = best(store)
    assert chosen.cell.label == "n_ctx=8"
    assert chosen.tested == 3
    # Reversing all test figures changes what is reported, not what is chosen.
    for cell in store.cells():
        for seed in (1, 2, 3):
            result = store.result(cell, seed)
            assert result is not None
            rules = {n: {**r, "test/acc_mean": 1 - r["test/acc_mean"]} for n, r in result["rules"].items()}
            store.put(cell, seed, store.history(cell, seed), {**result, "rules": rules})
    again = best(store)
    assert again.cell.id == chosen.cell.id
    assert again.test == pytest.approx(1 - chosen.test)
    with pytest.raises(ConfigError, match="reads test metrics"):
        best(store, "best_test")


def test_an_exported_cell_is_a_study_of_the_same_configuration(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {method: [promptfl, fedprox], optim.lr: [0.1]}"
    run_study(compose(body, "protocol.rounds=1"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    for cell in store.cells():
        folder = tmp_path / f"export-{cell.id}"
        names = {path.name for path in export(store, cell, folder)}
        assert names == {
            f"tiny-{cell.id}.yaml",
            "expected.csv",
            "prompts-seed1.safetensors",
            "prompts-seed2.safetensors",
            "run.yaml",
        }
        (again,) = expand(config.compose_study(str(folder / f"tiny-{cell.id}.yaml")))
        assert again.id == cell.id
        expected = pd.read_csv(folder / "expected.csv")
        assert set(expected["cell"]) == {cell.id}
        final = [store.result(cell, seed) or {} for seed in (1, 2)]
        accuracies = [result["rules"]["final"]["test/acc_mean"] for result in final]
        assert expected.loc[expected["rule"] == "final", "test/acc_mean"].tolist() == pytest.approx(accuracies)
    with pytest.raises(ConfigError, match="empty folder"):
        export(store, store.cells()[0], tmp_path)
