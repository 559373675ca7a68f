"""A study's folder: the study, its cells and their results. The driver alone writes it, each file atomically.

Layout of `<root>/<study>/`: study.yaml (the resolved study), cells.json (its cells in order), and per cell
cells/<id>/cell.json and cells/<id>/seed=<n>/ with metrics.jsonl, prompts.safetensors and result.json.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from fpl_tune import config
from fpl_tune.config import StudySpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import atomic_write, save_tensors, write_text
from fpl_tune.core.redact import redact
from fpl_tune.simulation.simulation import Record
from fpl_tune.study import earlier, results, schema
from fpl_tune.study.cells import Cell
from fpl_tune.study.migrate import convert, convert_cells
from fpl_tune.study.schema import SCHEMA, CellFile, DamagedFile
from fpl_tune.study.status import Status

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Store:
    """A study's store.

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
        self._node: tuple[tuple[int, int], dict[str, Any]] = (0, 0), {}
        self._cells: dict[str, Cell] = {}
        self._results: dict[tuple[str, int], dict[str, Any]] = {}

    @classmethod
    def open(cls, root: Path, name: str) -> Store:
        """Opens a study that exists; converts a store of schema 1, see `migrate`.

        Raises:
            ConfigError: no study has that name.
        """
        store = cls(root, name)
        if not store.exists:
            known = sorted(p.parent.name for p in root.glob("*/study.yaml"))
            raise ConfigError(
                f"There is no study {name!r} in {root}. "
                + (f"Known: {', '.join(known)}." if known else f"Run `fpl-tune study {name}` first.")
            )
        convert(store.folder)
        return store

    # -- the study -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the study was ever begun."""
        return (self.folder / "study.yaml").is_file()

    def begin(self, node: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        """Writes the resolved study and its cells, after which come the cells of earlier runs; see `earlier`.

        Passwords and tokens in addresses are not written. Damaged files are set aside. The caller holds the lock.

        Raises:
            ConfigError: a later release wrote the store.
        """
        if self.exists:
            try:
                schema.read_study(self.folder / "study.yaml")
            except DamagedFile as problem:
                self._set_aside(problem)
                convert_cells(self.folder)
            else:
                convert(self.folder, locked=True)
        node = dict(node)
        for part in ("tracking", "execution"):
            node[part] = {k: redact(v) if isinstance(v, str) else v for k, v in node[part].items()}
        write_text(self.folder / "study.yaml", as_yaml({"schema": SCHEMA, **node}))
        for cell in cells:
            self.stamp(cell)
        self._order()  # names the file if it is damaged
        kept = earlier.find(self, cells)
        earlier.mark(self, kept)
        self._index([cell.id for cell in [*cells, *kept]])
        for cell in cells:
            self.seeds(cell)  # names damaged files
        inside = {self.folder / "cells" / cell.id for cell in cells}
        for path, problem in list(self.damage.items()):
            if inside.intersection(path.parents):
                self._set_aside(problem)

    def spec(self) -> StudySpec:
        """The study.

        Raises:
            ConfigError: its file is damaged, or holds what this release refuses.
        """
        node = self.node()
        try:
            return config.to_study(node, stored=True)
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
        if self._node[0] != stamp:  # another process may run the study again
            self._node = stamp, schema.read_study(path)
        return dict(self._node[1])

    # -- cells -----------------------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """Cells of the study in its order, without those whose file is damaged."""
        return self._readable(self._order())

    def earlier_cells(self) -> list[Cell]:
        """Cells of earlier settings, which are in no table."""
        return self._readable(sorted({path.name for path in self._folders()} - set(self._order())))

    def cell(self, key: str) -> Cell:
        """A cell by its id, its number, or its label.

        Raises:
            ConfigError: there is no such cell, or its file is damaged.
        """
        if re.fullmatch(schema.CELL_ID, key) and (self.folder / "cells" / key).is_dir():
            return self._cell(key)
        for found in self.cells():
            if key in (str(found.number), found.label):
                return found
        raise ConfigError(f"There is no cell {key!r} in {self.name}. Cells have an id, a number and a label.")

    def add(self, cells: Sequence[Cell]) -> None:
        """Adds the cells that a search suggested."""
        for cell in cells:
            self.stamp(cell)
        self._index([*self._order(), *(cell.id for cell in cells)])

    def stamp(self, cell: Cell, prints: Mapping[str, Any] | None = None) -> None:
        """Stores a cell, and the fingerprints of the results that are about to be made; None: as they are."""
        before = self._file(cell.id)
        if prints is None:
            prints = before.fingerprints if before is not None else {}
        file = CellFile(
            **{name: getattr(cell, name) for name in ("id", "number", "label", "role", "varied")},
            run=config.as_dict(cell.run),
            fingerprints=dict(prints),
            former=before.former if before is not None else None,
        )
        self._cells[cell.id] = cell
        self._replace(self._path(cell.id), file.text())

    def fingerprints(self, cell: Cell) -> dict[str, Any]:
        """Fingerprints of a cell when its results were made; empty before."""
        file = self._file(cell.id)
        return file.fingerprints if file is not None else {}

    def former(self) -> dict[str, str]:
        """Ids of schema 1 -> ids, of cells whose id has changed since."""
        files = (self._file(path.name) for path in self._folders())
        return {file.former: file.id for file in files if file is not None and file.former}

    def _path(self, key: str) -> Path:
        return self.folder / "cells" / key / "cell.json"

    def _file(self, key: str) -> CellFile | None:
        """The content of cell.json; None if there is no file, or it is damaged."""
        path = self._path(key)
        return self._unless_damaged(lambda: schema.read_cell(path)) if path.is_file() else None

    def _cell(self, key: str) -> Cell:
        if key not in self._cells:
            file = schema.read_cell(self._path(key))
            try:
                run = config.to_run(file.run, stored=True)
            except (ConfigError, KeyError, AttributeError, TypeError) as problem:
                raise DamagedFile(self._path(key), f"run: {problem}") from None
            self._cells[key] = Cell(file.id, file.number, file.label, file.role, file.varied, run)
        return self._cells[key]

    def _readable(self, keys: Sequence[str]) -> list[Cell]:
        found = (self._unless_damaged(lambda key=key: self._cell(key)) for key in keys)
        return [cell for cell in found if cell is not None]

    def _folders(self) -> Iterator[Path]:
        """Folders of cells; others among them are not the store's."""
        found = (path.parent for path in self.folder.glob("cells/*/cell.json"))
        return (path for path in found if re.fullmatch(schema.CELL_ID, path.name))

    def _order(self) -> list[str]:
        order = self._unless_damaged(lambda: schema.read_order(self.folder / "cells.json"))
        if order is not None:
            return order
        cells = self._readable([path.name for path in self._folders()])
        return [cell.id for cell in sorted(cells, key=lambda cell: cell.number)]  # each file holds its position

    def _index(self, keys: Sequence[str]) -> None:
        self._replace(self.folder / "cells.json", json.dumps(list(dict.fromkeys(keys)), indent=0))

    def _replace(self, path: Path, text: str) -> None:
        """Writes a file whose text differs; a damaged one is set aside."""
        if path in self.damage:
            self._set_aside(self.damage[path])
        if not path.is_file() or path.read_text() != text:
            write_text(path, text)

    # -- results ---------------------------------------------------------------------------------------------

    def seed_folder(self, cell: Cell, seed: int) -> Path:
        """The folder of one seed."""
        return self.folder / "cells" / cell.id / f"seed={seed}"

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds that have a result."""
        return list(self.seed_results(cell))

    def seed_results(self, cell: Cell) -> dict[int, dict[str, Any]]:
        """The stored results of a cell by seed."""
        names = (path.parent.name for path in (self.folder / "cells" / cell.id).glob("seed=*/result.json"))
        numbers = sorted(int(found[1]) for name in names if (found := schema.SEED_FOLDER.fullmatch(name)))
        return {seed: result for seed in numbers if (result := self.result(cell, seed)) is not None}

    def missing(self, cell: Cell, spec: StudySpec) -> list[int]:
        """Lists the seeds that a cell still has to run: those without a result, and those that failed."""
        found = ((seed, self.result(cell, seed)) for seed in spec.seed_list())
        return [seed for seed, result in found if result is None or result["status"] == Status.FAILED]

    def checkpointed(self, cell: Cell) -> int:
        """The round of a cell's newest checkpoint; 0 if it has none. Finished seeds have no checkpoint."""
        found = (self.folder / "cells" / cell.id).glob("ckpt-*/round-*.safetensors")
        return max((int(path.stem.removeprefix("round-")) for path in found), default=0)

    def result(self, cell: Cell, seed: int) -> dict[str, Any] | None:
        """The stored result of a seed; None if there is none, or it is damaged."""
        key, path = (cell.id, seed), self.seed_folder(cell, seed) / "result.json"
        if key not in self._results:
            if path.with_name("metrics.jsonl") in self.damage or not path.is_file():
                return None
            found = self._unless_damaged(lambda: schema.read_result(path))
            if found is None:
                return None
            self._results[key] = found
        return self._results[key]

    def history(self, cell: Cell, seed: int) -> list[Record]:
        """Records by round; empty where nothing was stored.

        Raises:
            DamagedFile: the file cannot be read; see `check`.
        """
        return schema.read_history(self.seed_folder(cell, seed) / "metrics.jsonl")

    def put(
        self,
        cell: Cell,
        seed: int,
        history: Sequence[Record],
        result: Mapping[str, Any],
        prompts: Mapping[str, Tensor] | Path | None = None,
    ) -> None:
        """Stores one seed.

        Args:
            cell, seed: the cell and the seed.
            history: records by round.
            result: see `results.make_result`.
            prompts: learned tensors, or a file of them, which is moved.
        """
        place = self.seed_folder(cell, seed)
        (place / "result.json").unlink(missing_ok=True)  # after a kill, no result lies beside another history
        text = "".join(json.dumps(record) + "\n" for record in history)
        write_text(place / "metrics.jsonl", text)
        if isinstance(prompts, Path):
            os.replace(prompts, place / "prompts.safetensors")
        elif prompts:
            with atomic_write(place / "prompts.safetensors") as temporary:
                save_tensors(prompts, temporary)
        stored = {**result, "status": Status(result["status"]), "metrics_bytes": len(text.encode())}
        write_text(place / "result.json", json.dumps(stored, indent=1))
        self._results[cell.id, seed] = stored

    def forget(self, cell: Cell, seed: int) -> None:
        """Removes a seed's result, so that it runs again."""
        self._results.pop((cell.id, seed), None)
        place = self.seed_folder(cell, seed)
        (place / "result.json").unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def sweep(self) -> None:
        """Removes the temporary files of a killed process."""
        for path in self.folder.rglob("*.part"):
            path.unlink(missing_ok=True)

    # -- damage ----------------------------------------------------------------------------------------------

    def check(self) -> list[DamagedFile]:
        """Reads every file of the store and lists the damaged ones. Seeds with a damaged history lose their result."""
        checks: list[tuple[Path, Callable[[Path], None]]] = [(self.folder / "study.db", schema.check_database)]
        for cell in (*self.cells(), *self.earlier_cells()):
            for seed in self.seeds(cell):
                if self._unless_damaged(lambda cell=cell, seed=seed: self.history(cell, seed)) is None:
                    self._results.pop((cell.id, seed))
                checks.append((self.seed_folder(cell, seed) / "prompts.safetensors", schema.check_prompts))
        for path, check in checks:
            if path.is_file():
                self._unless_damaged(lambda path=path, check=check: check(path))
        return list(self.damage.values())

    def repair(self) -> list[DamagedFile]:
        """Sets all damaged files aside; the next run of the study makes them again. The caller holds the lock."""
        found = self.check()
        order = [cell.id for cell in self.cells()]
        for problem in found:
            self._set_aside(problem)
        self._index(order)
        return found

    def strays(self) -> list[Path]:
        """Files and folders in `cells/` that are not of the store."""
        known = re.compile(r"cell\.json|seed=\d+|ckpt-.*|slot.*|.*\.(part|damaged)")
        inside = (path for folder in self._folders() for path in folder.iterdir() if not known.fullmatch(path.name))
        beside = (path for path in self.folder.glob("cells/*") if not re.fullmatch(schema.CELL_ID, path.name))
        return sorted([*inside, *beside])

    def _unless_damaged(self, read: Callable[[], T]) -> T | None:
        """Returns the result of `read`; on a damaged file it warns and returns None."""
        try:
            return read()
        except DamagedFile as problem:
            if problem.path not in self.damage:
                self.damage[problem.path] = problem
                _log.warning("%s", problem)
            return None

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

    # -- tables ----------------------------------------------------------------------------------------------

    def frame(self, metric: str = results.TEST) -> pd.DataFrame:
        """The result table: one row per cell, seed and reporting rule; see `results.frame`."""
        return results.frame(self, metric)

    def write_csv(self) -> Path:
        """Writes results.csv."""
        path = self.folder / "results.csv"
        write_text(path, self.frame().to_csv(index=False))
        return path

    def summary(self, rule: str = "final", metric: str = results.TEST) -> pd.DataFrame:
        """One row per cell: mean, std, sem, n, min and max of a metric over seeds; see `results.summary`."""
        return results.summary(self.frame(metric), self.cells(), self.spec().seed_list(), rule, metric)


def as_yaml(node: Mapping[str, Any]) -> str:
    """A configuration as YAML, in its order; tuples become lists."""
    return yaml.safe_dump(_plain(node), sort_keys=False)


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _plain(value) for key, value in node.items()}
    return [_plain(value) for value in node] if isinstance(node, list | tuple) else node
