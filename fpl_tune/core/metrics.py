"""Metrics and the reporting rules, which choose the round that counts.

Selection, early stopping and the choice of a round read validation metrics only: the functions that choose are
handed nothing else. Test metrics are written down beside them and read by reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fpl_tune.core.errors import unknown


def final_round(val: Sequence[float]) -> int:
    """The last round."""
    return len(val) - 1


def best_val_round(val: Sequence[float]) -> int:
    """The round of the highest mean validation accuracy, the earliest of equals."""
    return max(range(len(val)), key=lambda i: (val[i], -i))


CHOICES: dict[str, Callable[[Sequence[float]], int]] = {"final": final_round, "best_val": best_val_round}
"""Rules that choose a round, from validation figures alone."""

TEST_SELECTED_RULES = ("best_test", "mean_last5")
"""The papers' habits, shown for comparison and never chosen by: the best test round, the mean of the last five
evaluated rounds."""


def check_rule(rule: str, called: str = "reporting rule") -> None:
    """Raises `ConfigError` where there is no such rule to report by."""
    if rule not in (*CHOICES, *TEST_SELECTED_RULES):
        raise unknown(called, rule, (*CHOICES, *TEST_SELECTED_RULES))


def report_rules(rounds: Sequence[Mapping[str, float]], metric: str = "test/acc_mean") -> dict[str, dict[str, float]]:
    """Test figure, validation figure and round by rule, from one seed's records in order of rounds."""
    val = [record["val/acc_mean"] for record in rounds]
    rules: dict[str, dict[str, float]] = {}
    for name, choose in CHOICES.items():
        at = choose(val)
        rules[name] = {"round": at + 1, "val/acc_mean": val[at], metric: rounds[at][metric]}
    test = [record[metric] for record in rounds]
    at = max(range(len(test)), key=lambda i: (test[i], -i))
    rules["best_test"] = {"round": at + 1, "val/acc_mean": val[at], metric: test[at]}
    last = slice(max(0, len(test) - 5), None)
    rules["mean_last5"] = {
        "round": len(test),
        "val/acc_mean": math.fsum(val[last]) / len(val[last]),
        metric: math.fsum(test[last]) / len(test[last]),
    }
    return rules
