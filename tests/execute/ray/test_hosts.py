"""Four hosts with addresses, links and clocks of their own: what is cut, or joins late, changes no result."""

from collections.abc import Iterator
from typing import Any

import pytest
from bench_hosts import WORKERS, Run, calm, cut, cut_for_good, left, node_joins, restored, started
from hosts import Hosts, NotAllowed, wired


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Hosts without Ray."""
    try:
        with wired() as made:
            yield made
    except NotAllowed as problem:
        pytest.skip(f"no network namespaces here: {problem}")


@pytest.fixture(scope="module")
def expected(hosts: Hosts) -> dict[str, Any]:
    """What the study leaves when nothing happens."""
    return calm(hosts.folder)


def test_a_late_node_with_a_wrong_clock_and_a_long_cut_change_nothing(hosts: Hosts, expected: dict[str, Any]) -> None:
    """26 s are shorter than what Ray takes a node for dead after, and longer than it keeps connections by itself."""
    restored(hosts)
    run = Run(hosts, hosts.folder / "late", hosts.folder / "bucket")
    run.start()
    node_joins(run)
    cut((*WORKERS, "three"), 26)(run)
    run.follow()
    hosts.kill("three")
    assert run.codes == [0], run.said
    assert run.pause < 150, "by Ray's own settings the driver notices after 300 s"
    assert left(run.root) == expected
    assert not [path for path in (hosts.folder / "bucket").rglob("*") if path.is_file()]


def test_nodes_that_a_cut_has_ended_and_that_start_again_get_their_trials(
    hosts: Hosts, expected: dict[str, Any]
) -> None:
    restored(hosts)
    run = Run(hosts, hosts.folder / "cut")
    run.start()
    cut_for_good(run)
    run.follow()
    assert run.codes == [0], run.said
    assert left(run.root) == expected
    assert "state-dump" not in run.said


def test_a_node_that_this_machine_cannot_reach_is_named_with_its_address(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is not on the head's host, which all of them reach."""
    restored(hosts)
    hosts.start("three", cpus=0)
    hosts.keep_apart("one", "three")
    monkeypatch.setenv("FPL_TUNE_NODE_SECONDS", "20")
    words = [f"execution.address='{hosts.address}'"]
    driver = started(hosts.folder / "apart", *words, within=hosts.within("three"))
    said, _ = driver.communicate(timeout=120)
    assert driver.returncode == 3, said
    refusal = said.splitlines()[-1]
    assert f"({hosts.host('one')}) cannot run a worker: no worker answered within 20 s. Open its ports to" in refusal
    assert hosts.host("two") not in refusal
