"""Groups of cells that do not differ significantly, as letters (compact letter display, Piepho 2004)."""

from __future__ import annotations

import itertools
from string import ascii_letters

import numpy as np
import pandas as pd

from fpl_tune.analysis.compare import verdicts
from fpl_tune.analysis.significance import estimate, resolution_of
from fpl_tune.analysis.tables import read, seed_means


def letters(
    frame: pd.DataFrame, *, rope: float = 0.01, level: float = 0.95, shares: bool = True, higher: bool = True
) -> pd.Series:
    """Gives cells letters: two that share one do not differ significantly, two that share none do.

    All pairs are compared, with one correction for all of them; see `compare`. Pairs that are equal within the region
    of practical equivalence share a letter, those that are undecided too. A cell that shares two seeds with no other,
    as with one seed, cannot be told apart and has no letters.

    Args:
        frame: see `tables.read`.
        rope: half width of the region of practical equivalence, in units of `value`.
        level: of all intervals together.
        shares: values are shares; else equality is not tested.
        higher: larger values are better.

    Returns:
        Index `cell`, the best mean first, which has the letter a.
    """
    table = read(frame)
    means = pd.Series(np.nanmean(seed_means(table.values), axis=1), pd.Index(table.cells, name="cell"))
    means = means.sort_values(ascending=not higher, kind="stable")
    index = {cell: i for i, cell in enumerate(table.cells)}
    order = [index[str(cell)] for cell in means.index]
    pairs = list(itertools.combinations(range(len(order)), 2))
    estimates = estimate(
        table.by_split()[order], pairs, resolution=resolution_of(table.values), level=level, tests=max(len(pairs), 1)
    )
    low, high = estimates.difference - estimates.half, estimates.difference + estimates.half
    verdict_by_pair = verdicts(low, high, rope if shares else 0.0)
    groups = [set(range(len(order)))]
    for (a, b), verdict in zip(pairs, verdict_by_pair, strict=True):
        if verdict in ("better", "worse"):
            split = [
                smaller for group in groups for smaller in ((group - {a}, group - {b}) if {a, b} <= group else (group,))
            ]
            unique = list(map(set, dict.fromkeys(map(frozenset, split))))
            groups = [group for group in unique if not any(group < other for other in unique)]
    groups.sort(key=sorted)
    names = [*ascii_letters, *map(chr, range(0x100, 0x100 + len(groups)))]  # one character each, however many
    texts = ["".join(name for name, group in zip(names, groups, strict=False) if i in group) for i in range(len(order))]
    compared = {i for pair, seeds in zip(pairs, estimates.seeds, strict=True) if seeds > 1 for i in pair}
    return pd.Series(texts, means.index).iloc[sorted(compared)]
