"""A node that joins is asked while trials on the others go on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fpl_tune.execute.packing import Memory, Packing, Slice
from fpl_tune.execute.ray import bridge


def test_a_node_that_answers_late_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def survey(*_: Any, only: set[str], **__: Any) -> list[Any]:
        assert answers.wait(20)
        assert only == {"new"}
        return []

    alive = [{"NodeID": name, "Alive": True, "Resources": {"GPU": 1}} for name in ("old", "new")]
    monkeypatch.setattr(bridge, "_FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(bridge.ray, "nodes", lambda: alive)
    monkeypatch.setattr(bridge, "survey", survey)
    monkeypatch.setattr(bridge, "slices", lambda nodes: [Slice("new", 10, 10)])
    setup = SimpleNamespace(
        address="x", checkpoints=None, folder=tmp_path, cache_dir=tmp_path, data_roots=(), study="s"
    )
    slots: Any = SimpleNamespace(setup=setup, refused=())
    packing = Packing([Slice("old", 10, 10)], Memory(tmp_path / "memory.json"))
    scheduler: Any = SimpleNamespace(stopping=False)
    follower = bridge.Bridge(scheduler, slots, packing)
    follower._follow_nodes(packing)
    follower._follow_nodes(packing)
    assert packing.nodes == {"old"}, "nobody waited"
    answers.set()
    end = time.monotonic() + 20
    while packing.nodes != {"old", "new"} and time.monotonic() < end:
        follower._follow_nodes(packing)
        time.sleep(0.01)
    assert packing.nodes == {"old", "new"}
