"""Costs of a run that are known before it starts, from its configuration and the partition of seed 1 alone."""

from __future__ import annotations

from fpl_tune.config import RunSpec
from fpl_tune.simulation.dummy import cost_key, dummy_task
from fpl_tune.simulation.traffic import bytes_sent

_known: dict[tuple[str, int], dict[str, float]] = {}


def known_costs(run: RunSpec) -> dict[str, float]:
    """The metrics `comm/...` of all rounds with seed 1."""
    key = cost_key(run), run.rounds
    if key not in _known:
        up, down = bytes_sent(run, 1, dummy_task(run))
        _known[key] = {"comm/up_bytes": up, "comm/down_bytes": down, "comm/total_bytes": up + down}
    return _known[key]
