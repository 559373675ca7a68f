"""Tables that are made from a simulated one, for what the simulated ones do not show: nobody's method behaves so.

`crossing`: learning curves cross, so that early rounds rank configurations the wrong way round. `diverging`: training
diverges in half of all configurations. `traded`: accuracy grows with what clients send. All are made from the table of
pFedMoAP with fixed random numbers: fields, configurations and, where training does not diverge, the last figures are
its own, so that what a search costs there can be compared with what it costs here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from load_table import Floats, Table, load
from scipy.stats import rankdata, spearmanr

from fpl_tune.core.metrics import TOTAL_BYTES

BASE = "pfedmoap"
"""The table, and the study, that they are made from."""
_SEED = 7
_OWN = (0.0, 0.0, 0.2, 0.4, 0.7, 1.0)  # share of a configuration's own accuracy, by evaluation
_NOISE = 0.35  # of places in the ranking, in which they are drawn


def crossing(table: Table) -> Table:
    """Every curve starts as that of another configuration, of about the opposite rank, and ends as its own."""
    rng, n = np.random.default_rng(_SEED), len(table.points)
    places = rankdata(table.val[:, :, -1].mean((1, 2)), "ordinal") / n
    other = np.empty(n, int)
    other[np.argsort(places)] = np.argsort(-places - rng.normal(0, _NOISE, n))  # the best begins as one of the worst
    own = np.array(_OWN)[:, None]
    val, test = (own * values + (1 - own) * values[other] for values in (table.val, table.test))
    return replace(table, name="crossing", val=val, test=test)


def diverging(table: Table) -> Table:
    """Half of all configurations diverge, mostly those of a high learning rate, and none that is published.

    Their accuracies are NaN from some evaluation on; before it, they are those of the table.
    """
    rng, n = np.random.default_rng(_SEED), len(table.points)
    rates = rankdata([point["optim.lr"] for point in table.points]) / n + rng.normal(0, _NOISE, n)
    rates[: table.published] = -np.inf
    diverges = np.argsort(rates)[n - n // 2 :]
    after = rng.integers(len(table.rounds), size=n)
    val, test = table.val.copy(), table.test.copy()
    for index in diverges:
        val[index, :, after[index] :] = test[index, :, after[index] :] = np.nan
    return replace(table, name="diverging", val=val, test=test)


def traded(table: Table) -> Table:
    """What a configuration sends grows with its λ, up to five times, and so does accuracy: a front of many points."""
    share = np.array([table.unit(point)[list(table.space).index("method.lam")] for point in table.points])
    val, test = (values * (0.75 + 0.25 * np.sqrt(share))[:, None, None, None] for values in (table.val, table.test))
    return replace(table, name="traded", val=val, test=test, costs={TOTAL_BYTES: np.round(1e6 * (1 + 4 * share))})


MADE: dict[str, Callable[[Table], Table]] = {"crossing": crossing, "diverging": diverging, "traded": traded}


def table_of(name: str) -> Table:
    """A simulated table, or one that is made."""
    return MADE[name](load(BASE)) if name in MADE else load(name)


def study_of(name: str) -> str:
    """Name of the study whose configurations a table holds."""
    return BASE if name in MADE else name


def foresight(table: Table, round_: int) -> float:
    """Rank correlation between validation accuracy after a round and at the end, means over seeds, where no training
    diverges."""
    values: Floats = table.val.mean((1, 3))
    values = values[np.isfinite(values[:, -1])]
    return float(spearmanr(values[:, list(table.rounds).index(round_)], values[:, -1]).statistic)
