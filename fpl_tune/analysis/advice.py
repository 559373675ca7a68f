"""Number of further seeds that decide the open comparisons of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fpl_tune.analysis.compare import paired
from fpl_tune.analysis.power import MOST, pooled_sd, seeds_needed
from fpl_tune.analysis.tables import read, seed_means
from fpl_tune.formatting import counted


@dataclass(frozen=True)
class Advice:
    """Seeds that decide open comparisons."""

    seeds: int | None
    """Total number of seeds that decides `cells`; None: no comparison is open, or noise is unknown."""
    cells: tuple[str, ...]
    """Open cells that this number of seeds decides with a probability of 80 %."""
    beyond: tuple[str, ...]
    """Open cells that need more than twice as many, or more than are worth trying."""
    text: str
    """One line, with the command if there is one."""


def advise(
    frame: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    study: str = "STUDY",
    rope: float = 0.01,
    most: int = 30,
    narrow: Callable[[Sequence[str]], str] | None = None,
) -> Advice:
    """Advises how many seeds decide the undecided rows of `compare`.

    The spread of differences over seeds is pooled over all comparisons; each open comparison is taken to have the
    difference that was observed.

    Args:
        frame: the frame that was compared.
        comparisons: what `compare` returned.
        study: name in the command.
        rope: half width of the region of practical equivalence.
        most: largest number of seeds that is advised.
        narrow: gets the cells that need more seeds, with their references; returns what restricts the command to them,
            or nothing.

    Returns:
        The advice.
    """
    table = read(frame)
    differences = {
        str(cell): seed_means(paired(table, str(cell), str(other))[0])
        for cell, other in comparisons["reference"].items()
    }
    sd, freedom = pooled_sd(differences.values())
    open_cells = [str(c) for c in comparisons.index[comparisons["verdict"] == "undecided"]]
    if not open_cells:
        return Advice(None, (), (), "Every comparison is decided." if len(comparisons) else "Nothing is compared.")
    if freedom == 0:
        text = f"One seed says nothing about noise: fpl-tune study {study} seeds=3"
        return Advice(3, (), tuple(open_cells), text)
    ran = max(len(d) for d in differences.values())
    alpha = 0.05 / max(len(open_cells), 1)  # Holm's first step over the open comparisons
    needed = {
        cell: seeds_needed(float(np.mean(differences[cell])), sd, rope=rope, alpha=alpha, most=MOST)
        if len(differences[cell])
        else None
        for cell in open_cells
    }
    reach = {cell: max(n, ran + 1) for cell, n in needed.items() if n is not None and n <= most}
    beyond = tuple(cell for cell in open_cells if cell not in reach)
    if not reach:
        text = f"More than {most} seeds are needed to decide {counted(len(open_cells), 'open cell')}."
        return Advice(None, (), beyond, text)
    seeds = int(np.ceil(np.median(list(reach.values()))))
    decided = tuple(cell for cell, n in reach.items() if n <= seeds)
    more = seeds - ran
    text = f"{counted(more, 'more seed')} decide {counted(len(decided), 'open cell')} (probability 80 %)"
    later = [n for n in reach.values() if n > seeds]
    rest = [f"{counted(len(later), 'open cell')}: up to {max(later)} seeds"] if later else []
    rest += [f"{counted(len(beyond), 'open cell')}: more than {most} seeds"] if beyond else []
    tail = f"; needed by {', by '.join(rest)}" if rest else ""
    wanted = dict.fromkeys([*decided, *(str(comparisons.loc[cell, "reference"]) for cell in decided)])
    only = narrow(list(wanted)) if narrow else ""
    command = " ".join(filter(None, [f"fpl-tune study {study} seeds={seeds}", only]))
    return Advice(seeds, decided, beyond, f"{text}{tail}: {command}")
