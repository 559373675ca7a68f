"""The result of a seed: status, metrics, costs and reporting rules; and its aggregation over seeds."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
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
    rules = report_rules([{VAL: math.nan, **record} for record in seen])
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


@dataclass(frozen=True, eq=False)
class Run:
    """How a seed of a cell ended: the content of its result.json, and its history."""

    status: Status
    rounds: int
    records: Callable[[], Sequence[Record]] = field(default=list, repr=False)
    """Reads the history."""
    error: str | None = None
    """The error if it failed or diverged."""
    rules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """See `rules_of`; empty if it failed or diverged."""
    costs: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(COSTS, 0))
    """`COSTS` at its end."""
    split_hash: str = ""
    """Hash of the images that clients and tests hold."""
    finished: str = ""
    """The time of its end, in ISO format."""
    fingerprints: Mapping[str, Any] = field(default_factory=dict)
    """See `study.fingerprints`."""
    _values: dict[tuple[str, int], float | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def history(self) -> Sequence[Record]:
        """Records by round, which stay in memory."""
        return self.records()

    def ended(self, rounds: int) -> bool:
        """True if it has run this many rounds, or has failed or diverged before."""
        return self.rounds >= rounds or self.status in FAILURES

    def latest(self, metric: str, rounds: int) -> float | None:
        """A metric after a number of rounds, or at the last evaluation before; None if it is missing or not finite."""
        if (metric, rounds) not in self._values:
            self._values[metric, rounds] = latest(self.history[:rounds], metric)
        return self._values[metric, rounds]

    def value(self, metric: str, rule: str) -> float:
        """A metric under a reporting rule; NaN if its records do not have it."""
        chosen = self.rules.get(rule)
        if chosen is None:
            return math.nan
        if metric in COSTS:
            return float(self.costs[metric])
        return float(chosen[metric]) if metric in chosen else value_of(self.records(), metric, rule)

    def as_dict(self) -> dict[str, Any]:
        """The content of result.json, without its owner."""
        return {
            "status": self.status,
            "error": self.error,
            "rounds": self.rounds,
            "rules": self.rules,
            **self.costs,
            "split_hash": self.split_hash,
            "finished": self.finished,
            "fingerprints": self.fingerprints,
        }


def make_result(
    status: str,
    history: Sequence[Record],
    *,
    error: str | None = None,
    split_hash: str = "",
    fingerprints: Mapping[str, Any] | None = None,
) -> Run:
    """The result of a seed that ends now, from its records by round; see `Run`."""
    last: Mapping[str, Any] = history[-1] if history else {}
    return Run(
        Status(status),
        len(history),
        lambda: history,
        error,
        {} if status in FAILURES else rules_of(history),
        {name: last.get(name, 0) for name in COSTS},
        split_hash,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        fingerprints or {},
    )


def latest(history: Sequence[Record], metric: str) -> float | None:
    """A metric in the last record that has it; None if none has, or if the value is not finite."""
    names = ("comm/up_bytes", "comm/down_bytes") if metric == TOTAL_BYTES else (metric,)
    for record in reversed(history):
        if all(name in record for name in names):
            value = math.fsum(float(record[name]) for name in names)
            return value if math.isfinite(value) else None
    return None


def at_pace(metric: str, value: float, rounds: int, of: int) -> float:
    """A metric after some rounds as it is expected after all: running totals grow at their pace so far, others stay."""
    return value * of / rounds if known_metric(metric).source == "total" else value


def value_of(history: Sequence[Record], metric: str, rule: str = "final") -> float:
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


def aggregate(values: Sequence[float], metric: str = "") -> dict[str, float]:
    """Returns mean, std (n - 1), sem, n, min and max over seeds; NaN if undefined. NaN values count as missing.

    Values of a metric that seeds do not draw have no std and sem; see `Metric.sampled`.
    """
    seen = [v for v in values if not math.isnan(v)]
    n = len(seen)
    if n == 0:
        return {"mean": math.nan, "std": math.nan, "sem": math.nan, "n": 0, "min": math.nan, "max": math.nan}
    mean = math.fsum(seen) / n
    spreads = n > 1 and known_metric(metric).sampled
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in seen) / (n - 1)) if spreads else math.nan
    return {"mean": mean, "std": std, "sem": std / math.sqrt(n), "n": n, "min": min(seen), "max": max(seen)}
