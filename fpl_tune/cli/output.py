"""Printing: a table or its JSON or CSV, and lines that stay plain without a terminal or with NO_COLOR."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fpl_tune.core.formatting import plain, plus_minus, time_left
from fpl_tune.core.metrics import SUCCESS, metric
from fpl_tune.core.yaml_files import write_mapping

_SILENCE = 10.0
"""Seconds between progress lines without a terminal."""
_NARROWEST = 20
"""Minimum characters in a line for a readable table; a terminal of unknown size has COLUMNS=0."""
_FIGURE = re.compile(r"–|[-+]?[\d.,]+(e[-+]\d+)?( ± [\d.]+)?")


def console(*, stderr: bool = False) -> Console:
    """The console of standard output or error, with the terminal's width and colours; plain with NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    system = None if os.environ.get("NO_COLOR") else "auto"
    made = Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty(), color_system=system
    )
    if made.width < _NARROWEST:
        made.width = 80
    return made


def warn(message: str, style: str = "yellow") -> None:
    """Prints one line on standard error."""
    console(stderr=True).print(" ".join(message.split()), style=style, soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """Yields a callback (done, total) that shows the progress of longer tasks on standard error.

    On a terminal it shows a bar with the time left; elsewhere it prints a line every ten seconds.

    Args:
        what: name of the task; "": the callback's third argument.
    """
    talk = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal)
    began = printed = time.monotonic()
    task = bar.add_task(what, total=None)

    def follow(done: float, total: float, step: str = "") -> None:
        nonlocal printed
        bar.update(task, completed=done, total=total, description=what or step)
        now = time.monotonic()
        if not talk.is_terminal and now - printed > _SILENCE and done:
            printed = now
            left = (now - began) * (total - done) / done
            talk.print(f"{what or step}: {done:,.0f} of {total:,.0f}, {time_left(left)}")

    with bar:
        yield follow


def emit(
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    format: str,
    title: str = "",
    best: Collection[int] = (),
    caption: str = "",
    *,
    narrow: bool = False,
    spare: Sequence[str] = (),
) -> None:
    """Prints rows, or the fields of an object: a table for people (rows `best` in bold), JSON, or CSV with a header.

    With `narrow`, the table has no lines between the columns. Of the columns `spare`, the last are left out of it until
    it fits into the terminal, and the caption names them.
    """
    if format == "json":
        print(json.dumps(plain(rows), indent=1, ensure_ascii=not _is_utf8()))
        return
    if isinstance(rows, Mapping):
        rows = [{"field": name, "value": _shown(value)} for name, value in rows.items()]
    rows = [plain(row) for row in rows]
    columns = dict.fromkeys(name for row in rows for name in row)
    if format == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=[*columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    talk, kept = console(), [*spare]
    while kept and _width(rows, columns, talk) > talk.width:
        del columns[kept.pop()]
    if left := [name for name in spare if name not in columns]:
        caption = "; ".join(filter(None, [f"columns without room: {', '.join(left)}", caption]))
    talk.print(_table(rows, [*columns], title or None, best, caption or None, narrow=narrow))


def _table(
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[str],
    title: str | None = None,
    best: Collection[int] = (),
    caption: str | None = None,
    *,
    narrow: bool,
) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    if narrow:
        table.box, table.padding = SIMPLE_HEAD, (0, 0, 0, 1)
    for name in columns:
        right = all(_FIGURE.fullmatch(_shown(row.get(name))) for row in rows)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for i, row in enumerate(rows):
        table.add_row(*(Text(_shown(row.get(n))) for n in columns), style="bold green" if i in best else None)
    return table


def _width(rows: Sequence[Mapping[str, Any]], columns: Iterable[str], talk: Console) -> int:
    """The width, in characters, of a narrow table without line breaks."""
    return Measurement.get(talk, talk.options.update(max_width=10_000), _table(rows, columns, narrow=True)).maximum


def emit_config(node: Mapping[str, Any]) -> None:
    """Prints a resolved configuration as YAML, which can be read back."""
    print(write_mapping(node, unicode=_is_utf8()), end="")


def _is_utf8() -> bool:
    """True if standard output is in UTF-8. Other encodings would replace characters that they lack and that are not
    escaped."""
    return codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"


def percent(mean: float | None, std: float | None = None) -> str:
    """Formats a share in percent, such as 87.3 ± 0.4; without a deviation if there is none."""
    return plus_minus(mean, std, "acc", digits=1)


def other_sets(metrics: Iterable[str]) -> dict[str, str]:
    """Column titles of metrics on other test sets than the main one: accuracies, harmonic means, and the success of an
    attack."""
    return {
        name: name.split("/")[-2] if name.endswith("acc_mean") else metric(name).title
        for name in metrics
        if re.fullmatch(f"test/(.+/acc_mean|.*harmonic_mean)|{SUCCESS}", name)
    }


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value)
