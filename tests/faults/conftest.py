"""What the tests of faults share: a tiny study, and what it leaves on disk."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import config

from ..conftest import start_study as run_study


@pytest.fixture
def head(head: str) -> str:
    """Smaller, of more rounds, each with a checkpoint."""
    for old, new in [
        ("train_per_class: 12, test_per_class: 3, shots: 4", "train_per_class: 8, test_per_class: 2, shots: 2"),
        ("n_clients: 4", "n_clients: 2"),
        ("rounds: 2", "rounds: 4"),
        ("checkpoint_every: 2", "checkpoint_every: 1, device: cpu"),
    ]:
        head = head.replace(old, new)
    return head


_CLOCK = (
    "time/seconds",
    "time/test_seconds",
    "time/train_seconds",
    "finished",
    "history",
)  # the last: a digest, of times too


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
        key = json.dumps(
            {name: made.node[name] for name in (*config.RUN_FIELDS, "axes", "search", "seeds")}, default=str
        )
        if key not in _undisturbed:
            root = tmp_path_factory.mktemp("whole")
            spec = replace(made, execution=replace(made.execution, executor="inline", address=None))
            assert run_study(spec, root=root).exit_code == 0
            _undisturbed[key] = _left(root)
        return _undisturbed[key]

    return make
