"""What the platform adds to short trials."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from fpl_tune import config, methods
from fpl_tune.bench.measure import Measured, Meter, Peak, Progress, Steps, images_told, matrix_rate, once
from fpl_tune.execute import inline
from fpl_tune.execute.runner import run_study
from fpl_tune.formatting import counted
from fpl_tune.trial import Trial, world_of

_SHORT = ["protocol.rounds=1", "protocol.epochs=1"]


def bench_study(
    overrides: Sequence[str],
    device: str = "cpu",
    *,
    cache_dir: Path,
    trials: int = 20,
    progress: Progress | None = None,
) -> list[Measured]:
    """A study of short trials that differ in their learning rate, against one process for each of them.

    The process is started and measured once. The note tells what the platform adds to a trial: the study's time
    without what the same trials take alone in this process.
    """
    short = [*_SHORT, *overrides]
    steps = Steps(2 * trials + 4, progress)
    run = config.compose_run(short)
    world = world_of(run, cache_dir=cache_dir, device=device, progress=images_told(progress))
    where = world.towers.device

    def alone() -> None:
        Trial(run, [1], cache_dir=cache_dir, device=device).run_all()

    alone()
    steps("trials without the platform", trials)
    bare = once(lambda: [alone() for _ in range(trials)], where)
    meter, peak = Meter(), Peak(where)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.yaml"
        rates = [0.001 * (i + 1) for i in range(trials)]
        study = {"defaults": ["/study", "_self_"], "seeds": 1, "axes": {"optim.lr": rates}}
        file.write_text(yaml.safe_dump({**study, "execution": {"executor": "inline"}}), encoding="utf-8")
        spec, node = config.compose_study(str(file), short)
        steps("the study", trials)
        with meter.on(world.towers):
            began = time.perf_counter()
            done = run_study(spec, node, root=Path(folder), executor=inline.execute).done
            seconds = time.perf_counter() - began
    bytes_ = peak.bytes()
    steps("one process for one trial", 4)
    command = [sys.executable, "-m", "fpl_tune", "run", *short, "--seeds", "1", "--format", "json"]
    one = once(lambda: subprocess.run(command, check=True, capture_output=True), where)
    rate = matrix_rate(where, world.towers.dtype)
    each, added = 1e3 * seconds / trials, 1e3 * (seconds - bare) / trials
    return [
        Measured(
            f"study of {counted(done, 'trial')}, {methods.name_of(run.method)} {run.clip.name}",
            seconds,
            one * trials,
            meter.tokens,
            meter.operations,
            meter.operations / seconds / rate,
            bytes_,
            f"{each:.0f} ms a trial, {added:.0f} ms of them the platform's; "
            f"plain path: a process for each trial, {one:.3g} s, measured once",
            min(1.0, meter.text_seconds(world.towers) / seconds),
        )
    ]
