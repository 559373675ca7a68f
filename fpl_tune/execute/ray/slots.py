"""Slots: the number of trials that a study runs at once on a cluster that it shares with other studies."""

from __future__ import annotations

import time
import uuid
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

if TYPE_CHECKING:  # the actor of shares must not load torch
    from fpl_tune.execute.job import Setup

REFRESH_SECONDS = 2.0
REFUSED_SECONDS = 60.0
"""A refused node may run trials again after this time: it may have been repaired."""
_SILENT_SECONDS = 30.0  # a study without a request for this long has ended


class NodeRefused(UserWarning):
    """A node that joined cannot run trials."""


class Shares:
    """Divides a cluster's slots among the studies that run on it: max-min fair. A named actor on the cluster."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, int]] = {}

    def ask(self, study: str, wanted: int, slots: int) -> int:
        """Slots of `slots` that a study may use now, if it wants `wanted`."""
        now = time.monotonic()
        self._asked[study] = (now, wanted)
        self._asked = {k: v for k, v in self._asked.items() if now - v[0] < _SILENT_SECONDS}
        return fair(slots, {k: n for k, (_, n) in self._asked.items()})[study]

    def leave(self, study: str) -> None:
        self._asked.pop(study, None)


def fair(slots: int, wanted: dict[str, int]) -> dict[str, int]:
    """Max-min fair shares of `slots`.

    With fewer slots than studies, each study still gets one: the cluster queues the trials that do not fit.
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


def carried(setup: Setup, refused: tuple[str, ...] = ()) -> int:
    """Trials that the living nodes can run at once, without the refused nodes."""
    count = 0
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] not in refused:
            has = node["Resources"]
            by_cpu = int(has.get("CPU", 0) // setup.threads)
            count += min(by_cpu, int(has.get("GPU", 0) / setup.gpus + 1e-6)) if setup.gpus else by_cpu
    return min(count, setup.parallel) if setup.parallel_given else count


class Slots:
    """Trials that may run at once: the setup's number on this machine, what a cluster has now otherwise.

    Nodes that join are used. A node that cannot run trials is refused, and named in a warning.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._study = f"{setup.folder.name}-{uuid.uuid4().hex[:8]}"
        self._asked = float("-inf")
        self._slots: int = setup.parallel
        self._refused: dict[str, float] = {}
        self._shares: Any = None
        if setup.address is not None:
            options = {"name": "fpl-tune-shares", "namespace": "fpl-tune", "lifetime": "detached", "num_cpus": 0}
            self._shares = ray.remote(Shares).options(get_if_exists=True, max_restarts=-1, **options).remote()

    def count(self, wanted: int) -> int:
        """Number of trials that may run at once, at most `wanted` where studies share a cluster."""
        if self._shares is None:
            return self._slots
        if time.monotonic() - self._asked > REFRESH_SECONDS:
            self._asked = time.monotonic()
            most = carried(self.setup, self.refused)
            try:
                self._slots = int(ray.get(self._shares.ask.remote(self._study, wanted, most), timeout=10))  # type: ignore[arg-type]
            except (RayError, TimeoutError):  # its node is lost, and it has not restarted yet
                self._slots = most
        return self._slots

    @property
    def refused(self) -> tuple[str, ...]:
        """Ids of the nodes that get no trials now."""
        late = time.monotonic() - REFUSED_SECONDS
        return tuple(sorted(node for node, when in self._refused.items() if when > late))

    def refuse(self, node: str, finding: str) -> None:
        """Refuses a node on which a trial found that it cannot run."""
        if node not in self._refused:
            text = f"node {node[:6]} gets no trials: it {finding}. See `fpl-tune doctor`."
            warnings.warn(NodeRefused(text), stacklevel=2)
        self._refused[node] = time.monotonic()

    def close(self) -> None:
        if self._shares is not None:
            with suppress(RayError, TimeoutError):
                ray.get(self._shares.leave.remote(self._study), timeout=10)
