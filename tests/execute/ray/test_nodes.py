"""How long the node check waits, and for what."""

from __future__ import annotations

import time
from collections.abc import Callable
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
        fields = {
            "Alive": True,
            "NodeManagerHostname": "h",
            "NodeManagerAddress": "a",
            "Resources": {"CPU": 1, "GPU": 1},
        }
        return [{"NodeID": name, **fields} for name in self.late]

    def on(self, info: dict[str, Any], work: Callable[..., Any], *_: Any) -> Any:
        if work is nodes.look:
            return (0.1, info["NodeID"], nodes.Facts({}, "", "", 0, ()))
        return (self.late[info["NodeID"]], info["NodeID"], ((80, 70),))

    def wait(self, refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        until = self.waited + timeout
        times = sorted(ref[0] for ref in refs)
        self.waited = max(self.waited, min(until, times[num_returns - 1]))
        ready = [ref for ref in refs if ref[0] <= self.waited]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: Any) -> Any:
        return ref[2]


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., tuple[dict[str, int], float]]:
    def surveyed(**late: float) -> tuple[dict[str, int], float]:
        cluster = Cluster(**late)
        monkeypatch.setattr(nodes, "ray", cluster)
        monkeypatch.setattr(nodes, "_on", cluster.on)
        monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: cluster.waited))
        found = nodes.survey(str(tmp_path), tmp_path)
        return {node.id: len(node.facts.gpus) if node.facts else -1 for node in found}, cluster.waited

    return surveyed


def test_a_node_whose_gpus_answer_late_is_not_waited_for(survey: Callable[..., Any]) -> None:
    """It gets trials once it has answered (`Bridge`)."""
    assert survey(fast=3.0, hung=1e9) == ({"fast": 1, "hung": 0}, nodes.ANSWER_SECONDS)
    assert survey(fast=3.0, slow=5.0) == ({"fast": 1, "slow": 1}, 5.0)


def test_where_no_gpu_has_answered_the_first_one_is_waited_for(survey: Callable[..., Any]) -> None:
    assert survey(slow=40.0, hung=1e9) == ({"slow": 1, "hung": 0}, 40.0)
    found, seconds = survey(hung=1e9)
    assert found == {"hung": 0}
    assert seconds == nodes.ANSWER_SECONDS + gpus.SECONDS


def test_a_machine_that_does_not_answer_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_ASK", "import time; time.sleep(60)")
    monkeypatch.setattr(gpus, "SECONDS", 0.5)
    began = time.monotonic()
    assert gpus.gpus_here() == ()
    assert time.monotonic() - began < 20
    monkeypatch.setattr(gpus, "SECONDS", 60.0)
    monkeypatch.setattr(gpus, "_ASK", "print([[8, 5]])")
    assert gpus.gpus_here() == ((8, 5),)
