"""What Ray says of its nodes, and where; what it writes for us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fpl_tune.execute.ray.connect import _token_for_us_alone, say

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


def test_a_token_that_ray_writes_for_us_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = pytest.importorskip("ray._private.authentication.authentication_token_setup")
    monkeypatch.setenv("HOME", str(tmp_path))
    before, mask = setup.generate_and_save_token, os.umask(0o022)
    try:
        with _token_for_us_alone():
            setup.generate_and_save_token()
        token = tmp_path / ".ray" / "auth_token"
        assert [path.stat().st_mode & 0o777 for path in (token, token.parent)] == [0o600, 0o700]
        (tmp_path / "other").touch()
        assert (tmp_path / "other").stat().st_mode & 0o777 == 0o644, "what else is written has the usual mode"
    finally:
        os.umask(mask)
    assert setup.generate_and_save_token is before
