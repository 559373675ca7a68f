"""The parts of the report page: sections with texts, charts and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fpl_tune.report.charts import Spec


class Td(NamedTuple):
    """A table's field: its text and what it is sorted by (None: its text)."""

    text: str
    key: float | str | None = None


class Row(NamedTuple):
    """A table's row. A row of the main table has the cell's number in the page's data."""

    cells: Sequence[Td]
    kind: str = ""
    """CSS class."""
    number: int | None = None


@dataclass(frozen=True)
class Table:
    header: list[str]
    rows: list[Row]
    sortable: bool = False
    fold: str = ""
    """Title under which the page folds the table; empty: it is open."""

    @property
    def worded(self) -> list[bool]:
        """Whether a column holds words, which are aligned to the left, or figures."""
        columns = zip(*(row.cells for row in self.rows), strict=True)
        return [not all(_FIGURE.match(td.text) for td in column) for column in columns] or [True] * len(self.header)


@dataclass
class Section:
    id: str
    title: str
    texts: list[str] = field(default_factory=list)
    charts: dict[str, tuple[Spec, str]] = field(default_factory=dict)
    """File name -> Vega-Lite specification and caption."""
    tables: list[Table] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    folds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """File name -> {"name", "open"} of charts of which the page shows one at a time."""


_FIGURE = re.compile(r"$|–|[<+-]? ?\d")


def plain_table(header: list[str], rows: Iterable[Sequence[str]], *, fold: str = "") -> Table:
    """A table of texts, which the page does not sort."""
    return Table(header, [Row([Td(text) for text in row]) for row in rows], fold=fold)
