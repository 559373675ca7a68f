"""Does the embedded world foretell real images? The order of methods in both, from the stored results of studies that
ran the same methods in two worlds (`natural_pacs`, `natural_caltech`)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import fpl_tune
from fpl_tune.core.errors import ConfigError

STUDIES = ("natural_pacs", "natural_caltech")
DRAWS = 2000
Row = dict[str, Any]


def bench_worlds() -> list[Row]:
    """A row for each study of `STUDIES` that has results.

    Spearman's rank correlation of the methods' mean accuracies, with the interval of a bootstrap over the seeds of both
    worlds; and of the pairs of methods that a paired t test tells apart in both worlds (95 %), those in the same order.

    Raises:
        ConfigError: no study has results.
    """
    rows = [row for name in STUDIES if (row := _agreement(name)) is not None]
    if not rows:
        raise ConfigError(f"There are no results of {' or '.join(STUDIES)}. Run them: `fpl-tune study {STUDIES[0]}`.")
    return rows


def _agreement(name: str) -> Row | None:
    try:
        study = fpl_tune.load_study(name)
    except ConfigError:
        return None
    tables = {
        str(world): frame.pivot_table(index="variant", columns="seed", values="test/acc_mean")
        for world, frame in study.results.groupby("world", sort=False)
    }
    if len(tables) != 2:
        return None
    one, other = tables.values()
    common = one.dropna().index.intersection(other.dropna().index)
    one, other = one.loc[common].to_numpy(), other.loc[common].to_numpy()
    rng = np.random.default_rng(0)
    found = [_correlation(*(x[:, rng.integers(0, x.shape[1], x.shape[1])] for x in (one, other))) for _ in range(DRAWS)]
    low, high = np.nanquantile(found, [0.025, 0.975])
    orders = [(a, b) for pair in itertools.combinations(range(len(common)), 2)
              if (a := _order(one, *pair)) and (b := _order(other, *pair))]  # fmt: skip
    return {
        "study": name, "worlds": ", ".join(tables), "methods": len(common),
        "seeds": f"{one.shape[1]}, {other.shape[1]}", "rank correlation": round(_correlation(one, other), 2),
        "interval": f"{low:.2f} to {high:.2f}", "pairs told apart in both": len(orders),
        "in the same order": sum(a == b for a, b in orders),
    }  # fmt: skip


def _correlation(one: Any, other: Any) -> float:
    return float(pd.Series(one.mean(1)).corr(pd.Series(other.mean(1)), method="spearman"))


def _order(values: Any, i: int, j: int) -> int:
    """1 if method i is better than method j over their seeds, -1 if it is worse, 0 if they are not told apart."""
    gaps = values[i] - values[j]
    if np.ptp(gaps) == 0:
        return int(np.sign(gaps[0]))
    return int(np.sign(gaps.mean())) if stats.ttest_1samp(gaps, 0).pvalue < 0.05 else 0
