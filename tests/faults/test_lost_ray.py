"""What is killed under Ray: workers, its head, the driver that started it. The figures are those of a calm run."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.study.store import Store

from ..conftest import note_steps
from ..conftest import start_study as run_study

BODY = "axes: {optim: {lr: [0.01, 0.1]}}"
ROUNDS = 100  # more than a step of half a second holds
LONG = f"protocol.rounds={ROUNDS}"

DRIVER = """
import socket, sys, time
from pathlib import Path
import psutil
from fpl_tune.api import start_study
from fpl_tune.core.errors import FplTuneError
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.ray import connect
from fpl_tune.search.compose import compose

connect.LOST_SECONDS = 2.0
study, root, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

class Kill(Callback):
    def on_round_end(self, cell, records):
        if records[0]["round"] == 6 and cell.number == 1:
            print("reached", flush=True)
            port = connect.addresses()[0][1]
            struck = [child for child in psutil.Process().children() if child.name() == kill]
            for child in struck:
                child.kill()
            print("struck", psutil.wait_procs(struck, timeout=30), flush=True)
            if struck:
                self.held = socket.socket()  # where nobody listens: no other Ray is to answer for the dead one
                self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.held.bind(("", port))
            time.sleep(60)  # the cell does not end before the loss: its worker waits for this process

    def on_abort(self):
        print("abort heard", flush=True)

composed = compose(study, [sys.argv[4], "execution.executor=ray", "execution.parallel=1"])
try:
    sys.exit(start_study(composed, root=root, callbacks=[Kill()]).exit_code)
except FplTuneError as problem:
    print(problem, flush=True)
    sys.exit(problem.exit_code)
"""


def _start(tmp_path: Path, kill: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A driver under a Ray of its own, in the middle of its second cell, and the processes of that Ray."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "tiny.yaml"), str(tmp_path / "out"), kill, LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line == "reached\n":
            break
    return process, psutil.Process(process.pid).children(recursive=True)


def _continues(made: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same study in this process does what follows the checkpoint of its second cell, and no more."""
    newest = _newest(root)
    assert newest >= 5
    with monkeypatch.context() as patch:
        steps = note_steps(patch)
        assert run_study(made, root=root).exit_code == 0
    assert steps == list(range(steps[0], ROUNDS + 1))
    assert steps[0] > newest  # a worker may have written one more before it followed


def _left(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended after a minute."""
    return psutil.wait_procs(processes, timeout=60)[1]


def _newest(root: Path) -> int:
    """The round of the only checkpoint that is left."""
    (slot,) = root.rglob("ckpt-*")
    return next(found.meta["round"] for found in checkpoint.usable(slot) if isinstance(found, Snapshot))


def test_the_head_gone_is_exit_code_3_and_nothing_is_lost(compose, left, whole, tmp_path, monkeypatch) -> None:
    made, root = compose(BODY, LONG), tmp_path / "out"
    process, ray = _start(tmp_path, "gcs_server")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert "abort heard" in said, said
    assert "lost Ray, which has not answered for 2 s" in said, said
    assert "run the same command to continue" in said
    assert _left(ray) == []
    store = Store.open(root, "tiny")
    assert [store.seeds(cell) for cell in store.cells()] == [[1, 2], []]
    _continues(made, root, monkeypatch)
    assert left(root) == whole(made)


def test_the_driver_killed_under_ray_leaves_nobody_behind_and_continues(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, root = compose(BODY, LONG), tmp_path / "out"
    process, ray = _start(tmp_path, "nobody")
    at_once = [each for each in ray if "Agent" not in each.name()]  # Ray's agents notice it after a minute
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert _left(at_once) == []
    _continues(made, root, monkeypatch)
    assert left(root) == whole(made)
