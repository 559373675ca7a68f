"""What the tests of faults share: a tiny study, what it leaves on disk, and a process that is killed on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.simulation.simulation import Simulation


@pytest.fixture
def head() -> str:
    return """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 8, test_per_class: 2, shots: 2, domains: [clipart]}
partition: {n_clients: 2}
protocol: {rounds: 4, epochs: 1}
execution: {executor: inline, checkpoint_every: 1, device: cpu}
seeds: 2
"""


_CLOCK = ("time/seconds", "time/test_seconds", "finished")


def _untimed(node: Any) -> Any:
    """Without what a clock or the process's size says."""
    if isinstance(node, dict):
        return {k: _untimed(v) for k, v in node.items() if k not in _CLOCK}
    return node


def _left(root: Path, name: str = "tiny") -> dict[str, Any]:
    """Every file that a study left under its cells, by path: numbers as they are, other content byte for byte."""
    found: dict[str, Any] = {}
    folder = root / name / "cells"
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        key = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            found[key] = [_untimed(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "result.json":
            found[key] = _untimed(json.loads(path.read_text()))
        else:
            found[key] = path.read_bytes()
    return found


@pytest.fixture(name="left")
def _left_fixture() -> Callable[..., dict[str, Any]]:
    return _left


_undisturbed: dict[str, dict[str, Any]] = {}


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """whole(made): what the composed study leaves when nothing goes wrong; run once per process."""

    def make(made: config.Study) -> dict[str, Any]:
        key = json.dumps({name: made.node[name] for name in (*config.RUN_FIELDS, "axes", "seeds")}, default=str)
        if key not in _undisturbed:
            root = tmp_path_factory.mktemp("whole")
            spec = replace(made, execution=replace(made.execution, executor="inline", address=None))
            assert run_study(spec, root=root).exit_code == 0
            _undisturbed[key] = _left(root)
        return _undisturbed[key]

    return make


_FRESH = multiprocessing.get_context("forkserver")
"""Forks from a process that has computed no gradients: autograd refuses forks of one that has, beside a device."""
_FRESH.set_forkserver_preload(["fpl_tune.api", "fpl_tune.simulation.simulation"])
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # other processes do not find the modules of tests


class _Sent:
    """A function, with what it encloses, on its way to another process."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def __call__(self) -> object:
        return self.function()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)


class Mortal:
    """A process that kills itself at its n-th event: a round that begins, a file that is to be, or has been, replaced.

    What it did until then is in `steps`: (configuration, round) of every round that was begun.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "steps.log"

    def run(self, work: Callable[[], int], deadline: int | None) -> int | None:
        """The exit code of `work` in a process of its own; None: it was killed."""
        self._log.write_text("")
        child = _FRESH.Process(target=_Sent(partial(self._live, work, deadline)))
        child.start()
        child.join()
        code = child.exitcode
        child.close()
        return None if code is None or code < 0 else code

    def _live(self, work: Callable[[], int], deadline: int | None) -> None:
        code = 99
        try:
            self._arm(deadline)
            code = work()
        finally:
            os._exit(code)

    @property
    def steps(self) -> list[tuple[str, int]]:
        return [(cell, int(number)) for cell, number in (line.split() for line in self._log.read_text().splitlines())]

    def _arm(self, deadline: int | None) -> None:
        events = 0

        def tick() -> None:
            nonlocal events
            events += 1
            if events == deadline:
                os.kill(os.getpid(), signal.SIGKILL)

        step, rename = Simulation.step, os.replace

        def stepping(trial: Simulation) -> Any:
            with self._log.open("a") as log:
                log.write(f"{config.identity(trial.run)} {trial.round + 1}\n")
            tick()
            return step(trial)

        def replacing(*args: Any, **kwargs: Any) -> None:
            tick()
            rename(*args, **kwargs)
            tick()

        Simulation.step = stepping  # type: ignore[method-assign]
        os.replace = replacing
        Path.replace = lambda self, target: (replacing(self, target), target)[1]  # type: ignore[assignment,return-value]


@pytest.fixture
def mortal(tmp_path: Path) -> Mortal:
    return Mortal(tmp_path)
