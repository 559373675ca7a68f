"""The Ray executor: the figures of the inline one, a dying process, a clean stop, a cluster that is not there."""

import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fpl_tune.execute.callback import Callback
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store

from ...conftest import Heard

DYING = """
from dataclasses import dataclass
import os, pathlib
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Dying(PromptFL):
    def merge(self, task, state, clients, local):
        marker = pathlib.Path(os.environ["FPL_TUNE_TEST_MARKER"])
        if not marker.exists():
            marker.touch()
            os._exit(9)
        return super().merge(task, state, clients, local)
"""


Make = Callable[..., Any]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_gives_the_figures_of_inline_and_survives_a_dying_process(
    run: Make, figures: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying_method.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("FPL_TUNE_TEST_MARKER", str(tmp_path / "died"))
    body = (
        "axes: {optim: {lr: [0.01, 0.1]}}\n"
        "references: [{method: zeroshot, optim.lr: 0.1}, {method: 'dying_method:Dying', optim.lr: 0.1}]"
    )
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    heard = Heard()
    outcome = run(body, "execution.executor=ray", root="ray", callbacks=[heard])
    (line,) = heard.warnings
    assert re.fullmatch(r"the process of the trial died: .* Ray's messages are in .*/tiny/ray\.log\.", line)
    assert "ActorDiedError" in (tmp_path / "ray" / "tiny" / "ray.log").read_text()
    assert (outcome.done, outcome.failed, outcome.exit_code) == (4, 0, 0)
    assert "RAY_AUTH_MODE" not in os.environ, "what is meant for Ray's processes is not for others of this one"
    assert (tmp_path / "died").exists()
    assert run(body, "execution.executor=inline", root="inline").done == 4
    pd.testing.assert_frame_equal(figures("ray"), figures("inline"), check_exact=True)
    store = Store.open(tmp_path / "ray", "tiny")
    other = Store.open(tmp_path / "inline", "tiny")
    for cell in store.cells()[:2]:
        for seed in (1, 2):
            both = [(s.seed_folder(cell, seed) / "prompts.safetensors").read_bytes() for s in (store, other)]
            assert both[0] == both[1]
    assert not (tmp_path / "ray" / "tiny" / ".ray").exists()
    assert not list((tmp_path / "ray").rglob("ckpt-*"))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_stopped_in_ray_and_continued_inline_equals_undisturbed(run: Make, figures: Make) -> None:
    class Stop(Callback):
        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            if records[0]["round"] == 2 and cell.number == 0:
                os.kill(os.getpid(), signal.SIGTERM)

    body = "axes: {optim: {lr: [0.01, 0.1]}}"
    long: tuple[str, ...] = ("protocol.rounds=40",)
    stopped = run(body, *long, "execution.executor=ray", callbacks=[Stop()], root="ray")
    assert stopped.exit_code == 143
    assert stopped.pending >= 1
    assert run(body, *long, "execution.executor=inline", root="ray").exit_code == 0
    run(body, *long, "execution.executor=inline", root="whole")
    pd.testing.assert_frame_equal(figures("ray"), figures("whole"), check_exact=True)


def test_ray_is_not_started_for_a_finished_study(run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpl_tune.execute import ray

    assert run("axes: {}", "execution.executor=inline").exit_code == 0

    def refuse(*_: Any) -> None:
        pytest.fail("nothing is left to run")

    monkeypatch.setattr(ray, "execute", refuse)
    assert run("axes: {}", "execution.executor=ray").skipped == 1
