"""The next action of a study: a pure function of its design, its rows and the legs that are running."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.search.halving import promoted
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import CellState, Design, Leg, Row, standing
from fpl_tune.study.table import StoredCell, stored_row

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch


@dataclass
class LiveTable:
    """The cells that a study asks for, with their stored runs."""

    design: Design
    searches: Sequence[CellSearch] = ()
    rows: dict[str, Row] = field(default_factory=dict)
    """Rows by the cell's id."""
    rejected: dict[str, Row] = field(default_factory=dict)
    """The trials that their method has refused, likewise. They cost nothing and count for nothing; their searches do
    not suggest them again."""

    def trials(self, search: CellSearch) -> list[Row]:
        """The trials of a search."""
        return [row for row in self.rows.values() if search.holds(row.cell)]

    def shared_trials(self, search: CellSearch) -> list[Row]:
        """The trials of a search, and of those that share them in other settings."""
        return [row for row in self.rows.values() if search.shares(row.cell)]

    def suggested(self, search: CellSearch) -> list[Row]:
        """The trials of a search and of those that share them, and those that were rejected."""
        return [*self.shared_trials(search), *(row for row in self.rejected.values() if search.shares(row.cell))]

    def remaining(self, search: CellSearch) -> int:
        """Number of trials that a search may still suggest."""
        return search.remaining(self.design, self.suggested(search))

    def left(self, search: CellSearch, exhausted: Container[str], running: Mapping[str, Leg] | None = None) -> int:
        """Number of trials of a search that are still to be suggested, to run, or to continue from their rung."""
        rows, going = self.trials(search), running or {}
        to_run = sum(row.cell.id in going or standing(self.design, row).state is CellState.QUEUED for row in rows)
        to_come = 0 if str(search) in exhausted else self.remaining(search)
        return to_run + to_come + len(promoted_of(self, search, going, closed=True))

    def stored(self) -> dict[str, StoredCell]:
        """The cells as readers see them, by id."""
        return {key: stored_row(self.design, row) for key, row in self.rows.items()}

    def unconfirmed(self) -> list[CellSearch]:
        """The searches whose choice is still to be confirmed."""
        tuned = [row.cell for row in self.rows.values() if row.cell.role == "tuned"]
        searches = self.searches if self.design.confirm else ()
        return [search for search in searches if not any(map(search.confirms, tuned))]

    def having(self, *states: CellState) -> list[Row]:
        """Rows in one of these states."""
        return [row for row in self.rows.values() if standing(self.design, row).state in states]


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
    table: LiveTable, running: Mapping[str, Leg], exhausted: Container[str], order: Callable[[Row], Any]
) -> Action:
    """Decides what a study does next.

    Args:
        table: the study.
        running: legs that are running, by the ids of their cells.
        exhausted: searches whose sampler has no new point.
        order: sort key of queued cells.
    """
    if rows := _promoted(table, running, closed=False):
        return Pass(rows)
    standings = [(row, standing(table.design, row)) for row in table.rows.values() if row.cell.id not in running]
    queued = [(row, now.left[0]) for row, now in standings if now.state is CellState.QUEUED]
    if queued:
        return Start(*min(queued, key=lambda pair: order(pair[0])))
    if (search := asking(table, exhausted)) is not None:
        return Ask(search)
    if rows := _promoted(table, running, closed=True):
        return Pass(rows)
    if cells := confirming(table, running, exhausted):
        return Confirm(cells)
    return Wait() if running else Done()


def asking(table: LiveTable, exhausted: Container[str]) -> CellSearch | None:
    """The search that suggests the next trial: the one with the fewest trials among those that may suggest one."""
    searches = [search for search in table.searches if str(search) not in exhausted]
    sizes = {search.stream: len(table.trials(search)) for search in searches} if len(searches) > 1 else {}
    ordered = sorted(searches, key=lambda search: sizes.get(search.stream, 0))
    return next((search for search in ordered if table.remaining(search)), None)


def confirming(table: LiveTable, running: Mapping[str, Leg], exhausted: Container[str]) -> list[Cell]:
    """The cells that confirm the searches of which no trial is left."""
    cells = list[Cell]()
    for search in table.unconfirmed():
        if not any(table.left(other, exhausted, running) for other in search.settings or (search,)):
            cells += search.confirmed(table.design, table.shared_trials(search))
    return cells


def _promoted(table: LiveTable, running: Mapping[str, Leg], *, closed: bool) -> list[Row]:
    """Trials that continue; see `halving.promoted`."""
    return [row for search in table.searches for row in promoted_of(table, search, running, closed=closed)]


def promoted_of(table: LiveTable, search: CellSearch, running: Mapping[str, Leg], *, closed: bool) -> list[Row]:
    """Trials of one search that continue."""
    if table.design.reduction is None:
        return []
    return promoted(table.design, table.trials(search), running, closed=closed)
