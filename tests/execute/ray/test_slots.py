"""Shares of a cluster between studies, and heads that are none."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.job import Setup
from fpl_tune.execute.ray import nodes as survey
from fpl_tune.execute.ray.address import answers
from fpl_tune.execute.ray.newcomers import Newcomers, NodeRefused
from fpl_tune.execute.ray.slots import Shares, fair


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


def test_a_node_that_joins_is_asked_and_refused_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = {"bad"}
    facts = survey.Facts({}, "", "", 1, (), ())

    def asked(*_: Any, only: Sequence[str]) -> list[survey.Node]:
        return [survey.Node(node, node, 2.0, 0.0, facts) for node in only]

    def findings(nodes: Sequence[survey.Node], storage: str) -> list[tuple[survey.Node, str, str]]:
        return [(node, "is broken", "Mend it.") for node in nodes if node.id in broken]

    monkeypatch.setattr(survey, "survey", asked)
    monkeypatch.setattr(survey, "findings", findings)
    newcomers = Newcomers(Setup(tmp_path, tmp_path, address="x"), ["old"])

    def fit() -> set[str]:
        newcomers.fit(["old", "new", "bad"])
        newcomers.close()
        return newcomers.fit(["old", "new", "bad"])

    with pytest.warns(NodeRefused, match="bad has joined, but gets no trials: it is broken. Mend it.") as told:
        fit()
    assert fit() == {"old", "new"}
    assert newcomers.refused == ["bad"]
    assert newcomers.fit(["old", "new"]) == {"old", "new"}
    assert newcomers.refused == [], "it is gone"
    with pytest.warns(NodeRefused):
        fit()
    broken.clear()
    monkeypatch.setattr("fpl_tune.execute.ray.newcomers.AGAIN_SECONDS", 0.0)
    assert fit() == {"old", "new", "bad"}
    assert newcomers.refused == []
    assert len(told) == 1


@pytest.mark.parametrize("reply", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b""])
def test_what_answers_but_is_no_head_is_named_in_seconds(reply: bytes) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def answer() -> None:
            line, _ = listening.accept()
            with line:
                line.sendall(reply)
                time.sleep(0.2 if reply else 8)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(EnvironmentProblem, match="is no head of a Ray cluster, or hangs"):
            answers(f"127.0.0.1:{listening.getsockname()[1]}")
        assert time.monotonic() - began < 15
        thread.join()


def test_an_address_is_host_and_port() -> None:
    for address in ("head:ray", "head", "head:99999", ""):
        with pytest.raises(ConfigError, match="auto or host:port"):
            answers(address)
