"""The limits of a search: in words, and what to say where nothing is within them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fpl_tune.core.formatting import joined, with_unit, words
from fpl_tune.core.metrics import excess, violation
from fpl_tune.core.metrics import metric as known_metric
from fpl_tune.study.standing import Row

if TYPE_CHECKING:
    from fpl_tune.config import StudySpec
    from fpl_tune.study.schema import StudyFile


def in_words(study: StudySpec | StudyFile) -> str:
    """The limits of a study: `communication ≤ 4 MB and validation accuracy, min ≥ 60.00 %`."""
    return joined([f"{words(name)} {'≥' if known_metric(name).maximize else '≤'} {with_unit(limit, name)}"
                   for name, limit in study.search.limits.items()])  # fmt: skip


def candidates(rows: Iterable[Row]) -> list[Row]:
    """The rows that could be chosen if there were no limits."""
    return [row for row in rows if row.cell.candidate and row.cell.inside and row.compared]


def nearest(rows: Sequence[Row], rule: str) -> tuple[Row, dict[str, float]] | None:
    """The row with the smallest violations of limits, each as a share of its limit, and what it has of those metrics.

    Args:
        rows: candidates, of which none is within the limits.
        rule: the reporting rule.

    Returns:
        None if no row holds all limited metrics.
    """
    limits = dict(rows[0].design.limits)
    values = {row: {name: row.over_seeds(name, rule)["mean"] for name in limits} for row in rows}
    violations = {row: violation(values[row], limits) for row in rows}
    known = [row for row in rows if not math.isnan(violations[row])]
    if not known:
        return None
    row = min(known, key=lambda row: violations[row])
    return row, {name: value for name, value in values[row].items() if excess(name, value, limits[name]) > 0}


def nothing(rows: Iterable[Row], rule: str, study: StudySpec | StudyFile, of: str = "") -> str:
    """Says that nothing is within the limits, and what is nearest; empty if something is, or nothing has completed.

    Args:
        rows: the rows of the study, or of one of its searches.
        rule: the reporting rule.
        study: the study.
        of: what the rows are, such as the name of a search.
    """
    own = candidates(rows)
    if not own or any(row.within(rule) for row in own):
        return ""
    own = [row for row in own if row.cell.role == "tuned"] or own
    text = f"{of}: nothing is within the limits" if of else f"Nothing is within {in_words(study)}"
    found = nearest(own, rule)
    if found is None:
        return f"{text}: no record holds these metrics."
    row, values = found
    name = row.cell.label if row.cell.suggestion is None else f"trial {row.cell.trial_number}"
    has = joined([f"{words(metric)} {with_unit(value, metric)}" for metric, value in values.items()])
    return f"{text}; nearest is {name} with {has}."
