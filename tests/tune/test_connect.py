"""What Ray says of its nodes, and where."""

from __future__ import annotations

import pytest

from fpl_tune.tune.connect import say

DEAD = """The node with node id: 1e02 and address: 192.0.2.2 and node name: 192.0.2.2 has been marked dead because the \
detector has missed too many heartbeats from it. This can happen when a\t(1) raylet crashes unexpectedly (OOM, etc.)
\t(2) raylet has lagging heartbeats due to slow network or busy workload."""
MEMORY = "2 Workers (tasks / actors) killed due to memory pressure (OOM), 0.5 GB left at node (ID: a, IP: 192.0.2.3)."


def test_a_notice_of_ray_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say({"lines": [DEAD, f"{MEMORY} To see more information about the workers, use `ray logs`"], "pid": "raylet"})
    said = capsys.readouterr()
    assert not said.out, "where results go"
    dead, memory = said.err.splitlines()
    assert dead.startswith("Ray: The node with node id: 1e02 and address: 192.0.2.2")
    assert dead.endswith("has missed too many heartbeats from it.")
    assert memory == f"Ray: {MEMORY}"
