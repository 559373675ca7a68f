"""The panels of the report page: texts, charts and tables that answer one question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fpl_tune.core.formatting import counted, interval, signed
from fpl_tune.report.charts import Spec

FIXED = "It does not vary by chance over seeds: there are no deviations, intervals or letters, and nothing is bold."
"""Explains the table of a metric such as bytes; see `Metric.sampled`."""


class Td(NamedTuple):
    """A table's field: its text and, where that does not sort, what it is sorted by."""

    text: str
    key: float | str | None = None
    bold: bool = False


class TableRow(NamedTuple):
    """A table's row. A row of the main table has the cell's number in the page's data."""

    cells: Sequence[Td]
    kind: str = ""
    """CSS class."""
    number: int | None = None


@dataclass(frozen=True)
class PageTable:
    """A table of the page."""

    header: list[str]
    rows: list[TableRow]
    main: bool = False
    """True if it is sorted, filtered and paged in the browser."""

    @property
    def worded(self) -> list[bool]:
        """True for each column of words, which are aligned to the left; False for numbers."""
        columns = zip(*(row.cells for row in self.rows), strict=True)
        return [not all(_NUMBER.match(td.text) for td in column) for column in columns] or [True] * len(self.header)


_NUMBER = re.compile(r"$|–|[<+-]? ?\d")


@dataclass
class Panel:
    """Texts, charts, tables and commands that answer one question."""

    title: str = ""
    texts: list[str] = field(default_factory=list)
    charts: dict[str, tuple[Spec, str]] = field(default_factory=dict)
    """File name -> Vega-Lite specification and caption."""
    tables: list[PageTable] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    small: bool = False
    """Its charts stand three and more beside each other."""


def plain_table(header: list[str], rows: Iterable[Sequence[str]]) -> PageTable:
    """A table of texts, which the page does not sort."""
    return PageTable(header, [TableRow([Td(text) for text in row]) for row in rows])


def judged(metric: str, row: Mapping[Any, Any]) -> list[str]:
    """Difference, interval and verdict of a comparison as texts; of declared looks also the one that decided."""
    verdict = f"{row['verdict']} at {counted(row['look'], 'seed')}" if row.get("look") else str(row["verdict"])
    return [signed(row["difference"], metric), interval(row, metric), verdict]


def judged_text(metric: str, row: Mapping[Any, Any] | None) -> str:
    """`+1.20 (+0.30 to +2.10): better`; `–` if there is no comparison, or no seed is paired."""
    if row is None or not row["seeds"]:
        return "–"
    difference, bounds, verdict = judged(metric, row)
    if bounds == "–":
        return verdict if row["verdict"] == "identical" else difference
    return f"{difference} ({bounds}): {verdict}"
