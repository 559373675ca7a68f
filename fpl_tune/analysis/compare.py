"""Comparisons of cells with references, one verdict and one sentence each, and the seeds that decide what is open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from fpl_tune.analysis.significance import (
    Estimates,
    apart,
    effect_spread,
    estimate,
    level_of_look,
    resolution_of,
    seeds_needed,
    upper_sd,
)
from fpl_tune.analysis.tables import Bools, Floats, Table, present, read
from fpl_tune.core.formatting import counted

Verdict = Literal["better", "worse", "equal", "undecided"]

COLUMNS = ["reference", "difference", "low", "high", "seeds", "clients", "verdict", "sentence", "note"]


def compare(
    frame: pd.DataFrame,
    reference: str | Mapping[str, str],
    *,
    rope: float = 0.01,
    level: float = 0.95,
    look: int | None = None,
    chosen: bool = False,
    names: Mapping[str, str] | None = None,
    shares: bool = True,
) -> pd.DataFrame:
    """Compares cells with references, paired by seed and client.

    The interval of a difference decides: a cell is `equal` where it lies inside the region of practical equivalence,
    `better` or `worse` where it lies beyond 0, and `undecided` otherwise, or where a run of either cell lies apart from
    the cell's other seeds. The intervals hold for all rows at once; `significance` says how they are made.

    Args:
        frame: see `tables.read`. A seed is paired where both cells have values and the same split.
        reference: cell that all others are compared with, or one for each cell.
        rope: half width of the region of practical equivalence, in units of `value`.
        level: of all intervals together.
        look: which number of seeds this is, where seeds are added until a study is decided; see `level_of_look`.
        chosen: the reference was chosen among these cells by their values: all pairs of cells are corrected for.
        names: what sentences call cells; None: as the frame does.
        shares: values are shares, which sentences give in points; else as they are, and equality is not tested.

    Returns:
        Index `cell`; columns `reference`, `difference` (mean over seeds), `low` and `high` (its interval), `seeds` and
        `clients` (pairs), `verdict`, `sentence`, `note` (what limits the row).

    Raises:
        KeyError: a cell or reference is not in the frame.
        ValueError: values are to be shares and exceed 1.
    """
    table = read(frame)
    if shares and float(np.nanmax(np.abs(table.values), initial=0.0)) > 1 + 1e-9:
        raise ValueError(
            f"Shares lie between 0 and 1, but a value is {np.nanmax(np.abs(table.values)):g}: divide percents by 100, "
            "or pass shares=False."
        )
    rope = rope if shares else 0.0
    pairs = {c: reference for c in table.cells if c != reference} if isinstance(reference, str) else dict(reference)
    places = places_of(table, list(pairs.items()))
    found = estimated(table, places, level=level_of_look(look, level), chosen=chosen)
    clients = _clients(table, places)
    notes = _notes(table, places, clients, found, {**{cell: cell for cell in table.cells}, **(names or {})})
    low, high = found.difference - found.half, found.difference + found.half
    result = pd.DataFrame(
        {"reference": list(pairs.values()), "difference": found.difference, "low": low, "high": high,
         "seeds": found.seeds.astype(int), "clients": clients,
         "verdict": np.where(found.apart, "undecided", verdicts(low, high, rope)), "note": notes},
        index=pd.Index(list(pairs), name="cell"),
    )  # fmt: skip
    called = {**{cell: cell for cell in table.cells}, **(names or {})}
    result["sentence"] = [
        _sentence(called[str(row["cell"])], called[row["reference"]], row, rope, shares)
        for row in result.reset_index().to_dict("records")
    ]
    return result.loc[:, COLUMNS]


def places_of(table: Table, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.intp]:
    """Places [rows, 2] of pairs of cells in a table.

    Raises:
        KeyError: a cell is not in the table.
    """
    place = {cell: i for i, cell in enumerate(table.cells)}
    return np.array([(place[a], place[b]) for a, b in pairs], np.intp).reshape(-1, 2)


def estimated(table: Table, places: npt.NDArray[np.intp], *, level: float, chosen: bool = False) -> Estimates:
    """Estimates the differences of pairs of cells of a table; see `significance.estimate`."""
    cells = len(np.unique(places))
    return estimate(
        table.by_split(), places, resolution=resolution_of(table.values), level=level,
        tests=cells * (cells - 1) // 2 if chosen else None,
    )  # fmt: skip


def verdicts(low: Floats, high: Floats, rope: float) -> npt.NDArray[np.str_]:
    """Verdicts on differences by their intervals; one that is beyond 0 and inside the region is `equal`."""
    inside = (low >= -rope) & (high <= rope) & (rope > 0)
    return np.select([inside, low > 0, high < 0], ["equal", "better", "worse"], "undecided")


def _clients(table: Table, places: npt.NDArray[np.intp]) -> npt.NDArray[np.int_]:
    """Clients [rows] that both cells of a pair have, of the seed that has most."""
    known = present(table.values)
    return np.array([(known[a] & known[b]).sum(axis=1).max(initial=0) for a, b in places], int)


def _notes(
    table: Table,
    places: npt.NDArray[np.intp],
    clients: npt.NDArray[np.int_],
    found: Estimates,
    names: Mapping[str, str],
) -> list[str]:
    """What limits each row: seeds that are not paired, and runs that lie apart."""
    ran: Bools = np.any(present(table.values), axis=2)
    values = table.by_split()
    strange = _apart_notes(table, names) if found.apart.any() else {}
    notes = []
    for (a, b), several in zip(places, clients, strict=True):
        both = ran[a] & ran[b]
        other = int((both & (table.splits[a] != table.splits[b])).sum())
        alone = int((ran[a] ^ ran[b]).sum())
        paired = int(present(values[a] + values[b]).sum())
        notes.append("; ".join([
            *([f"{counted(other, 'seed')} left out: splits differ"] if other else []),
            *([f"{counted(alone, 'seed')} of one cell only"] if alone else []),
            *(["1 client"] if several == 1 else []),
            *([f"{paired or 'no'} seed: no interval"] if paired < 2 else []),
            *(strange[i] for i in (a, b) if i in strange),
        ]))  # fmt: skip
    return notes


def _apart_notes(table: Table, names: Mapping[str, str]) -> dict[int, str]:
    """What is said of cells with runs that lie apart: place of the cell -> note."""
    known = present(table.values)
    means = np.where(known, table.values, 0).sum(axis=2) / np.maximum(known.sum(axis=2), 1)
    means = np.where(known.any(axis=2), means, np.nan)
    found: dict[int, list[str]] = {}
    for cell, seed in np.argwhere(apart(means)):
        gap = means[cell, seed] - np.nanmedian(means[cell])
        way = "below" if gap < 0 else "above"
        text = (
            f"seed {table.seeds[seed]} of {names[table.cells[cell]]} lies {100 * abs(gap):.1f} points {way} its others"
        )
        found.setdefault(int(cell), []).append(text)
    return {cell: ", ".join(texts) for cell, texts in found.items()}


def _sentence(cell: str, reference: str, row: Mapping[Any, Any], rope: float, shares: bool) -> str:
    """A row in words: verdict, difference, interval and seeds."""
    if math.isnan(row["difference"]):
        return f"{cell} is not compared with {reference}: {row['note'] or 'no seed in common'}."
    write = (lambda v: f"{100 * v:+.2f}") if shares else (lambda v: f"{v:+.4g}")
    gap = f"{write(row['difference'])}{' points' if shares else ''}"
    seeds = counted(row["seeds"], "seed")
    if math.isnan(row["low"]):
        why = "one seed allows no test" if row["seeds"] < 2 else "no value varies, so that its error is not known"
        return f"{cell} against {reference}: undecided, {gap} over {seeds}; {why}."
    words = {
        "better": f"{cell} is {'better' if shares else 'higher'} than {reference}",
        "worse": f"{cell} is {'worse' if shares else 'lower'} than {reference}",
        "equal": f"{cell} equals {reference} within {100 * rope:g} {'point' if rope == 0.01 else 'points'}",
        "undecided": f"{cell} against {reference} is undecided",
    }[row["verdict"]]
    return f"{words}: {gap} (interval {write(row['low'])} to {write(row['high'])}, {seeds})."


@dataclass(frozen=True)
class Advice:
    """Seeds that decide open comparisons."""

    seeds: int | None
    """Total number of seeds that decides `cells`; None: no comparison is open, or noise is unknown."""
    cells: tuple[str, ...]
    """Open cells that this number of seeds decides with a probability of 80 %."""
    beyond: tuple[str, ...]
    """Open cells that need more seeds than are worth trying, or have a run that lies apart."""
    text: str
    """One line, with the command if there is one."""


def advise(
    frame: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    study: str = "STUDY",
    rope: float = 0.01,
    look: int | None = None,
    most: int = 30,
    narrow: Callable[[Sequence[str]], str] | None = None,
) -> Advice:
    """Advises how many seeds decide the undecided rows of `compare`.

    Probabilities are predictive: true differences are shrunk towards 0 as far as all rows suggest, noise is taken at
    its upper bound, and verdicts to come are corrected for all rows, at the level of the look to come. Where no number
    of seeds is likely to decide, none is promised.

    Args:
        frame: the frame that was compared.
        comparisons: what `compare` returned.
        study: name in the command.
        rope: half width of the region of practical equivalence.
        look: of the comparisons, see `compare`; the advice is on the next one.
        most: largest number of seeds that is advised.
        narrow: gets the cells that need more seeds, with their references; returns what restricts the command to them,
            or nothing.

    Returns:
        The advice.
    """
    open_rows = (comparisons["verdict"] == "undecided").to_numpy()
    open_cells = [str(cell) for cell in comparisons.index[open_rows]]
    if not open_cells:
        return Advice(None, (), (), "Every comparison is decided." if len(comparisons) else "Nothing is compared.")
    table = read(frame)
    places = places_of(table, [(str(a), str(b)) for a, b in comparisons["reference"].items()])
    found = estimated(table, places, level=0.95)
    if not (found.freedom > 0).any():
        text = f"One seed says nothing about noise: fpl-tune study {study} seeds=3"
        return Advice(3, (), tuple(open_cells), text)
    ran = int(found.seeds.max())
    free = float(found.freedom.max())
    known = open_rows & (found.seeds > 0) & (found.sd > 0) & ~found.apart
    needed = np.full(len(comparisons), np.nan)
    needed[known] = seeds_needed(
        found.difference[known], found.sd[known], found.seeds[known], rope=rope,
        level=level_of_look(None if look is None else look + 1), tests=len(comparisons),
        spread=effect_spread(found.difference, upper_sd(found.sd, free) ** 2 / np.maximum(found.seeds, 1)),
        freedom=free, most=most,
    )  # fmt: skip
    need = dict(zip(map(str, comparisons.index), needed, strict=True))
    reach = {cell: max(int(need[cell]), ran + 1) for cell in open_cells if not math.isnan(need[cell])}
    beyond = tuple(cell for cell in open_cells if cell not in reach)
    if not reach:
        text = f"No number of seeds up to {most} is likely to decide {counted(len(open_cells), 'open cell')}."
        return Advice(None, (), beyond, text)
    seeds = math.ceil(np.median(list(reach.values())))
    decided = tuple(cell for cell, n in reach.items() if n <= seeds)
    text = f"{counted(seeds - ran, 'more seed')} decide {counted(len(decided), 'open cell')} (probability 80 %)"
    later = [n for n in reach.values() if n > seeds]
    rest = [f"{counted(len(later), 'open cell')}: up to {max(later)} seeds"] if later else []
    rest += [f"{counted(len(beyond), 'open cell')}: perhaps more than {most} seeds"] if beyond else []
    tail = f"; needed by {', by '.join(rest)}" if rest else ""
    references = comparisons["reference"].to_dict()
    wanted = dict.fromkeys([*decided, *(str(references[cell]) for cell in decided)])
    only = narrow(list(wanted)) if narrow else ""
    return Advice(seeds, decided, beyond, f"{text}{tail}: fpl-tune study {study} seeds={seeds} {only}".rstrip())
