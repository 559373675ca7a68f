"""The Ray executor: the figures of the inline one, a dying process, a clean stop, a cluster that is not there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fpl_tune import config
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.study.cells import Cell
from fpl_tune.study.runner import Listener, Outcome, run_study
from fpl_tune.study.store import Store
from fpl_tune.trial import Record

STUDY = """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 3, epochs: 1}
execution: {parallel: 2, checkpoint_every: 2}
seeds: 2
"""

DYING = """
from dataclasses import dataclass
import os, pathlib
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Dying(PromptFL):
    def merge(self, task, state, who, local):
        marker = pathlib.Path(os.environ["FPL_TUNE_TEST_MARKER"])
        if not marker.exists():
            marker.touch()
            os._exit(9)
        return super().merge(task, state, who, local)
"""


@pytest.fixture(autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path_factory.getbasetemp().parent / "features"))


def run(folder: Path, body: str, *overrides: str, listeners: Sequence[Listener] = (), root: str = "out") -> Outcome:
    path = folder / "tiny.yaml"
    path.write_text(STUDY + body)
    return run_study(*config.compose_study(str(path), overrides), root=folder / root, listeners=listeners)


def figures(folder: Path, root: str) -> pd.DataFrame:
    return pd.read_csv(folder / root / "tiny" / "results.csv").drop(columns="time/seconds")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_gives_the_figures_of_inline_and_survives_a_dying_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying_method.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("FPL_TUNE_TEST_MARKER", str(tmp_path / "died"))
    body = (
        "axes: {optim: {lr: [0.01, 0.1]}}\n"
        "references: [{method: zeroshot, optim.lr: 0.1}, {method: 'dying_method:Dying', optim.lr: 0.1}]"
    )
    outcome = run(tmp_path, body, "execution.executor=ray", root="ray")
    assert (outcome.done, outcome.failed, outcome.exit_code) == (4, 0, 0)
    assert (tmp_path / "died").exists()
    assert run(tmp_path, body, "execution.executor=inline", root="inline").done == 4
    pd.testing.assert_frame_equal(figures(tmp_path, "ray"), figures(tmp_path, "inline"), check_exact=True)
    store = Store.open(tmp_path / "ray", "tiny")
    other = Store.open(tmp_path / "inline", "tiny")
    for cell in store.cells()[:2]:
        for seed in (1, 2):
            both = [(s.place(cell, seed) / "prompts.safetensors").read_bytes() for s in (store, other)]
            assert both[0] == both[1]
    assert not (tmp_path / "ray" / "tiny" / ".ray").exists()
    assert not list((tmp_path / "ray").rglob("ckpt-*"))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_stopped_in_ray_and_continued_inline_equals_undisturbed(tmp_path: Path) -> None:
    class Stop(Listener):
        def progress(self, cell: Cell, records: Sequence[Record]) -> None:
            if records[0]["round"] == 2 and cell.number == 0:
                os.kill(os.getpid(), signal.SIGTERM)

    body = "axes: {optim: {lr: [0.01, 0.1]}}"
    long: tuple[str, ...] = ("protocol.rounds=40",)
    stopped = run(tmp_path, body, *long, "execution.executor=ray", listeners=[Stop()], root="ray")
    assert stopped.exit_code == 143
    assert stopped.pending >= 1
    assert run(tmp_path, body, *long, "execution.executor=inline", root="ray").exit_code == 0
    run(tmp_path, body, *long, "execution.executor=inline", root="whole")
    pd.testing.assert_frame_equal(figures(tmp_path, "ray"), figures(tmp_path, "whole"), check_exact=True)


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentProblem, match="must be reachable at localhost:1, but nothing answers"):
        run(tmp_path, "axes: {}", "execution.address='localhost:1'")
    assert time.monotonic() - began < 20


def test_ray_is_not_started_for_a_finished_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpl_tune import tune

    assert run(tmp_path, "axes: {}", "execution.executor=inline").exit_code == 0

    def refuse(*_: Any) -> None:
        pytest.fail("nothing is left to run")

    monkeypatch.setattr(tune, "execute", refuse)
    assert run(tmp_path, "axes: {}", "execution.executor=ray").skipped == 1
