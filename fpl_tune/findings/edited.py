"""Results of methods in users' own files, whose code may have changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import joined
from fpl_tune.study.table import StudyTable


def note(table: StudyTable) -> str:
    """A sentence on the methods whose code has changed since their results; empty if there are none.

    Methods that cannot be imported here are left out.
    """
    changed = dict[str, None]()
    for row in table.rows.values():
        name, *inner = _names(row.cell.node["method"])
        prints = {run.fingerprints.get("method") for run in row.results.values()} - {None}
        if prints and any(":" in each for each in (name, *inner)):
            from fpl_tune.study.fingerprints import method_source  # with PyTorch

            with suppress(ConfigError):
                if prints != {method_source(row.cell.run)}:
                    changed[name] = None
    if not changed:
        return ""
    again = f"fpl-tune study {table.study.name} runs its cells again"
    return f"Results of {joined([*changed])} are stale (method source): the code has changed since, and {again}."


def _names(node: Mapping[str, Any]) -> Iterator[str]:
    """The names of a method and of those that it wraps."""
    yield str(node["name"])
    if isinstance(inner := node.get("inner"), Mapping):
        yield from _names(inner)
