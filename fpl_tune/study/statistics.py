"""Figures over seeds, with what they are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence


def aggregate(values: Sequence[float]) -> dict[str, float]:
    """Mean, std (n - 1), sem, n, min and max over seeds; nan where they are not defined."""
    seen = [v for v in values if not math.isnan(v)]
    n = len(seen)
    if n == 0:
        return {"mean": math.nan, "std": math.nan, "sem": math.nan, "n": 0, "min": math.nan, "max": math.nan}
    mean = math.fsum(seen) / n
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in seen) / (n - 1)) if n > 1 else math.nan
    return {"mean": mean, "std": std, "sem": std / math.sqrt(n), "n": n, "min": min(seen), "max": max(seen)}
