"""Amounts in words, the same in the terminal, in messages and in reports."""

from __future__ import annotations

import math
from collections.abc import Iterable


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1 cell`, `2 cells`, `1,000 cells`; `plural` where it is not the noun with an s."""
    return f"{number:,.0f} {noun if number == 1 else plural or f'{noun}s'}"


def listed(noun: str, items: Iterable[object]) -> str:
    """`seed 1`, `seeds 1, 2`."""
    texts = [str(item) for item in items]
    return f"{noun if len(texts) == 1 else f'{noun}s'} {', '.join(texts)}"


def percent(metric: str) -> bool:
    """Whether a metric is a share that people read in percent."""
    return "acc" in metric or metric.endswith("harmonic_mean")


def duration(seconds: float) -> str:
    """`12.3 s`, `4 min 05 s`, `2 h 03 min`; `–` where it is not known."""
    if math.isnan(seconds):
        return "–"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """1.3 MB and the like, powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
