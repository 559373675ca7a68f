"""A program: runs a study in child processes that kill themselves at given points, and runs each again to its end.

`python dying_study.py FOLDER BLANK_DATABASE N`: FOLDER/whole is the undisturbed study, FOLDER/<point> the one killed
there. A point is a count of places passed: before and after every file that is renamed into its place, before and after
every call to MLflow, and after every round, before it is told or checkpointed. What goes on begins with the round after
its newest checkpoint, and finished cells do not run again. Prints what was killed where as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.clip import load_towers
from fpl_tune.search.compose import compose
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.study.store import Store
from fpl_tune.track import MLflowCallback, server

STUDY = """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 6, test_per_class: 1, shots: 2, domains: [clipart]}
partition: {n_clients: 2}
protocol: {rounds: 2, epochs: 1}
execution: {executor: inline, checkpoint_every: 1}
axes: {optim: {lr: [0.01, 0.1]}}
seeds: 2
"""


class Fate:
    """Counts places, and kills the process at one of them."""

    def __init__(self, point: int | None, log: Path) -> None:
        self.point, self.log, self.passed, self.lock = point, log, 0, threading.Lock()

    def passes(self, where: str) -> None:
        with self.lock:
            self.passed += 1
            if self.passed == self.point:
                self.log.write_text(where)
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def passing(*args: Any, **kwargs: Any) -> Any:
            self.passes(f"before {name}")
            result = call(*args, **kwargs)
            self.passes(f"after {name}")
            return result

        setattr(owner, name, passing)


class Watched:
    """A client of MLflow whose calls are places."""

    def __init__(self, client: Any, fate: Fate) -> None:
        self._client, self._fate = client, fate

    def __getattr__(self, name: str) -> Any:
        def passing(*args: Any, **kwargs: Any) -> Any:
            self._fate.passes("before a call to MLflow")
            result = getattr(self._client, name)(*args, **kwargs)
            self._fate.passes("after a call to MLflow")
            return result

        return passing


def due(root: Path) -> dict[str, int]:
    """By cell, the round after its newest checkpoint that is whole; 0 where it is finished."""
    store, found = Store(root, "tiny"), dict[str, int]()
    for cell in store.cells():
        slots = (store.folder / "cells" / cell.id).glob("ckpt-*")
        rounds = [s.meta["round"] for slot in slots for s in checkpoint.usable(slot) if isinstance(s, Snapshot)]
        found[cell.id] = 0 if store.seeds(cell) == [1, 2] else 1 + max(rounds, default=0)
    return found


def run(made: Any, root: Path, fate: Fate, steps: Path) -> None:
    """The study with its recorder, in this process; writes cell and round of every step."""
    step = Simulation.step

    def stepping(trial: Simulation) -> Any:
        with steps.open("a") as log:
            log.write(f"{config.identity(trial.run)} {trial.round + 1}\n")
        return step(trial)

    Simulation.step = stepping  # type: ignore[method-assign]
    fate.around(os, "replace")
    fate.around(Path, "replace")
    fate.around(Simulation, "step")
    connect = server.connect
    server.connect = lambda uri: Watched(connect(uri), fate)  # type: ignore[assignment]
    warned: list[str] = []
    threading.excepthook = lambda args: warned.append(f"{args.thread} ended with {args.exc_value!r}")
    outcome = run_study(made, root=root, callbacks=[MLflowCallback(warned.append)])
    if warned or outcome.exit_code:
        raise RuntimeError(f"{warned} {outcome}")
    fate.log.write_text(str(fate.passed))


def in_child(work: Callable[[], None]) -> int:
    """Exit status of a forked child that does the work; a signal's number below zero."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as problem:
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, blank: Path, wanted: int) -> None:
    (folder / "tiny.yaml").write_text(STUDY)
    made = compose(str(folder / "tiny.yaml"))
    load_towers("compact")  # imports what children would import again
    server.quiet()
    import_module("mlflow")
    gc.freeze()  # children leave what is there alone

    def attempt(name: str, point: int | None) -> tuple[int, str]:
        root = folder / name
        if not root.exists():
            root.mkdir()
            shutil.copy(blank, root / "mlflow.db")
        log, steps, wanted = folder / "log", folder / "steps", due(root)
        steps.write_text("")
        status = in_child(lambda: run(made, root, Fate(point, log), steps))
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"{name} ended with {status}")
        first = dict(line.split() for line in reversed(steps.read_text().splitlines()))
        assert all(int(number) == wanted.get(cell, 1) for cell, number in first.items()), (name, wanted, first)
        return status, log.read_text()

    attempt("first", None)  # fills the feature cache, whose files are places that later runs do not pass
    places = int(attempt("whole", None)[1])
    killed = []
    for i in range(wanted):
        point = 1 + i * places // wanted
        status, where = attempt(str(point), point)
        assert status, f"{point} of {places} was not reached"
        killed.append([str(point), where])
        if i % 4 == 0:
            attempt(str(point), 1 + point // 3)  # killed again on its way
        attempt(str(point), None)
    print(json.dumps({"places": places, "killed": killed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
