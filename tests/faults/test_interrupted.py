"""Signals, and checkpoints that are not what was written."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.manage import STOP_FILE
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.lock import owner
from fpl_tune.study.store import Store

ONE = "axes: {optim: {lr: [0.1]}}"


class Signals(Callback):
    """Sends itself signals after a round, and notes what it hears."""

    def __init__(self, number: int = 0, *signals: int) -> None:
        self.number, self.signals = number, signals
        self.heard: list[str] = []

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if records[0]["round"] == self.number:
            for one in self.signals:
                os.kill(os.getpid(), one)

    def on_warning(self, cell: Cell, text: str) -> None:
        self.heard.append(text)

    def on_study_end(self, store: Any, outcome: Any) -> None:
        self.heard.append("end")

    def on_abort(self) -> None:
        self.heard.append("cut")


def _steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    step, found = Simulation.step, []
    monkeypatch.setattr(Simulation, "step", lambda self: (found.append(self.round + 1), step(self))[1])
    return found


@pytest.mark.parametrize(("first", "second", "code"), [("SIGINT", "SIGINT", 130), ("SIGINT", "SIGTERM", 143)])
def test_the_second_signal_ends_at_once_with_its_code(
    compose: Any,
    left: Any,
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
    code: int,
) -> None:
    made, root = compose(ONE), tmp_path / "cut"
    twice = Signals(2, signal.Signals[first], signal.Signals[second])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as caught:
        run_study(made, root=root, callbacks=[twice])
    assert caught.value.code == code
    assert twice.heard == ["cut"]
    assert signal.getsignal(signal.SIGINT) is before
    assert owner(root / "tiny") is None
    steps = _steps(monkeypatch)
    assert run_study(made, root=root).exit_code == 0
    assert steps == [3, 4]
    assert not (root / "tiny" / STOP_FILE).exists()
    assert left(root) == whole(made)


def test_the_checkpoint_before_a_damaged_one_is_used(compose, left, whole, tmp_path, monkeypatch) -> None:
    made, root, ear = compose(ONE), tmp_path / "damaged", Signals()
    assert run_study(made, root=root, callbacks=[Signals(3, signal.SIGTERM)]).exit_code == 143
    (slot,) = root.rglob("ckpt-*")
    newest = checkpoint.list_newest(slot)[0]
    content = newest.read_bytes()
    newest.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    steps = _steps(monkeypatch)
    assert run_study(made, root=root, callbacks=[ear]).exit_code == 0
    assert steps == [3, 4]  # round 3 was in the damaged one
    assert len(ear.heard) == 2
    assert "corrupt" in ear.heard[0]
    assert left(root) == whole(made)


def test_without_a_usable_checkpoint_a_cell_begins_anew(compose, left, whole, tmp_path, monkeypatch) -> None:
    made, root = compose(ONE), tmp_path / "damaged"
    assert run_study(made, root=root, callbacks=[Signals(3, signal.SIGINT)]).exit_code == 130
    for path in root.rglob("round-*"):
        path.write_bytes(path.read_bytes()[:50])
    steps = _steps(monkeypatch)
    assert run_study(made, root=root).exit_code == 0
    assert steps == [1, 2, 3, 4]
    assert left(root) == whole(made)


def test_a_seed_stored_before_a_kill_stays_as_it_was_when_its_cell_resumes(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both seeds have one checkpoint, so both train again; only the second is stored then."""
    made, put = compose(ONE), Store.put

    def dying(store: Store, cell: Cell, seed: int, *args: Any) -> None:
        if seed == 2:
            raise KeyboardInterrupt
        put(store, cell, seed, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            run_study(made, root=tmp_path)
    first = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed=1/*")}
    assert {path.name for path in first} == {"metrics.jsonl", "prompts.safetensors", "result.json"}
    assert run_study(made, root=tmp_path).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed=1/*")} == first
    assert left(tmp_path) == whole(made)
