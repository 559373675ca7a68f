"""The result of a seed: status, metrics, costs and reporting rules; and its aggregation over seeds."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fpl_tune.core.metrics import TEST, TOTAL_BYTES, VAL, report_rules, shown_beside
from fpl_tune.core.metrics import metric as known_metric

if TYPE_CHECKING:
    from fpl_tune.simulation.simulation import Record


class Status(StrEnum):
    """The status of a seed's result. A member equals its string."""

    DONE = "done"
    """All rounds were run."""
    PARTIAL = "partial"
    """Rounds up to a rung were run, where the trial is paused or was pruned."""
    DIVERGED = "diverged"
    FAILED = "failed"


FAILURES = frozenset({Status.DIVERGED, Status.FAILED})
METRICS = (VAL, TEST)
"""Metrics that every result holds, by rule."""
COSTS = ("comm/up_bytes", "comm/down_bytes", "time/seconds")
"""Running totals of a seed."""


def rules_of(history: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Applies every reporting rule to one seed's evaluated rounds.

    Returns:
        Rule -> round, validation accuracy, test accuracy, and further metrics of tables at that round. Without
        validation images, only the rules that do not need them.
    """
    seen = [record for record in history if TEST in record]
    if not seen:
        return {}
    rules = report_rules([{VAL: math.nan, **record} for record in seen], TEST)
    if any(VAL not in record for record in seen):
        rules.pop("best_val")
    for name, rule in rules.items():
        record = seen[int(rule["round"]) - 1]
        rule |= {"round": int(record["round"])}
        for further in shown_beside(record):
            averaged = name == "mean_last5" and known_metric(further).source == "round"
            rule[further] = _mean(seen[-5:], further) if averaged else record[further]
    return rules


def _mean(records: Sequence[Record], metric: str) -> float:
    """The mean of a metric over records; NaN if one lacks it."""
    return math.fsum(float(record.get(metric, math.nan)) for record in records) / len(records)


def make_result(status: str, history: Sequence[Record], *, error: str | None = None, **extra: Any) -> dict[str, Any]:
    """Builds the stored result of one seed.

    Args:
        status: the seed's status.
        history: its records by round.
        error: the error if it failed.
        extra: `split_hash`, `fingerprints`.
    """
    last: Mapping[str, Any] = history[-1] if history else {}
    return {
        "status": status,
        "error": error,
        "rounds": int(last.get("round", 0)),
        "rules": {} if status in FAILURES else rules_of(history),
        **{name: last.get(name, 0) for name in COSTS},
        "split_hash": extra.pop("split_hash", ""),
        **extra,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def figure(history: Sequence[Record], metric: str, rule: str = "final") -> float:
    """Reads one metric of one seed under a reporting rule.

    Returns:
        The metric at the round that the rule chooses; for costs the total at the end of the run; NaN if no record has
        it.
    """
    if not history:
        return math.nan
    last = history[-1]
    if metric == TOTAL_BYTES:
        return float(last["comm/up_bytes"] + last["comm/down_bytes"])
    if known_metric(metric).source != "round":
        return float(last.get(metric, math.nan))
    rules = rules_of(history)
    chosen = rules.get(rule, rules.get("final", {}))
    if metric in chosen:
        return float(chosen[metric])
    if rule == "mean_last5" and chosen:
        return _mean([record for record in history if TEST in record][-5:], metric)
    at = chosen.get("round", last["round"])
    return float(next(r for r in history if r["round"] == at).get(metric, math.nan))


def aggregate(values: Sequence[float]) -> dict[str, float]:
    """Returns mean, std (n - 1), sem, n, min and max over seeds; NaN if undefined. NaN values count as missing."""
    seen = [v for v in values if not math.isnan(v)]
    n = len(seen)
    if n == 0:
        return {"mean": math.nan, "std": math.nan, "sem": math.nan, "n": 0, "min": math.nan, "max": math.nan}
    mean = math.fsum(seen) / n
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in seen) / (n - 1)) if n > 1 else math.nan
    return {"mean": mean, "std": std, "sem": std / math.sqrt(n), "n": n, "min": min(seen), "max": max(seen)}
