"""How many trials of a study run at once: what the cluster has now, shared with the other studies on it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from fpl_tune.execute.ray.newcomers import Newcomers

if TYPE_CHECKING:  # the actor of shares must not load torch
    from fpl_tune.execute.job import Setup

REFRESH_SECONDS = 2.0
_SILENT_SECONDS = 30.0  # a study that has not asked for so long is gone


class Shares:
    """Who runs studies on a cluster; an actor that the first of them starts. Slots are shared max-min fairly."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, int]] = {}

    def ask(self, study: str, wanted: int, slots: int) -> int:
        """Slots of `slots` that a study may fill now; each of those that want more gets the same."""
        now = time.monotonic()
        self._asked[study] = (now, wanted)
        self._asked = {k: v for k, v in self._asked.items() if now - v[0] < _SILENT_SECONDS}
        return fair(slots, {k: n for k, (_, n) in self._asked.items()})[study]

    def leave(self, study: str) -> None:
        self._asked.pop(study, None)


def fair(slots: int, wanted: dict[str, int]) -> dict[str, int]:
    """Max-min fair shares: nobody gets more than wanted, nobody who wants gets nothing, what is left over goes round.

    Where slots are fewer than studies each still gets one: the cluster queues what does not fit.
    """
    given = dict.fromkeys(wanted, 0)
    left = slots
    open_ = sorted(wanted, key=lambda k: (wanted[k], k))
    while open_:
        share = -(-left // len(open_))
        first = open_.pop(0)
        given[first] = min(wanted[first], max(1, share))
        left = max(0, left - given[first])
    return given


def carried(setup: Setup, newcomers: Newcomers | None = None) -> int:
    """Trials that the living nodes carry at once, without newcomers that are not known to be fit."""
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    fit = alive if newcomers is None else newcomers.fit(list(alive))
    count = 0
    for has in (alive[node] for node in fit):
        by_cpu = int(has.get("CPU", 0) // setup.threads)
        count += min(by_cpu, int(has.get("GPU", 0) / setup.gpus + 1e-6)) if setup.gpus else by_cpu
    return min(count, setup.parallel) if setup.parallel_given else count


class Room:
    """Trials that may run at once. On a machine of its own the setup's number, on a cluster what it carries now.

    Args:
        setup: of the study.
        nodes: ids of the cluster's nodes that were found fit at its start.
    """

    def __init__(self, setup: Setup, nodes: Sequence[str] = ()) -> None:
        self.setup = setup
        self._study = f"{setup.folder.name}-{uuid.uuid4().hex[:8]}"
        self._asked = float("-inf")
        self._slots: int = setup.parallel
        self._shares: Any = None
        self._newcomers: Newcomers | None = None
        if setup.address is not None:
            self._newcomers = Newcomers(setup, nodes)
            options = {"name": "fpl-tune-shares", "namespace": "fpl-tune", "lifetime": "detached", "num_cpus": 0}
            self._shares = ray.remote(Shares).options(get_if_exists=True, max_restarts=-1, **options).remote()

    def slots(self, wanted: int) -> int:
        """Of `wanted` trials, how many may run at once."""
        if self._shares is None:
            return self._slots
        if time.monotonic() - self._asked > REFRESH_SECONDS:
            self._asked = time.monotonic()
            most = carried(self.setup, self._newcomers)
            try:
                self._slots = int(ray.get(self._shares.ask.remote(self._study, wanted, most), timeout=10))  # type: ignore[arg-type]
            except (RayError, TimeoutError):  # its node is gone, and it is not back yet
                self._slots = most
        return self._slots

    @property
    def refused(self) -> list[str]:
        """Ids of nodes that are to get no trials."""
        return self._newcomers.refused if self._newcomers else []

    def refuse(self, node: str, finding: str) -> None:
        """A trial has found that its node must not run any."""
        if self._newcomers:
            self._newcomers.refuse(node, f"Node {node[:6]}", finding, "See fpl-tune doctor.")

    def close(self) -> None:
        if self._newcomers:
            self._newcomers.close()
        if self._shares is not None:
            with suppress(RayError, TimeoutError):
                ray.get(self._shares.leave.remote(self._study), timeout=10)
