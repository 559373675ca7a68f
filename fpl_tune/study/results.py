"""From a history to a result: figures by reporting rule. What chooses a round reads validation figures only."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.evaluate import report_rules
from fpl_tune.trial import Record

METRICS = ("val/acc_mean", "test/acc_mean")
LEARNED = "train/parameters"
"""Scalars that one client learns in the last stage; in the last record alone."""
COSTS = ("comm/up_bytes", "comm/down_bytes", "time/seconds")

MAXIMISED = ("val/acc_mean", "val/acc_worst10")
MINIMISED = (
    "val/loss",
    "val/acc_std",
    "train/loss",
    "comm/up_bytes",
    "comm/down_bytes",
    "comm/total_bytes",
    "time/seconds",
)
"""What a search may ask for. Test figures are not among them."""


def rules_of(history: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Round, validation and test accuracy by reporting rule, over the rounds that were evaluated.

    Without validation images only the rules that need none are there.
    """
    seen = [record for record in history if METRICS[1] in record]
    if not seen:
        return {}
    blind = [{METRICS[0]: math.nan, **record} for record in seen]
    rules = report_rules(blind, METRICS[1])
    if any(METRICS[0] not in record for record in seen):
        rules.pop("best_val")
    for rule in rules.values():
        rule["round"] = int(seen[int(rule["round"]) - 1]["round"])
    return rules


def make_result(status: str, history: Sequence[Record], *, error: str | None = None, **extra: Any) -> dict[str, Any]:
    """What is stored of one seed. `extra`: split_hash, data, peak_memory_bytes."""
    last: Mapping[str, Any] = history[-1] if history else {}
    return {
        "status": status,
        "error": error,
        "rounds": int(last.get("round", 0)),
        "rules": rules_of(history) if status in ("done", "pruned") else {},
        **{name: last.get(name, 0) for name in COSTS},
        "split_hash": extra.pop("split_hash", ""),
        **extra,
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def figure(history: Sequence[Record], metric: str, rule: str = "final") -> float:
    """One metric of one seed at the round that the rule chooses; nan where it was not measured.

    Costs are totals at the end of the run whatever the rule.
    """
    if metric == "comm/total_bytes":
        return float(history[-1]["comm/up_bytes"] + history[-1]["comm/down_bytes"])
    if metric in COSTS:
        return float(history[-1][metric])
    if metric == LEARNED:
        return float(history[-1].get(metric, math.nan))
    rules = rules_of(history)
    at = rules.get(rule, rules.get("final", {})).get("round", history[-1]["round"])
    return float(next(r for r in history if r["round"] == at).get(metric, math.nan))
