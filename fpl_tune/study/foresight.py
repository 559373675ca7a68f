"""How well the rungs of a search foresee the end, by its hedged trials, which no rung of rounds has chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fpl_tune.core.formatting import counted
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import figure
from fpl_tune.study.standing import State
from fpl_tune.study.table import StudyTable

LEAST = 10
"""Hedged trials from which on a rank correlation is said; the default budget of 20 full trials gives about 13.

The standard error of a correlation of 0.5 is 0.3 then."""
LOW = 0.1
"""A rank correlation below which a rung warns. Over 10 hedged trials, it lies there in 52 of 60 replays of a table
whose curves cross, 1 of 80 of two simulated tables, and 10 of 60 of a third, whose best fifth early rounds do not rank.
"""
ENOUGH = 0.5
"""A rank correlation from which on a later round is proposed as the first rung."""


@dataclass(frozen=True)
class Foresight:
    """How well early rounds of one search foresee the end: by its hedged trials, which no rung of rounds has chosen."""

    part: str
    """Which search; empty where there is one."""
    rungs: tuple[int, ...]
    last: int
    """Rounds of a trial."""
    trials: int
    """Those whose first seed ran to its end; one that diverged has no place in a ranking of ends."""
    diverged: int
    by_round: dict[int, float]
    """Rank correlation (Spearman) of the first objective after a validated round with that after the last one."""

    @property
    def low(self) -> bool:
        """Whether a rung may have stopped better trials than it let go on."""
        return any(self.by_round[rung] < LOW for rung in self.rungs)

    def figures(self) -> str:
        """The rank correlation at each rung."""
        first, *others = self.rungs
        only = "only " if self.low else ""
        text = f"after round {first} the rank correlation with the end is {only}{self.by_round[first]:.2f}"
        text += "".join(f", after round {rung} {self.by_round[rung]:.2f}" for rung in others)
        left = f" ({self.diverged} that diverged left out)" if self.diverged else ""
        return f"{text}, over {counted(self.trials, 'trial')} that passed every rung{left}"

    def warning(self) -> str:
        """What is wrong with the rungs, and what to do; empty where they are good."""
        if not self.low:
            return ""
        later = [n for n, value in self.by_round.items() if self.rungs[0] < n < self.last and value >= ENOUGH]
        rung = f"prune.first_rung={later[0]} ({self.by_round[later[0]]:.2f} there) or " if later else ""
        of = f"{self.part}: " if self.part else ""
        text = f"Beware: {of}{self.figures()}, so that halving may have stopped better ones."
        return f"{text} Set {rung}prune.rule=null."


def foresight(table: StudyTable, trials: Sequence[Cell], objective: str, part: str = "") -> Foresight | None:
    """How well the rungs of a search foresee the end; None with too few hedged trials, or where values do not differ.

    Args:
        table: the study's results.
        trials: those of the search.
        objective: by which halving compares them.
        part: what to call the search; empty where there is one.
    """
    hedged = [cell for cell in trials if cell.hedged]
    if not hedged or not (ends := table.design.rungs(hedged[0])):
        return None
    last, seed = hedged[0].rounds, table.design.seeds[0]
    mine = [cell for cell in hedged if set(ends) <= table.cells[cell.id].rung_values.keys()]
    ended = [cell for cell in mine if table.cells[cell.id].state is not State.DIVERGED]
    curves = [_curve(table.cells[cell.id].history(seed), objective) for cell in ended]
    frame = pd.DataFrame([curve for curve in curves if last in curve]).dropna(axis=1)
    if len(frame) < LEAST:
        return None
    ranks = frame.rank().corr()[last].to_dict()
    if any(math.isnan(ranks.get(rung, math.nan)) for rung in ends):
        return None
    return Foresight(part, ends, last, len(frame), len(mine) - len(ended), dict(sorted(ranks.items())))


def _curve(history: Sequence[Record], objective: str) -> dict[int, float]:
    """An objective by round; rounds without it are left out."""
    values = {int(record["round"]): figure([record], objective) for record in history}
    return {number: value for number, value in values.items() if not math.isnan(value)}
