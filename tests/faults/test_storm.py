"""What a study consists of under Ray is killed at random, again and again: the results are those of a calm run."""

import os
import random
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fpl_tune.study.store import Store

DRIVER = """
import sys
from pathlib import Path
from fpl_tune.api import start_study
from fpl_tune.core.errors import FplTuneError
from fpl_tune.execute.ray import connect
from fpl_tune.search.compose import compose

connect.LOST_SECONDS = 2.0
study = compose(sys.argv[1], sys.argv[3:])
try:
    sys.exit(start_study(study, root=Path(sys.argv[2])).exit_code)
except FplTuneError as problem:
    print(problem, flush=True)
    sys.exit(problem.exit_code)
"""
VICTIMS = {"driver": ".*", "worker": "ray::.*Tr", "raylet": ".*/raylet", "head": ".*/gcs_server"}


def checkpoints(root: Path) -> set[str]:
    """Files of checkpoints. Unlike rglob, os.walk passes over folders that trials remove meanwhile."""
    return {f"{where}/{name}" for where, _, names in os.walk(root) for name in names if name.startswith("round-")}


def struck(driver: psutil.Popen, victim: str) -> None:
    """Kills a part of a study in the middle of some round."""
    for process in [driver] if victim == "driver" else driver.children(recursive=True):
        with suppress(psutil.Error):
            if re.match(VICTIMS[victim], " ".join(process.cmdline())):
                process.kill()


@pytest.mark.parametrize(
    "body",
    [
        "axes: {}\nsearch: {sampler: random, trials: 4, only: [optim.lr]}\nprune: {rule: null}",
        "axes: {}\nsearch: {sampler: random, confirm: 0, trials: 4, only: [optim.lr]}\n"
        "prune: {rule: halving, reduction: 2}",
    ],
    ids=["search", "halving"],
)
def test_a_storm_of_kills_changes_no_result(compose: Any, left: Any, whole: Any, tmp_path: Path, body: str) -> None:
    changes = ["protocol.rounds=80", "execution.executor=ray", "execution.parallel=2"]
    made, root, draw = compose(body, *changes), tmp_path / "out", random.Random(body)
    words = [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path / "tiny.yaml"), str(root), *changes]
    driver: psutil.Popen | None = None
    for victim in draw.sample([*VICTIMS], len(VICTIMS)):
        if driver is None or driver.poll() is not None:
            driver = psutil.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = checkpoints(root)
        while driver.poll() is None and checkpoints(root) <= before:
            time.sleep(0.05)
        if driver.poll() is None:
            struck(driver, victim)
        if victim != "worker":
            driver.wait(timeout=300)
    if driver is not None:
        driver.wait(timeout=300)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calm, stormy = whole(replace(made, prune=replace(made.prune, rule=None))), left(root)
    if "halving" in body:  # side by side, which trials go on depends on which one is at the rung first
        histories = {path: rounds for path, rounds in stormy.items() if path.endswith(".jsonl")}
        assert histories == {path: calm[path][: len(rounds)] for path, rounds in histories.items()}
        store = Store.open(root, "tiny")
        assert len(store.cells()) == 4
        assert {store.row(cell).state.value for cell in store.cells()} == {"done", "pruned"}
        assert [1, 2] in [[*store.row(cell).counts] for cell in store.cells()]
        assert all(store.row(store.cell(path.parent.name)).state == "pruned" for path in root.rglob("ckpt-*"))
    else:
        assert stormy == calm
        assert not list(root.rglob("ckpt-*"))
