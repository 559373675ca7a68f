"""GPUs of nodes that join or are lost while a study runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fpl_tune.execute.job import ExecutionContext
from fpl_tune.execute.packing import Packing, Slice
from fpl_tune.execute.ray import bridge
from fpl_tune.execute.ray.nodes import Node


def test_gpus_of_nodes_that_pass_the_check_are_added_and_those_of_lost_nodes_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def survey(*_: Any, only: Sequence[str]) -> list[Node]:
        assert set(only) == {"new", "odd"}, "each is checked once"
        return [Node(name, name, 1, 1, None) for name in only]

    alive = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 1, "GPU": 1}} for name in ("old", "new", "odd")]
    monkeypatch.setattr(bridge, "_REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(bridge.ray, "nodes", lambda: alive)
    monkeypatch.setattr(bridge, "survey", survey)
    monkeypatch.setattr(
        bridge, "findings", lambda nodes, _: [(n, "has torch 0.0.1", "") for n in nodes if n.id == "odd"]
    )
    monkeypatch.setattr(bridge, "slices", lambda nodes: [Slice(node.id, 10, 10) for node in nodes])
    packing = Packing([Slice("old", 10, 10), Slice("lost", 10, 10)], tmp_path)
    scheduler: Any = SimpleNamespace(next_job=lambda: None, exhausted=False)
    follower = bridge.Bridge(scheduler, ExecutionContext(tmp_path, tmp_path, address="x"), packing)
    for _ in range(2):
        assert follower.suggest("trial") is None
        assert follower.problem is None
        assert packing.nodes == {"old", "new"}
