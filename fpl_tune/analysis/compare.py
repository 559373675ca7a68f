"""Comparisons of cells with references, one row and one sentence each, and the seeds that decide what is open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fpl_tune.analysis.intervals import interval
from fpl_tune.analysis.significance import equivalence, holm, paired_t, pooled_sd, seeds_needed
from fpl_tune.analysis.tables import Floats, Table, present, read, seed_means
from fpl_tune.core.formatting import counted

Verdict = Literal["better", "worse", "equal", "undecided"]

COLUMNS = ["reference", "difference", "low", "high", "seeds", "clients", "verdict", "sentence", "note"]


def compare(
    frame: pd.DataFrame,
    reference: str | Mapping[str, str],
    *,
    rope: float = 0.01,
    level: float = 0.95,
    names: Mapping[str, str] | None = None,
    shares: bool = True,
) -> pd.DataFrame:
    """Compares cells with references, paired by seed and client.

    A seed is paired where both cells have values and the same split; a client, where both have a value of it. A cell
    is `better` or `worse` where the paired t test over seeds rejects equality after Holm's correction over all rows,
    `equal` where the two one-sided tests, corrected likewise, place the difference inside the region of practical
    equivalence, and `undecided` otherwise. A difference that is both is `equal`: it is real but does not matter.

    Args:
        frame: see `tables.read`.
        reference: cell that all others are compared with, or one for each cell.
        rope: half width of the region of practical equivalence, in units of `value`.
        level: of the intervals; 1 - level is the level of both tests.
        names: what sentences call cells; None: as the frame does.
        shares: values are shares, which sentences give in points; else as they are, and equality is not tested.

    Returns:
        Index `cell`; columns `reference`, `difference` (mean over seeds), `low` and `high` (its confidence
        interval), `seeds` and `clients` (pairs), `verdict`, `sentence`, `note` (what limits the row).

    Raises:
        KeyError: a cell or reference is not in the frame.
    """
    table = read(frame)
    rope = rope if shares else 0.0
    pairs = {c: reference for c in table.cells if c != reference} if isinstance(reference, str) else dict(reference)
    called = {**{cell: cell for cell in table.cells}, **(names or {})}
    rows: list[dict[str, Any]] = []
    different, equal = list[float](), list[float]()
    for cell, other in pairs.items():
        differences, note = paired(table, cell, other)
        found, by_seed = interval(differences, level=level), seed_means(differences)
        different.append(paired_t(by_seed))
        equal.append(equivalence(by_seed, rope))
        rows.append({
            "cell": cell, "reference": other, "difference": found.mean, "low": found.low, "high": found.high,
            "seeds": found.seeds, "clients": found.clients,
            "note": "; ".join(filter(None, [note, found.note])),
        })  # fmt: skip
    result = pd.DataFrame(rows, columns=pd.Index(["cell", *COLUMNS])).set_index("cell")
    result["verdict"] = [
        "equal" if p_equal <= 1 - level else "undecided" if not p <= 1 - level else "better" if gap > 0 else "worse"
        for p, p_equal, gap in zip(holm(different), holm(equal), result["difference"], strict=True)
    ]
    result["sentence"] = [
        _sentence(called[cell], called[other], row, rope, shares)
        for (cell, other), row in zip(pairs.items(), result.to_dict("records"), strict=True)
    ]
    return result


def paired(table: Table, cell: str, reference: str) -> tuple[Floats, str]:
    """Differences [paired seeds, paired clients] of a cell to a reference, and what was left out.

    Raises:
        KeyError: a cell is not in the table.
    """
    ours, theirs = table.of(cell), table.of(reference)
    mine, other = (table.splits[table.cells.index(name)] for name in (cell, reference))
    mine_ran, other_ran = (present(v).any(axis=1) for v in (ours, theirs))
    ran, same = mine_ran & other_ran, mine == other
    differences = (ours - theirs)[ran & same]
    differences = differences[present(differences).any(axis=1)]
    notes = []
    if split := int((ran & ~same).sum()):
        notes.append(f"{counted(split, 'seed')} left out: splits differ")
    if missing := int((mine_ran ^ other_ran).sum()):
        notes.append(f"{counted(missing, 'seed')} of one cell only")
    if len(differences) and present(differences).sum(axis=1).max() == 1:
        notes.append("1 client")
    return differences, "; ".join(notes)


def _sentence(cell: str, reference: str, row: Mapping[str, Any], rope: float, shares: bool) -> str:
    """A row in words: verdict, difference, interval, and what this number of seeds can show."""
    if math.isnan(row["difference"]):
        return f"{cell} is not compared with {reference}: {row['note'] or 'no seed in common'}."
    write = (lambda v: f"{100 * v:+.2f}") if shares else (lambda v: f"{v:+.4g}")
    gap = f"{write(row['difference'])}{' points' if shares else ''}"
    seeds = counted(row["seeds"], "seed")
    if math.isnan(row["low"]):
        return f"{cell} against {reference}: undecided, {gap} over {seeds}; one seed allows no test."
    words = {
        "better": f"{cell} is {'better' if shares else 'higher'} than {reference}",
        "worse": f"{cell} is {'worse' if shares else 'lower'} than {reference}",
        "equal": f"{cell} equals {reference} within {100 * rope:g} {'point' if rope == 0.01 else 'points'}",
        "undecided": f"{cell} against {reference} is undecided",
    }[row["verdict"]]
    bounds = f"95 % interval {write(row['low'])} to {write(row['high'])}"
    return f"{words}: {gap} ({bounds}, {seeds})."


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
    alpha = 0.05 / len(open_cells)  # Holm's first step over the open comparisons
    gaps: dict[str, float] = comparisons["difference"].to_dict()
    needed = {c: seeds_needed(gaps[c], sd, rope=rope, alpha=alpha, most=most) for c in open_cells}
    reach = {cell: max(n, ran + 1) for cell, n in needed.items() if n is not None}
    beyond = tuple(cell for cell in open_cells if cell not in reach)
    if not reach:
        text = f"More than {most} seeds are needed to decide {counted(len(open_cells), 'open cell')}."
        return Advice(None, (), beyond, text)
    seeds = int(np.ceil(np.median(list(reach.values()))))
    decided = tuple(cell for cell, n in reach.items() if n <= seeds)
    text = f"{counted(seeds - ran, 'more seed')} decide {counted(len(decided), 'open cell')} (probability 80 %)"
    later = [n for n in reach.values() if n > seeds]
    rest = [f"{counted(len(later), 'open cell')}: up to {max(later)} seeds"] if later else []
    rest += [f"{counted(len(beyond), 'open cell')}: more than {most} seeds"] if beyond else []
    tail = f"; needed by {', by '.join(rest)}" if rest else ""
    wanted = dict.fromkeys([*decided, *(str(comparisons.loc[cell, "reference"]) for cell in decided)])
    only = narrow(list(wanted)) if narrow else ""
    return Advice(seeds, decided, beyond, f"{text}{tail}: fpl-tune study {study} seeds={seeds} {only}".rstrip())
