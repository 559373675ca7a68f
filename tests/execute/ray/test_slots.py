"""Slots of a cluster, and addresses where no cluster is."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.job import Setup
from fpl_tune.execute.ray import connect
from fpl_tune.execute.ray.slots import REFUSED_SECONDS, NodeRefused, Shares, Slots, fair


@given(st.integers(0, 50), st.dictionaries(st.text(max_size=3), st.integers(0, 60), min_size=1, max_size=9))
def test_shares_are_max_min_fair(slots: int, wanted: dict[str, int]) -> None:
    given_ = fair(slots, wanted)
    assert all(given_[k] <= n for k, n in wanted.items())
    assert all(given_[k] >= 1 for k, n in wanted.items() if n), "nobody is locked out"
    if slots >= len(wanted):
        assert sum(given_.values()) == min(slots, sum(wanted.values())), "nothing lies idle"
        most = max(given_.values())
        assert all(given_[k] == n or given_[k] >= most - 1 for k, n in wanted.items()), "who wants more has no less"


def test_a_study_that_leaves_or_falls_silent_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = Shares()
    assert shares.ask("a", 100, 8) == 8
    assert shares.ask("b", 100, 8) == 4
    assert shares.ask("a", 100, 8) == 4
    assert shares.ask("a", 1, 8) == 1
    assert shares.ask("b", 100, 8) == 7
    shares.leave("a")
    assert shares.ask("b", 100, 8) == 8
    shares.ask("c", 100, 8)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert shares.ask("b", 100, 8) == 8


def test_a_node_that_cannot_run_trials_is_refused_for_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slots = Slots(Setup(tmp_path, tmp_path))
    assert slots.refused == ()
    with pytest.warns(NodeRefused, match="node 012345 gets no trials: it has torch 0.0.1. See"):
        slots.refuse("0123456789", "has torch 0.0.1")
    slots.refuse("0123456789", "has torch 0.0.1")
    assert slots.refused == ("0123456789",)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + REFUSED_SECONDS + 1)
    assert slots.refused == (), "it may have been repaired"


@pytest.mark.parametrize("reply", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b""])
def test_a_server_that_is_not_ray_is_named_in_bounded_time(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "JOIN_SECONDS", 3.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        closing = threading.Event()

        def answer() -> None:
            while not closing.is_set():
                line, _ = listening.accept()
                with line:
                    line.sendall(reply)
                    closing.wait(0.2)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        began = time.monotonic()
        port = listening.getsockname()[1]
        with (
            pytest.raises(EnvironmentProblem, match=f"cannot join the Ray cluster at 127.0.0.1:{port}: ") as caught,
            connect.connected(f"127.0.0.1:{port}"),
        ):
            pass
        assert "\n" not in str(caught.value)
        assert time.monotonic() - began < 60
        closing.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


def test_an_address_is_host_and_port() -> None:
    for address in ("head:ray", "head", "head:99999", ""):
        with pytest.raises(ConfigError, match="auto or host:port"), connect.connected(address):
            pass
