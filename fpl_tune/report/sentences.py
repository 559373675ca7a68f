"""The forms of sentences about results: a value that is reached, what is best, and differences from others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fpl_tune.core.formatting import counted, gap, with_unit, words
from fpl_tune.findings.findings import Findings
from fpl_tune.report.panels import judged
from fpl_tune.study.cells import Cell


def reached(findings: Findings, mean: float, std: float = math.nan, on: str = "", digits: int = 2) -> str:
    """`84.20 ± 0.30 % test accuracy over 3 seeds`; `on` names the seeds."""
    return f"{with_unit(mean, findings.metric, std, digits)} {words(findings.metric)} {on}".rstrip()


def best(
    findings: Findings, name: str, mean: float, std: float = math.nan, on: str = "", settings: int = 1, digits: int = 2
) -> str:
    """`fedotp is best on validation over 2 settings, with a mean of 84.20 ± 0.30 % test accuracy on 3 fresh seeds`."""
    over, mean_of = (f" over {settings} settings", "a mean of ") if settings > 1 else ("", "")
    value = reached(findings, mean, std, on, digits)
    return f"{name} is best on {findings.chosen_on}{over}, with {mean_of}{value}"


def best_cell(findings: Findings, cell: Cell, tests: Mapping[str, Mapping[Any, Any]]) -> str:
    """The best cell, its value, and its differences from others; see `differences`."""
    mean, std, n = findings.frame.loc[cell.id, ["mean", "std", "n"]]
    text = best(findings, findings.names.of(cell), mean, std, f"over {counted(n, 'seed')}")
    return f"{text}; {differences(findings, tests, n)}" if tests else text


def of_search(findings: Findings) -> str:
    """The seeds behind the values of points that searches chose: `on 3 fresh seeds`."""
    confirm = findings.table.design.confirm
    if findings.confirmed:
        return f"on {counted(len(confirm), 'fresh seed')}"
    return f"{'so far ' if confirm else ''}on the seeds that chose it (optimistic)"


def differences(
    findings: Findings, tests: Mapping[str, Mapping[Any, Any]], seeds: int, before: str = "against "
) -> str:
    """`+1.20 points against A (95 % interval +0.30 to +2.10: better), +2.00 points against B (+1.10 to +2.90: better)`.

    Args:
        findings: the study.
        tests: comparisons by the name of what is compared with; see `analysis.compare`.
        seeds: number of seeds that the sentence gives; where fewer are paired, their number is added.
        before: stands before each name.
    """
    parts, of = [], f"{findings.confidence} interval "
    for name, test in tests.items():
        _, bounds, verdict = judged(findings.metric, test)
        if not findings.sampled:
            ruling = verdict
        elif test["verdict"] == "identical":
            ruling = f"{verdict} on every seed"
        elif bounds == "–":
            ruling = "one seed: no interval" if test["seeds"] == 1 else "no interval"
        else:
            paired = "" if test["seeds"] in (seeds, test.get("look")) else f", {counted(test['seeds'], 'seed')}"
            ruling, of = f"{of}{bounds}{paired}: {verdict.replace('equal', f'equal {within(findings)}')}", ""
        parts.append(f"{gap(test['difference'], findings.metric)} {before}{name}".rstrip() + f" ({ruling})")
    return ", ".join(parts)


def within(findings: Findings) -> str:
    """`within ± 1 point`: what counts as equal."""
    rope = findings.spec.report.rope
    return f"within ± {rope:g} {'point' if rope == 1 else 'points'}"
