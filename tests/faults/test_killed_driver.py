"""The process of a study is killed again and again, at points drawn from a fixed seed: nothing lost or done twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.study.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def _reached(folder: Path) -> dict[str, int]:
    """By cell that is not finished, the round of its newest checkpoint that is whole."""
    found = {}
    for cell in (folder / "cells").glob("*"):
        rounds = [
            s.meta["round"] for slot in cell.glob("ckpt-*") for s in checkpoint.usable(slot) if isinstance(s, Snapshot)
        ]
        found[cell.name] = max(rounds, default=0)
    return found


def _finished(root: Path) -> set[str]:
    store = Store(root, "tiny")
    return {c.id for c in store.cells() if all((store.result(c, s) or {}).get("status") == "done" for s in (1, 2))}


def test_killed_again_and_again_equals_undisturbed(compose, mortal, left, whole, tmp_path) -> None:
    made = compose()
    draw, root, kills = random.Random(1), tmp_path / "killed", 0
    while True:
        before = _reached(root / "tiny") if kills else {}
        finished = _finished(root) if kills else set()
        code = mortal.run(lambda: run_study(made, root=root).exit_code, draw.randint(5, 45))
        first: dict[str, int] = {}
        for cell, number in mortal.steps:
            assert cell not in finished
            first.setdefault(cell, number)
        for cell, number in first.items():
            assert number == before.get(cell, 0) + 1
        if code is not None:
            break
        kills += 1
        assert kills < 20
    assert code == 0
    assert kills >= 4
    assert left(root) == whole(made)
