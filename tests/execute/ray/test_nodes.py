"""How long the node check waits, and for what."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fpl_tune.execute import gpus
from fpl_tune.execute.ray import nodes


class Cluster:
    """Stands in for Ray: a reference is (seconds that the answer takes, answer)."""

    def __init__(self, **late: float) -> None:
        self.late, self.waited = late, 0.0

    def nodes(self) -> list[dict[str, Any]]:
        fields = {"Alive": True, "NodeManagerHostname": "h", "NodeManagerAddress": "a"}
        return [{"NodeID": name, "Resources": {"CPU": 1, "GPU": name != "cpu"}, **fields} for name in self.late]

    def remote(self, **_: Any) -> Any:
        return lambda work: SimpleNamespace(options=self.options)

    def options(self, scheduling_strategy: str) -> Any:
        late = self.late[scheduling_strategy]
        return SimpleNamespace(remote=lambda *args: (late, nodes.Facts({}, "", "", 0, (), ((80, 70),) * args[-1])))

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.waited = min(timeout, max(ref[0] for ref in refs))
        return [ref for ref in refs if ref[0] <= timeout], [ref for ref in refs if ref[0] > timeout]

    def get(self, ref: Any) -> Any:
        return ref[1]


def test_nodes_with_gpus_have_more_time_to_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their PyTorch may be read over a network."""

    def check(**late: float) -> tuple[dict[str, int | str], float]:
        cluster = Cluster(**late)
        monkeypatch.setattr(nodes, "ray", cluster)
        monkeypatch.setattr(nodes, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
        found = nodes.check_nodes(str(tmp_path), tmp_path)
        return {node.id: len(node.facts.gpus) if node.facts else node.problem for node in found}, cluster.waited

    assert check(fast=3.0, slow=40.0, cpu=1.0) == ({"fast": 1, "slow": 1, "cpu": 0}, 40.0)
    assert check(fast=3.0, hung=1e9) == ({"fast": 1, "hung": "no worker answered within 72 s"}, 72.0)
    assert check(cpu=40.0) == ({"cpu": "no worker answered within 12 s"}, 12.0)


def test_a_machine_that_does_not_answer_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_ASK", "import time; time.sleep(60)")
    monkeypatch.setattr(gpus, "SECONDS", 0.5)
    began = time.monotonic()
    assert gpus.gpus_here() == ()
    assert time.monotonic() - began < 20
    monkeypatch.setattr(gpus, "SECONDS", 60.0)
    monkeypatch.setattr(gpus, "_ASK", "print([[8, 5]])")
    assert gpus.gpus_here() == ((8, 5),)
