"""How well the rungs of a search predict the final score, by its hedged trials, which no rung of rounds has chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fpl_tune.core.formatting import counted
from fpl_tune.core.metrics import comparable
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import value_of
from fpl_tune.study.standing import CellState
from fpl_tune.study.table import StudyTable

LEAST = 10
"""Minimum number of hedged trials for a rank correlation; the default budget of 20 full trials gives about 13.

With 10 trials, the standard error of a correlation of 0.5 is 0.3."""
LOW = 0.1
"""The report warns of a rung if its rank correlation is below this value.

Over 10 hedged trials, it is in 52 of 60 replays of a table whose curves cross, in 1 of 80 of two simulated tables, and
in 10 of 60 of a third, where early rounds do not rank the best fifth."""
ENOUGH = 0.5
"""Minimum rank correlation of a later round to be proposed as the first rung."""


@dataclass(frozen=True)
class Foresight:
    """How well early rounds of one search predict the final score, over its hedged trials."""

    label: str
    """Label of the search; empty if there is only one."""
    rungs: tuple[int, ...]
    last: int
    """Last round of a trial."""
    trials: int
    """Number of hedged trials whose first seed completed; those that diverged have no final score."""
    diverged: int
    by_round: dict[int, float]
    """Rank correlation (Spearman) of the first objective after each validated round with that after the last round."""

    @property
    def low(self) -> bool:
        """True if a rung may have stopped better trials than it let continue."""
        return any(self.by_round[rung] < LOW for rung in self.rungs)

    def figures(self) -> str:
        """The rank correlation at each rung, as text."""
        first, *others = self.rungs
        only = "only " if self.low else ""
        text = f"after round {first} the rank correlation with the final score is {only}{self.by_round[first]:.2f}"
        text += "".join(f", after round {rung} {self.by_round[rung]:.2f}" for rung in others)
        left = f" ({self.diverged} that diverged left out)" if self.diverged else ""
        return f"{text}, over {counted(self.trials, 'trial')} that passed every rung{left}"

    def warning(self) -> str:
        """A warning about rungs that predict badly, with the remedy; empty if they predict well."""
        if not self.low:
            return ""
        later = [n for n, value in self.by_round.items() if self.rungs[0] < n < self.last and value >= ENOUGH]
        rung = f"prune.first_rung={later[0]} ({self.by_round[later[0]]:.2f} there) or " if later else ""
        of = f"{self.label}: " if self.label else ""
        text = f"Beware: {of}{self.figures()}, so halving may have stopped better ones."
        return f"{text} Set {rung}prune.rule=null."


def foresight(table: StudyTable, trials: Sequence[Cell], objective: str, label: str = "") -> Foresight | None:
    """Computes how well the rungs of a search predict the final score.

    Args:
        table: the study's results.
        trials: the trials of the search.
        objective: the metric by which halving compares them.
        label: label of the search; empty if there is only one.

    Returns:
        None with too few hedged trials, or if all values at a rung are equal.
    """
    hedged = [cell for cell in trials if cell.hedged]
    if not hedged or not (ends := table.design.rungs(hedged[0])):
        return None
    last, seed = hedged[0].rounds, table.design.seeds[0]
    mine = [cell for cell in hedged if set(ends) <= table.rows[cell.id].rung_values.keys()]
    ended = [cell for cell in mine if table.rows[cell.id].state is not CellState.DIVERGED]
    curves = [_curve(table.rows[cell.id].history(seed), objective) for cell in ended]
    frame = pd.DataFrame([curve for curve in curves if last in curve]).dropna(axis=1)
    if len(frame) < LEAST:
        return None
    ranks = frame.map(comparable).rank().corr()[last].to_dict()
    if any(math.isnan(ranks.get(rung, math.nan)) for rung in ends):
        return None
    return Foresight(label, ends, last, len(frame), len(mine) - len(ended), dict(sorted(ranks.items())))


def _curve(history: Sequence[Record], objective: str) -> dict[int, float]:
    """An objective by round, without rounds that lack it."""
    values = {int(record["round"]): value_of([record], objective) for record in history}
    return {number: value for number, value in values.items() if not math.isnan(value)}
