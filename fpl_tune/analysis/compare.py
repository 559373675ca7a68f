"""Comparisons of cells with references: differences paired by seed, their intervals, one verdict each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fpl_tune.analysis.significance import estimate, outliers, resolution_of, striking
from fpl_tune.analysis.tables import Bools, Floats, Values, present, read, seed_means
from fpl_tune.core.formatting import counted
from fpl_tune.core.metrics import STEP


def compare(
    frame: pd.DataFrame,
    reference: str | Mapping[str, str] | Sequence[tuple[str, str]],
    *,
    rope: float = 0.01,
    level: float = 0.95,
    chosen: bool = False,
    shares: bool = True,
    higher: bool = True,
    looks: Sequence[int] = (),
    ran: Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Compares cells with references, paired by seed and client.

    A cell is `identical` to its reference where all values agree on two paired seeds or more; it has no interval then.
    Else the interval of the difference decides: a cell is `equal` where it lies inside the region of practical
    equivalence, `better` or `worse` where it lies on one side of 0, and `undecided` otherwise. The intervals hold for
    all rows at once, and with and without outliers among the seeds of a cell; `significance` says how they are made.

    Args:
        frame: see `tables.read`. A seed is paired where both cells have values and the same split.
        reference: cell that all others are compared with, one for each cell, or pairs of a cell and its reference.
        rope: half width of the region of practical equivalence, in units of `value`.
        level: of all intervals together, at all looks.
        chosen: the reference was chosen among these cells by their values: all pairs of cells are corrected for.
        shares: values are shares; else equality is not tested.
        higher: larger values are better.
        looks: numbers of seeds, declared before the first result, after which cells are compared, each with its share
            of the error. A look at n sees the seeds 1 to n of the cells of undecided rows, and of others what the look
            before saw. A row stays as it was when its verdict was decided, so that its cell needs no further seed. The
            looks end where the cell of an undecided row has not run the seeds of the next one. Default: one look, at
            all seeds.
        ran: number of seeds, from 1 on, that each cell has run; None: up to its last one with a value.

    Returns:
        Index `cell`; columns `reference`, `difference` (mean over seeds), `low` and `high` (its interval), `seeds`
        (pairs), `verdict`, `note` (what limits the row); with `looks` also `look`, the one that decided (0: none), and
        `seen`, the last one that saw the row.

    Raises:
        KeyError: a cell or reference is not in the frame.
        ValueError: values are to be shares and exceed 1.
    """
    table = read(frame)
    if looks:
        given = {"rope": rope, "chosen": chosen, "shares": shares, "higher": higher}
        last = {cell: int(seed) for cell, seed in frame.dropna(subset="value").groupby("cell")["seed"].max().items()}
        return _at_looks(frame, reference, looks, last if ran is None else ran, level=level, **given)
    if shares and (most := float(np.nanmax(np.abs(table.values), initial=0.0))) > 1 + 1e-9:
        raise ValueError(
            f"Shares lie between 0 and 1, but a value is {most:g}: divide percents by 100, or pass shares=False."
        )
    if isinstance(reference, str):
        pairs = [(cell, reference) for cell in table.cells if cell != reference]
    else:
        pairs = [*(reference.items() if isinstance(reference, Mapping) else reference)]
    indices = indices_of(table, pairs)
    cells = len(np.unique(indices))
    estimates = estimate(
        table.by_split(), indices, resolution=resolution_of(table.values), level=level,
        tests=cells * (cells - 1) // 2 if chosen else None,
    )  # fmt: skip
    most = 1.0 if shares else np.inf  # the difference of two shares
    low, high = (
        np.maximum(estimates.difference - estimates.half, -most),
        np.minimum(estimates.difference + estimates.half, most),
    )
    decided = verdicts(low, high, rope if shares else 0.0, higher=higher)
    same = _identical(table, indices) & (estimates.seeds > 1)
    low, high, decided = np.where(same, np.nan, low), np.where(same, np.nan, high), np.where(same, "identical", decided)
    return pd.DataFrame(
        {"reference": [base for _, base in pairs], "difference": estimates.difference, "low": low, "high": high,
         "seeds": estimates.seeds, "verdict": decided, "note": _notes(table, indices, estimates.seeds, shares)},
        index=pd.Index([cell for cell, _ in pairs], name="cell"),
    )  # fmt: skip


def _at_looks(
    frame: pd.DataFrame,
    reference: str | Mapping[str, str] | Sequence[tuple[str, str]],
    looks: Sequence[int],
    ran: Mapping[str, int],
    *,
    level: float,
    **given: Any,
) -> pd.DataFrame:
    """Compares cells look by look: the first verdict of each that is decided, else that of the last look.

    Nothing but the seeds that a look has asked for is seen, so that it finds the same however many there are by now.
    """
    share, decided = 1 - (1 - level) / len(looks), pd.DataFrame()
    most = {str(cell): looks[0] if ran.get(str(cell), 0) else 0 for cell in frame["cell"].unique()}
    for n, following in zip(looks, (*looks[1:], None), strict=True):
        seen = frame["seed"] <= frame["cell"].astype(str).map(most).astype(float)
        now = compare(frame.assign(value=frame["value"].where(seen)), reference, level=share, **given)
        now["look"], now["seen"] = np.where(now["verdict"] == "undecided", 0, n), n
        decided = now if decided.empty else decided.where(decided["look"] > 0, now)
        left = decided.loc[decided["look"] == 0]
        going = {*map(str, left.index), *map(str, left["reference"])}
        if following is None or not going or any(ran.get(cell, 0) < following for cell in going):
            break
        most |= dict.fromkeys(going, following)
    return decided.astype({"seeds": int, "look": int, "seen": int})


def indices_of(table: Values, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.intp]:
    """Places [rows, 2] of pairs of cells in a table.

    Raises:
        KeyError: a cell is not in the table.
    """
    index = {cell: i for i, cell in enumerate(table.cells)}
    return np.array([(index[a], index[b]) for a, b in pairs], np.intp).reshape(-1, 2)


def verdicts(low: Floats, high: Floats, rope: float, *, higher: bool = True) -> npt.NDArray[np.str_]:
    """Verdicts on differences by their intervals; one that is beyond 0 and inside the region is `equal`."""
    inside = (low >= -rope) & (high <= rope) & (rope > 0)
    above, below = ("better", "worse") if higher else ("worse", "better")
    return np.select([inside, low > 0, high < 0], ["equal", above, below], "undecided")


def _identical(table: Values, indices: npt.NDArray[np.intp]) -> Bools:
    """True [rows] for pairs of cells with the same values of all clients on every seed that is paired."""
    first, second = indices.T
    one, other = table.values[first], table.values[second]
    paired = present(one).any(axis=2) & present(other).any(axis=2) & (table.splits[first] == table.splits[second])
    agree = ((np.abs(one - other) < STEP) | ~(present(one) | present(other))).all(axis=2)
    return (agree | ~paired).all(axis=1)


def _notes(table: Values, indices: npt.NDArray[np.intp], paired: npt.NDArray[np.int_], shares: bool) -> list[str]:
    """Remarks on each row: seeds that are striking outliers, and seeds that are not paired."""
    ran: Bools = np.any(present(table.values), axis=2)
    means = seed_means(table.values)
    strange, named, unit, points = outliers(means), striking(means), 100 if shares else 1, " points" if shares else ""
    notes_by_row = []
    for (cell, reference), seeds in zip(indices, paired, strict=True):
        notes = []
        holds = (ran & ~strange)[[cell, reference]].all(axis=0).sum() > 1
        for at, whose in ((cell, "its"), (reference, "the reference's")):
            gaps = means[at] - np.nanmedian(means[at]) if named[at].any() else []
            notes += [
                f"seed {table.seeds[s]} is an outlier, {unit * gaps[s]:+.3g}{points} from {whose} other seeds"
                + ("; the interval also holds without it" if holds else "")
                for s in np.flatnonzero(named[at])
            ]
        if lost := int((ran[cell] | ran[reference]).sum() - seeds):
            notes.append(f"{counted(lost, 'seed')} left out: of one cell only, or with other splits")
        notes_by_row.append("; ".join(notes))
    return notes_by_row
