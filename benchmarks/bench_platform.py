"""The overhead of the platform: planning and starting a large study, a suggestion, a short trial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fpl_tune import config, methods
from fpl_tune.bench.measure import OnProgress, Steps, images_progress, once
from fpl_tune.core.formatting import counted
from fpl_tune.execute import ray
from fpl_tune.execute.runner import Callback, run_study
from fpl_tune.search.ask import ask
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.search.halving import design_of
from fpl_tune.search.search import Search
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.worlds import world_of
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import Status
from fpl_tune.study.standing import Row, Run

_WAIT = 600.0  # time limit of a study's first result in seconds
_SPACE = {
    "optim.lr": {"low": 1e-4, "high": 1.0, "log": True},
    "optim.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "protocol.epochs": {"low": 1, "high": 8},
}


def bench_platform(
    overrides: Sequence[str],
    device: str = "cpu",
    *,
    cache_dir: Path,
    cells: int = 1000,
    trials: int = 20,
    progress: OnProgress | None = None,
) -> list[dict[str, Any]]:
    """Measures the seconds besides training, a row each: what, seconds, how it was measured.

    Planning and starting are measured in a fresh process. Suggestions are requested after `cells` simulated results.
    """
    steps = Steps(40 + trials, progress)
    run = config.compose_run(overrides)
    world_of(run, cache_dir=cache_dir, device=device, progress=images_progress(progress))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        large = study_file(root / "large.yaml", {"axes": {"optim.lr": [1e-4 * (i + 1) for i in range(cells)]}})
        steps(f"plan of {counted(cells, 'cell')}", 10)
        plan = _planned(large, overrides, cache_dir)
        steps(f"start of {counted(cells, 'cell')}", 10)
        start = _started(large, overrides, root / "out")
        steps("suggestions", 20)
        suggestion = suggestion_seconds(root, overrides, cells)
        steps("short trials", trials)
        added = _added(root, overrides, device, cache_dir, trials)
    known = f"{counted(cells, 'cell')}, {methods.name_of(run.method)} on {run.clip.name}"
    return [
        {"what": "plan", "seconds": plan, "measured": f"`fpl-tune plan`, {known}"},
        {"what": "start", "seconds": start, "measured": f"`fpl-tune study` until its first result, {known}, under Ray"},
        {
            "what": "suggestion",
            "seconds": suggestion,
            "measured": f"TPE over {len(_SPACE)} fields after {counted(cells, 'trial')}",
        },
        {
            "what": "short trial",
            "seconds": added,
            "measured": f"under Ray, without what it takes alone; {counted(trials, 'trial')}, one after the other",
        },
    ]


def study_file(file: Path, body: Mapping[str, Any]) -> Path:
    """Writes a study of one seed and one trial at a time under Ray."""
    execution = {"executor": "ray", "parallel": 1}
    node = {"defaults": ["/study", "_self_"], "seeds": 1, "execution": execution, **body}
    file.write_text(yaml.safe_dump(node), encoding="utf-8")
    return file


def _planned(study: Path, overrides: Sequence[str], cache_dir: Path) -> float:
    """Seconds of `fpl-tune plan`."""
    command = [sys.executable, "-m", "fpl_tune", "plan", str(study), *overrides, "--format", "json"]
    environment = {**os.environ, "FPL_TUNE_CACHE": str(cache_dir), "FPL_TUNE_OUTPUT": str(study.parent / "out")}
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    seconds = time.perf_counter() - began
    assert json.loads(done.stdout)["cells"] > 0
    return seconds


def _started(study: Path, overrides: Sequence[str], out: Path) -> float:
    """Seconds until a study in a fresh process has stored its first result; then it is stopped."""
    command = [sys.executable, "-m", "fpl_tune", "study", str(study), *overrides]
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, "FPL_TUNE_OUTPUT": str(out)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not any(out.glob("*/cells/*/*/result.json")) and process.poll() is None:
            if time.perf_counter() - began > _WAIT:
                raise TimeoutError(f"The study had no result within {_WAIT:g} s.")
            time.sleep(0.05)
        seconds = time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    return seconds


def suggestion_seconds(root: Path, overrides: Sequence[str], trials: int) -> float:
    """Seconds of asking for the next trial after so many, each of which is done."""
    search = {"sampler": "tpe", "confirm": 0, "trials": trials + 20, "space": _SPACE, "only": list(_SPACE)}
    file = study_file(root / "search.yaml", {"search": search})
    spec = config.compose_study(str(file), overrides)
    plan, design, rows = Search.plan(spec), design_of(spec), list[Row]()
    assert plan is not None
    began = 0.0
    for number in range(trials + 20):
        if number == trials:
            began = time.perf_counter()
        cell = ask(plan.parts[0], design, rows)
        assert cell is not None
        history = _made_up(cell)
        rows.append(Row(cell, design, {1: Run(Status.DONE, cell.rounds, lambda history=history: history)}))
    return (time.perf_counter() - began) / 20


def _made_up(cell: Cell) -> list[dict[str, Any]]:
    """A history with an optimum within the space."""
    optim = cell.run.optim
    value = 1 - (optim.lr - 0.05) ** 2 - optim.weight_decay
    costs = {"time/seconds": 1.0, "comm/up_bytes": 1, "comm/down_bytes": 1}
    return [{"seed": 1, "round": 1, "val/acc_mean": value, **costs}]


class _Clock(Callback):
    """When cells ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_cell_end(self, row: Row) -> None:
        self.ends.append(time.perf_counter())


def _added(root: Path, overrides: Sequence[str], device: str, cache_dir: Path, trials: int) -> float:
    """What a short trial takes under Ray beyond what it takes alone in this process, from the second on."""
    short = [*overrides, "protocol.rounds=1", "protocol.epochs=1"]
    run = config.compose_run(short)

    def alone() -> None:
        Simulation(run, [1], cache_dir=cache_dir, device=device).run_all()

    alone()
    where = world_of(run, cache_dir=cache_dir, device=device).towers.device
    bare = once(lambda: [alone() for _ in range(trials)], where)
    file = study_file(root / "short.yaml", {"axes": {"optim.lr": [1e-3 * (i + 1) for i in range(trials + 1)]}})
    clock = _Clock()
    run_study(
        ComposedStudy.of(config.compose_study(str(file), short)),
        root=root / "short",
        executor=ray.execute,
        callbacks=[clock],
    )
    first, *_, last = clock.ends
    return (last - first) / trials - bare / trials
