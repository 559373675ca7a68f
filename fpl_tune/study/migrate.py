"""Conversion of a store of schema 1, whose cell ids have 8 hex digits of another canonical form.

What schema 2 changes: a cell's id is that of `config.identity`; a result counts the bytes of its history; `raced` is
`eliminated`. Figures, histories, seeds, prompts and fingerprints stay as they are. Results are read in both forms, so
that only the files of cells and the order are written.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import write_text
from fpl_tune.study import lock, schema
from fpl_tune.study.schema import SCHEMA, DamagedFile

_log = logging.getLogger(__name__)


def convert(folder: Path, *, locked: bool = False) -> None:
    """Converts a store of schema 1; leaves one of this schema alone.

    Every step is one atomic write or rename, and study.yaml is written last: after a kill, the next call
    continues. A store that another process runs, or that cannot be written, is not converted: its results are readable,
    but a run of the study does not reuse them.

    Args:
        folder: the study's.
        locked: whether the caller holds the study's lock.

    Raises:
        ConfigError: the store is damaged, or of a later release.
    """
    path = folder / "study.yaml"
    with path.open(encoding="utf-8", errors="replace") as file:  # the first line alone: stores are opened often
        if re.match(r"schema: ([2-9]|\d\d)", file.readline(40)):
            return
    try:
        with nullcontext() if locked else lock.locked(folder):
            node = schema.read_study(path)
            convert_cells(folder)
            node = {**node, "method": current_method(node["method"], node.get("axes", {}))}
            write_text(path, yaml.safe_dump({"schema": SCHEMA, **node}, sort_keys=False))
            (folder / "results.csv").unlink(missing_ok=True)  # names cells; the next run writes it anew
    except (OSError, lock.Held) as problem:
        _log.warning("%s is of an earlier release and is not converted: %s", folder, problem)


def convert_cells(root: Path) -> None:
    """Gives the cells of schema 1 in a study's folder their ids. Damaged ones stay as they are."""
    ids: dict[str, str] = {}
    for path in sorted(root.glob("cells/*/cell.json")):
        try:
            former, new = _convert_cell(path)
            ids[former] = new
        except DamagedFile as problem:
            _log.warning("%s", problem)
    try:
        order = [ids.get(key, key) for key in schema.read_order(root / "cells.json")]
        write_text(root / "cells.json", json.dumps(list(dict.fromkeys(order)), indent=0))
    except DamagedFile as problem:
        _log.warning("%s", problem)


def _convert_cell(path: Path) -> tuple[str, str]:
    """Gives a cell its id, in the file and then as its folder's name.

    Returns:
        The id in schema 1, and the id.
    """
    file = schema.read_cell(path)
    if file.former is None:
        try:
            node = {**file.run, "method": current_method(file.run["method"], file.varied)}
            new = config.identity(config.to_run(node, stored=True))
        except (ConfigError, KeyError, TypeError, AttributeError) as problem:
            raise DamagedFile(path, f"run: {problem}") from None
        if new == file.id:
            return new, new
        file = file.model_copy(update={"id": new, "former": file.id, "run": node})
        if file.fingerprints.get("config") == file.former:
            file.fingerprints["config"] = new
        write_text(path, file.text())
    if path.parent.name != file.id:
        path.parent.replace(path.parent.with_name(file.id))
    return str(file.former), file.id


_FORMER_DEFAULTS: dict[str, dict[str, tuple[Any, Any]]] = {"pfedmoap": {"d_gating": (128, None)}}
"""Method -> field -> the default in schema 1, and its equivalent today."""


def current_method(node: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """A method with today's defaults; a value that was varied is kept."""
    found = {
        name: current_method(value, varied) if isinstance(value, Mapping) else value for name, value in node.items()
    }
    for name, (former, default) in _FORMER_DEFAULTS.get(str(node.get("name")), {}).items():
        if found.get(name) == former and name not in repr(varied):
            found[name] = default
    return found
