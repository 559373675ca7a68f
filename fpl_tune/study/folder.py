"""The folder of a study: study.yaml, cells.json and each cell's cell.json; damaged files are left out and listed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fpl_tune import config
from fpl_tune.config import StudySpec
from fpl_tune.errors import ConfigError
from fpl_tune.files import write_text
from fpl_tune.study import schema
from fpl_tune.study.cells import Cell
from fpl_tune.study.schema import SCHEMA, CellFile, DamagedFile

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Folder:
    """A study's folder: the study and its cells; `Store` adds the results.

    A damaged file costs the cell or the seed that it belongs to, never the study: it is left out, named once in a
    warning, and listed in `damage`. A damaged study.yaml raises `DamagedFile`.

    Args:
        root: the output folder.
        name: the study's name.

    Raises:
        ConfigError: the name leads out of the output folder.
    """

    def __init__(self, root: Path, name: str) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise ConfigError(f"A study lies in a folder of its own in {root}, but is named {name!r}.")
        self.root, self.name = root, name
        self.folder = root / name
        self.damage: dict[Path, DamagedFile] = {}
        """Damaged files that were met so far."""
        self._cells: dict[str, Cell] = {}
        self._node: tuple[tuple[int, int], dict[str, Any]] | None = None

    @property
    def exists(self) -> bool:
        """Whether the study was ever begun."""
        return (self.folder / "study.yaml").is_file()

    def add(self, cells: Sequence[Cell]) -> None:
        """Adds the cells that a search suggested."""
        for cell in cells:
            self._write_cell(cell)
        self._index([*self._order(), *(cell.id for cell in cells)])

    def spec(self) -> StudySpec:
        """The study.

        Raises:
            ConfigError: its file is damaged, or holds what this release refuses.
        """
        try:
            return config.to_study(self.node(), stored=True)
        except DamagedFile:
            raise
        except ConfigError as problem:
            raise ConfigError(f"{self.folder / 'study.yaml'}: {problem}") from None

    def node(self) -> dict[str, Any]:
        """The resolved study as a plain dict; copy it before changing it.

        Raises:
            ConfigError: its file is damaged, or of a later release.
        """
        path = self.folder / "study.yaml"
        stat = path.stat()
        stamp = stat.st_mtime_ns, stat.st_ino
        if self._node is None or self._node[0] != stamp:
            self._node = stamp, schema.read_study(path)
        return dict(self._node[1])

    # -- cells -----------------------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """Cells of the study in its order, without those whose file is damaged."""
        return [cell for key in self._order() if (cell := self._known(key)) is not None]

    def left(self) -> list[Cell]:
        """Cells of earlier settings, which are in no table."""
        here = {path.name for path in self._folders()}
        return [cell for key in sorted(here - set(self._order())) if (cell := self._known(key)) is not None]

    def cell(self, key: str) -> Cell:
        """A cell by its id, its number, or its label.

        Raises:
            ConfigError: there is no such cell, or its file is damaged.
        """
        if re.fullmatch(schema.CELL_ID, key) and (self.folder / "cells" / key).is_dir():
            return self._read(key)
        for found in self.cells():
            if key in (str(found.number), found.label):
                return found
        raise ConfigError(f"There is no cell {key!r} in {self.name}. Cells have an id, a number and a label.")

    def _read(self, key: str) -> Cell:
        if key not in self._cells:
            path = self.folder / "cells" / key / "cell.json"
            file = schema.read_cell(path)
            try:
                run = config.to_run(file.run, stored=True)
            except (ConfigError, KeyError, AttributeError, TypeError) as problem:
                raise DamagedFile(path, f"run: {problem}") from None
            self._cells[key] = Cell(file.id, file.number, file.label, file.role, file.varied, run)
        return self._cells[key]

    def former(self) -> dict[str, str]:
        """Ids of schema 1 -> ids, of cells whose id has changed since."""
        files = (self._file(path.name) for path in self._folders())
        return {file.former: file.id for file in files if file is not None and file.former}

    def fingerprints(self, cell: Cell) -> dict[str, Any]:
        """Fingerprints of a cell when its results were made; empty before."""
        file = self._file(cell.id)
        return file.fingerprints if file is not None else {}

    def stamp(self, cell: Cell, prints: Mapping[str, Any]) -> None:
        """Stores the fingerprints of the results that are about to be made."""
        file = self._file(cell.id)
        if file is None or file.fingerprints != prints:
            self._write_cell(cell, prints)

    def _known(self, key: str) -> Cell | None:
        return self._unless_damaged(lambda: self._read(key))

    def _file(self, key: str) -> CellFile | None:
        """The content of cell.json; None if there is no file, or it is damaged."""
        path = self.folder / "cells" / key / "cell.json"
        return self._unless_damaged(lambda: schema.read_cell(path) if path.is_file() else None)

    def _write_cell(self, cell: Cell, prints: Mapping[str, Any] | None = None) -> None:
        self._cells[cell.id] = cell
        path = self.folder / "cells" / cell.id / "cell.json"
        file = self._file(cell.id)
        node: dict[str, Any] = {"schema": SCHEMA}
        node |= {k: getattr(cell, k) for k in ("id", "number", "label", "role", "varied")}
        node["run"] = plain(config.as_dict(cell.run))
        node["fingerprints"] = dict(prints) if prints is not None else file.fingerprints if file is not None else {}
        if file is not None and file.former:
            node["former"] = file.former
        self._replace(path, json.dumps(node, indent=1))

    def _replace(self, path: Path, text: str) -> None:
        """Writes a file whose text differs; a damaged one is set aside."""
        if path in self.damage:
            self._set_aside(self.damage[path])
        if not path.is_file() or path.read_text() != text:
            write_text(path, text)

    def _folders(self) -> Iterator[Path]:
        """Folders of cells; others among them are not the store's."""
        found = (path.parent for path in self.folder.glob("cells/*/cell.json"))
        return (path for path in found if re.fullmatch(schema.CELL_ID, path.name))

    def _order(self) -> list[str]:
        order = self._unless_damaged(lambda: schema.read_order(self.folder / "cells.json"))
        if order is not None:
            return order
        cells = [cell for path in self._folders() if (cell := self._known(path.name)) is not None]
        return [cell.id for cell in sorted(cells, key=lambda cell: cell.number)]  # each file holds its position

    def _index(self, keys: Sequence[str]) -> None:
        self._replace(self.folder / "cells.json", json.dumps(list(dict.fromkeys(keys)), indent=0))

    # -- damage ----------------------------------------------------------------------------------------------

    def _unless_damaged(self, read: Callable[[], T]) -> T | None:
        """Returns the result of `read`; on a damaged file it warns and returns None."""
        try:
            return read()
        except DamagedFile as problem:
            self._warn(problem)
            return None

    def _warn(self, problem: DamagedFile) -> None:
        if problem.path not in self.damage:
            self.damage[problem.path] = problem
            _log.warning("%s", problem)

    def _set_aside(self, problem: DamagedFile) -> None:
        """Renames a damaged file, and with a seed's history or prompts its result, with a database its journal."""
        self.damage.pop(problem.path, None)
        paths = [problem.path]
        if problem.path.name in ("metrics.jsonl", "prompts.safetensors"):
            paths.insert(0, problem.path.with_name("result.json"))
        if problem.path.name == "study.db":
            paths += [problem.path.with_name(f"study.db-{part}") for part in ("wal", "shm")]
        for path in paths:
            if path.exists():
                path.replace(path.with_name(f"{path.name}.damaged"))


def plain(node: Any) -> Any:
    """Tuples as lists: what YAML and JSON can hold."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items()}
    return [plain(value) for value in node] if isinstance(node, list | tuple) else node
