"""The next action of a study: a pure function of its design, its rows and the legs that are running."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.search.halving import promoted
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import CellState, Leg, Row
from fpl_tune.study.table import StudyTable

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch


class Pass(NamedTuple):
    """Lets trials pass their rung: they continue."""

    rows: Sequence[Row]


class Start(NamedTuple):
    """Hands out a leg."""

    row: Row
    leg: Leg


class Ask(NamedTuple):
    """Asks a search for a trial."""

    search: CellSearch


class Confirm(NamedTuple):
    """Adds the cells that confirm a search that is over."""

    cells: Sequence[Cell]


class Wait(NamedTuple):
    """Waits: nothing can start until a running leg has ended."""


class Done(NamedTuple):
    """Nothing is left to run."""


Action = Pass | Start | Ask | Confirm | Wait | Done


def next_action(
    table: StudyTable,
    searches: Sequence[CellSearch],
    running: Mapping[str, Leg],
    exhausted: Container[str],
    order: Callable[[Row], Any],
) -> Action:
    """Decides what a study does next.

    Args:
        table: the study.
        searches: its searches.
        running: legs that are running, by the ids of their cells.
        exhausted: searches whose sampler has no new point.
        order: sort key of queued cells.
    """
    if rows := _promoted(table, searches, running, closed=False):
        return Pass(rows)
    standings = [(row, row.standing) for row in table.rows.values() if row.cell.id not in running]
    queued = [(row, now.left[0]) for row, now in standings if now.state is CellState.QUEUED]
    if queued:
        return Start(*min(queued, key=lambda pair: order(pair[0])))
    if (search := asking(table, searches, exhausted)) is not None:
        return Ask(search)
    if rows := _promoted(table, searches, running, closed=True):
        return Pass(rows)
    if cells := confirming(table, searches, running, exhausted):
        return Confirm(cells)
    return Wait() if running else Done()


def rows_of(table: StudyTable, search: CellSearch) -> list[Row]:
    """The trials of a search."""
    return [row for row in table.rows.values() if search.holds(row.cell)]


def suggested(table: StudyTable, search: CellSearch) -> list[Row]:
    """The trials of a search and of those that share them in other settings, and those that were rejected."""
    return [row for rows in (table.rows, table.rejected) for row in rows.values() if search.shares(row.cell)]


def remaining(table: StudyTable, search: CellSearch) -> int:
    """Number of trials that a search may still suggest."""
    return search.remaining(table.design, suggested(table, search))


def trials_left(table: StudyTable, search: CellSearch, running: Mapping[str, Leg], exhausted: Container[str]) -> int:
    """Number of trials of a search that are still to be suggested, to run, or to continue from their rung."""
    rows = rows_of(table, search)
    to_run = sum(row.cell.id in running or row.standing.state is CellState.QUEUED for row in rows)
    to_come = 0 if str(search) in exhausted else remaining(table, search)
    return to_run + to_come + len(_promoted(table, [search], running, closed=True))


def asking(table: StudyTable, searches: Sequence[CellSearch], exhausted: Container[str]) -> CellSearch | None:
    """The search that suggests the next trial: the one with the fewest trials among those that may suggest one."""
    open_ = [search for search in searches if str(search) not in exhausted]
    sizes = {search.stream: len(rows_of(table, search)) for search in open_} if len(open_) > 1 else {}
    ordered = sorted(open_, key=lambda search: sizes.get(search.stream, 0))
    return next((search for search in ordered if remaining(table, search)), None)


def unconfirmed(table: StudyTable, searches: Sequence[CellSearch]) -> list[CellSearch]:
    """The searches whose choice is still to be confirmed."""
    tuned = [row.cell for row in table.rows.values() if row.cell.role == "tuned"]
    return [search for search in searches if table.design.confirm and not any(map(search.confirms, tuned))]


def confirming(
    table: StudyTable, searches: Sequence[CellSearch], running: Mapping[str, Leg], exhausted: Container[str]
) -> list[Cell]:
    """The cells that confirm the searches of which no trial is left."""
    cells = list[Cell]()
    for search in unconfirmed(table, searches):
        if not any(trials_left(table, other, running, exhausted) for other in search.settings or (search,)):
            cells += search.confirmed([row for row in table.rows.values() if search.shares(row.cell)])
    return cells


def _promoted(
    table: StudyTable, searches: Sequence[CellSearch], running: Mapping[str, Leg], *, closed: bool
) -> list[Row]:
    """Trials of these searches that continue; see `halving.promoted`."""
    if table.design.reduction is None:
        return []
    return [row for each in searches for row in promoted(rows_of(table, each), running, closed=closed)]
