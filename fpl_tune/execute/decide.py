"""Decides the next action of a study: a function of its design, its rows and the legs under way. It writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.search.halving import promoted
from fpl_tune.study.standing import Design, Leg, Row, State, standing

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch


@dataclass
class LiveTable:
    """The cells of a running study with what is stored of them."""

    design: Design
    searches: Sequence[CellSearch] = ()
    rows: dict[str, Row] = field(default_factory=dict)
    """By id of the cell."""

    def trials(self, search: CellSearch) -> list[Row]:
        """The trials of a search."""
        return [row for row in self.rows.values() if search.holds(row.cell)]

    def remaining(self, search: CellSearch) -> int:
        """Trials that a search may still suggest."""
        return search.remaining(self.design, self.trials(search))

    def having(self, *states: State) -> list[Row]:
        """Rows in one of these states."""
        return [row for row in self.rows.values() if standing(self.design, row).state in states]


class Pass(NamedTuple):
    """Trials that pass their rung and continue."""

    rows: Sequence[Row]


class Start(NamedTuple):
    """A leg to hand out."""

    row: Row
    leg: Leg


class Ask(NamedTuple):
    """A search to ask for a trial."""

    search: CellSearch


class Wait(NamedTuple):
    """Nothing can start until a leg under way has ended."""


class Done(NamedTuple):
    """Nothing is left to run."""


Action = Pass | Start | Ask | Wait | Done


def next_action(
    table: LiveTable, running: Mapping[str, Leg], exhausted: Container[str], place: Callable[[Row], Any]
) -> Action:
    """Decides what a study does next.

    Args:
        table: the study.
        running: legs under way, by the ids of their cells.
        exhausted: searches whose sampler has no new point.
        place: orders queued cells.
    """
    if going := _promoted(table, running, closed=False):
        return Pass(going)
    standings = [(row, standing(table.design, row)) for row in table.rows.values() if row.cell.id not in running]
    queued = [(row, now.left[0]) for row, now in standings if now.state is State.QUEUED]
    if queued:
        return Start(*min(queued, key=lambda found: place(found[0])))
    if (search := asking(table, exhausted)) is not None:
        return Ask(search)
    if going := _promoted(table, running, closed=True):
        return Pass(going)
    return Wait() if running else Done()


def asking(table: LiveTable, exhausted: Container[str]) -> CellSearch | None:
    """The search that suggests the next trial: of those that may, the one with the fewest."""
    parts = [part for part in table.searches if str(part) not in exhausted]
    sizes = {part.stream: len(table.trials(part)) for part in parts} if len(parts) > 1 else {}
    ordered = sorted(parts, key=lambda part: sizes.get(part.stream, 0))
    return next((part for part in ordered if table.remaining(part)), None)


def _promoted(table: LiveTable, running: Mapping[str, Leg], *, closed: bool) -> list[Row]:
    """Trials that go on; see `halving.promoted`."""
    if table.design.reduction is None:
        return []
    found = (promoted(table.design, table.trials(part), running, closed=closed) for part in table.searches)
    return [row for going in found for row in going]
