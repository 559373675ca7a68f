"""A study in a notebook or a prompt: the page's sentence, main chart and table of cells, as HTML and as text."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

from PIL import Image
from rich.cells import cell_len

from fpl_tune.core.formatting import counted
from fpl_tune.report.panels import PageTable
from fpl_tune.report.vega import SCALE

ROWS = 20
"""Rows that are shown of a table."""


@dataclass(frozen=True)
class Summary:
    """The results of a study without scripts, so that every viewer of notebooks shows them."""

    sentence: str
    table: PageTable | None = None
    """The page's main table, of `ROWS` rows at most; None: the study has no result."""
    others: int = 0
    """Rows that it leaves out."""
    note: str = ""
    """Explains the table's values."""
    picture: bytes = b""
    """The main chart as PNG, `vega.SCALE` times as large as it is shown; empty where there is none."""
    caption: str = ""

    @property
    def rest(self) -> str:
        """How many cells are not shown; empty where all are."""
        return f"and {counted(self.others, 'more cell')}, which summary() lists." if self.others else ""

    def html(self) -> str:
        """The sentence, the chart as an image inside the text, and the table; the best row is bold."""
        parts = [f"<p><strong>{html.escape(self.sentence)}</strong></p>"]
        if self.picture:
            width = Image.open(io.BytesIO(self.picture)).width // SCALE
            data, alt = base64.b64encode(self.picture).decode(), html.escape(self.caption, quote=True)
            parts.append(f'<p><img width="{width}" alt="{alt}" src="data:image/png;base64,{data}"></p>')
        if self.table is not None:
            head = "".join(f"<th>{html.escape(name)}</th>" for name in self.table.header)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>")
            for row in self.table.rows:
                texts = ((html.escape(field.text), field.bold or row.kind == "best") for field in row.cells)
                fields = (f"<strong>{text}</strong>" if bold else text for text, bold in texts)
                parts.append(f"<tr>{''.join(f'<td>{field}</td>' for field in fields)}</tr>")
            parts.append("</tbody></table>")
        parts += [f"<p>{html.escape(text)}</p>" for text in (self.rest, self.note) if text]
        return "\n".join(parts)

    def text(self) -> str:
        """The sentence and the table in columns; the best row, or the best field of a column, is marked by a star."""
        if self.table is None:
            return self.sentence
        marked = any(row.kind == "best" for row in self.table.rows)
        marks = [("* " if row.kind == "best" else "  ") * marked for row in self.table.rows]
        lines = [["  " * marked + self.table.header[0], *self.table.header[1:]]]
        for mark, row in zip(marks, self.table.rows, strict=True):
            first, *others = (f"{field.text}*" if field.bold else field.text for field in row.cells)
            lines.append([mark + first, *others])
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        worded = self.table.worded
        shown = ("  ".join(map(_padded, line, widths, worded)).rstrip() for line in lines)
        return "\n".join(chain([self.sentence, ""], shown, filter(None, [self.rest])))


def cut(table: PageTable, numbers: Collection[int | None]) -> PageTable:
    """The first `ROWS` rows, in the table's order; rows whose number is in `numbers` are kept first."""
    first = sorted(table.rows, key=lambda row: row.number not in numbers)[:ROWS]
    return replace(table, rows=[row for row in table.rows if any(row is one for one in first)])


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - cell_len(text))
    return f"{text}{space}" if left else f"{space}{text}"
