"""A study's folder: the study, its cells and their results. The driver alone writes it, each file atomically.

Layout of `<root>/<study>/`: study.yaml (the resolved study), cells.json (its cells in order), and per cell
cells/<id>/cell.json and cells/<id>/seed=<n>/ with metrics.jsonl, prompts.safetensors and result.json.

Reading needs neither PyTorch nor Hydra, writing permissions neither; pandas is imported for data frames alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import atomic_write, save_tensors, write_text
from fpl_tune.core.formatting import counted, listed
from fpl_tune.core.redact import redact
from fpl_tune.study import earlier, results, schema
from fpl_tune.study.records import COLUMNS, Cell
from fpl_tune.study.schema import SCHEMA, CellFile, DamagedFile, Order, StudyFile
from fpl_tune.study.status import COUNTED, Status

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from fpl_tune.config import Study, StudySpec
    from fpl_tune.simulation.simulation import Record

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Store:
    """A study's store.

    A damaged file costs its cell or seed, never the study: it is left out, named once in a warning, listed in `damage`,
    and made anew when the study runs again. A damaged study.yaml raises `DamagedFile`.

    Args:
        root: the output folder.
        name: the study's name.

    Raises:
        ConfigError: the name leads out of the output folder.
    """

    def __init__(self, root: Path, name: str) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise ConfigError(f"Invalid study name {name!r}: name it without slashes.")
        self.root, self.name = root, name
        self.folder = root / name
        self.damage: dict[Path, DamagedFile] = {}
        """Damaged files that were met so far."""
        self._node: tuple[int, dict[str, Any]] = 0, {}
        self._cells: dict[str, Cell] = {}
        self._results: dict[tuple[str, int], dict[str, Any] | None] = {}
        """By cell and seed; None where a file of the seed is damaged."""

    @classmethod
    def open(cls, root: Path, name: str) -> Store:
        """Opens a study that exists.

        Raises:
            ConfigError: no study has that name, or another release wrote it.
        """
        store = cls(root, name)
        if not store.exists:
            known = sorted(p.parent.name for p in root.glob("*/study.yaml"))
            raise ConfigError(
                f"There is no study {name!r} in {root}. "
                + (f"Known: {', '.join(known)}." if known else f"Run `fpl-tune study {name}` first.")
            )
        store.node()
        return store

    # -- the study -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the study was ever begun."""
        return (self.folder / "study.yaml").is_file()

    def begin(self, spec: Study, cells: Sequence[Cell]) -> None:
        """Writes the resolved study and its cells, after which come the cells of earlier runs; see `earlier`.

        Passwords and tokens in addresses are not written. Damaged files are replaced, and seeds that have one run
        again. The caller holds the lock.

        Raises:
            ConfigError: another release wrote the store.
        """
        if self.exists:
            self._unless_damaged(self.node)
        node = dict(spec.node)
        for part in ("tracking", "execution"):
            node[part] = {k: redact(v) if isinstance(v, str) else v for k, v in node[part].items()}
        write_text(self.folder / "study.yaml", as_yaml({"schema": SCHEMA, **node}))
        for cell in cells:
            self.stamp(cell)
        before = [cell for cell in (*self.cells(), *self.earlier_cells()) if self.seed_results(cell)]
        kept = earlier.find(before, cells)
        self._write_order([*cells, *kept], earlier=kept)
        self._check_seeds([*cells, *kept])
        self.damage.clear()

    def spec(self) -> Study:
        """The typed study; composing it takes PyTorch. `study` has what tables need.

        Raises:
            ConfigError: its file is damaged, or holds what this release refuses.
        """
        from fpl_tune import config

        node = self.node()
        try:
            return config.to_study(node, stored=True)
        except ConfigError as problem:
            raise ConfigError(f"{self.folder / 'study.yaml'}: {problem}") from None

    def study(self) -> StudyFile:
        """The fields of the study that tables and choices read.

        Raises:
            ConfigError: its file is damaged.
        """
        return schema.as_study(self.node(), self.folder / "study.yaml")

    def node(self) -> dict[str, Any]:
        """The resolved study as a plain dict; copy it before changing it.

        Raises:
            ConfigError: its file is damaged, or of another release.
        """
        path = self.folder / "study.yaml"
        stamp = path.stat().st_mtime_ns
        if self._node[0] != stamp:  # another process may run the study again
            self._node = stamp, schema.read_study(path)
        return dict(self._node[1])

    # -- cells -----------------------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """Cells of the study in its order, without those whose file is damaged."""
        return self._readable(self._order().cells)

    def earlier_cells(self) -> list[Cell]:
        """Cells of other settings, which are in no table."""
        return self._readable(sorted(set(self._folders()) - set(self._order().cells)))

    def earlier_ids(self) -> set[str]:
        """Ids of the cells in the results that the last run of the study did not name."""
        return set(self._order().earlier)

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
        self._write_order([*self.cells(), *cells], earlier=self._order().earlier)

    def stamp(self, cell: Cell, prints: Mapping[str, Any] | None = None) -> None:
        """Stores a cell, and the fingerprints of the results that are about to be made; None: as they are."""
        known = {name: getattr(cell, name) for name in ("id", "number", "label", "role", "varied")}
        prints = self.fingerprints(cell) if prints is None else dict(prints)
        text = json.dumps({**known, "run": cell.node, "fingerprints": prints}, indent=1)
        self._cells[cell.id] = cell
        self._write(self._path(cell.id), text)

    def fingerprints(self, cell: Cell) -> dict[str, Any]:
        """Fingerprints of a cell when its results were made; empty before."""
        file = self._file(cell.id)
        return file.fingerprints if file is not None else {}

    def _path(self, key: str) -> Path:
        return self.folder / "cells" / key / "cell.json"

    def _file(self, key: str) -> CellFile | None:
        """The content of cell.json; None if there is no file, or it is damaged."""
        path = self._path(key)
        return self._unless_damaged(lambda: schema.read_cell(path)) if path.is_file() else None

    def _cell(self, key: str) -> Cell:
        if key not in self._cells:
            self._cells[key] = schema.read_cell(self._path(key)).cell()
        return self._cells[key]

    def _readable(self, keys: Sequence[str]) -> list[Cell]:
        found = (self._unless_damaged(lambda key=key: self._cell(key)) for key in keys)
        return [cell for cell in found if cell is not None]

    def _folders(self) -> list[str]:
        """Names of the folders of cells; others among them are not the store's."""
        found = (path.parent.name for path in self.folder.glob("cells/*/cell.json"))
        return [name for name in found if re.fullmatch(schema.CELL_ID, name)]

    def _order(self) -> Order:
        order = self._unless_damaged(lambda: schema.read_order(self.folder / "cells.json"))
        if order is None:  # each cell's file holds its position
            cells = sorted(self._readable(self._folders()), key=lambda cell: cell.number)
            order = Order(cells=[cell.id for cell in cells])
        order.cells = list(dict.fromkeys(order.cells))
        return order

    def _write_order(self, cells: Sequence[Cell], earlier: Sequence[Cell | str]) -> None:
        ids = [list(dict.fromkeys(c if isinstance(c, str) else c.id for c in part)) for part in (cells, earlier)]
        self._write(self.folder / "cells.json", json.dumps({"cells": ids[0], "earlier": ids[1]}, indent=0))

    def _write(self, path: Path, text: str) -> None:
        """Writes a file whose text differs."""
        if not path.is_file() or path.read_bytes() != text.encode():
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

    def shown_results(self, cell: Cell) -> dict[int, dict[str, Any]]:
        """The results of a cell that tables show: of the study's seeds, and those of earlier runs that count."""
        wanted = self.study().seed_list()
        stored = self.seed_results(cell).items()
        return {seed: result for seed, result in stored if seed in wanted or result["status"] in COUNTED}

    def missing(self, cell: Cell, spec: StudySpec) -> list[int]:
        """Lists the seeds that a cell still has to run: those without a result, and those that failed."""
        found = ((seed, self.result(cell, seed)) for seed in spec.seed_list())
        return [seed for seed, result in found if result is None or result["status"] == Status.FAILED]

    def checkpointed(self, cell: Cell) -> int:
        """The round of a cell's newest checkpoint; 0 if it has none. Finished seeds have no checkpoint."""
        found = (self.folder / "cells" / cell.id).glob("ckpt-*/round-*.safetensors")
        return max((int(path.stem.removeprefix("round-")) for path in found), default=0)

    def result(self, cell: Cell, seed: int) -> dict[str, Any] | None:
        """The stored result of a seed; None if there is none, or a file of the seed is damaged."""
        key, path = (cell.id, seed), self.seed_folder(cell, seed) / "result.json"
        if key not in self._results:
            if not path.is_file():
                return None
            self._results[key] = self._unless_damaged(lambda: schema.read_result(path))
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
        sums = {"metrics.jsonl": (len(text), zlib.crc32(text.encode()))}  # JSON is ASCII
        file = place / "prompts.safetensors"
        if isinstance(prompts, Path):
            os.replace(prompts, file)
        elif prompts:
            with atomic_write(file) as temporary:
                save_tensors(prompts, temporary)
        if file.is_file():
            sums[file.name] = schema.sum_of(file)
        stored = {**result, "status": Status(result["status"]), schema.SUMS: sums}
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
        """Reads every file of the store and lists the damaged ones. Seeds with a damaged file lose their result."""
        self._check_seeds([*self.cells(), *self.earlier_cells()])
        return list(self.damage.values())

    def _check_seeds(self, cells: Sequence[Cell]) -> None:
        """Compares the files of all seeds with their checksums."""
        for cell in cells:
            for seed, result in self.seed_results(cell).items():
                place, known = self.seed_folder(cell, seed), len(self.damage)
                self._unless_damaged(lambda result=result, place=place: schema.check_seed(result, place))
                if len(self.damage) > known:
                    self._results[cell.id, seed] = None

    def _unless_damaged(self, read: Callable[[], T]) -> T | None:
        """Returns the result of `read`; on a damaged file it warns and returns None."""
        try:
            return read()
        except DamagedFile as problem:
            if problem.path not in self.damage:
                self.damage[problem.path] = problem
                _log.warning("%s", problem)
            return None

    # -- tables ----------------------------------------------------------------------------------------------

    def rows(self, metric: str = results.TEST) -> list[results.Row]:
        """The result table as plain rows; see `results.table`.

        Where cells or seeds of earlier runs stay that the study no longer names, last_run is False for them.
        """
        cells, own, before = self.cells(), set(self.study().seed_list()), self.earlier_ids()
        stored = {cell.id: self.shown_results(cell) for cell in cells}
        if metric not in (*results.METRICS, *results.COSTS, *results.metrics_beside(stored)):
            self._check_seeds(cells)  # leaves out seeds whose history is damaged
            stored = {cell.id: self.shown_results(cell) for cell in cells}
        rows = results.table(cells, stored, metric, self.history)
        last = [row["seed"] in own and row["cell"] not in before for row in rows]
        return rows if all(last) else [{**row, "last_run": is_last} for row, is_last in zip(rows, last, strict=True)]

    def frame(self, metric: str = results.TEST) -> pd.DataFrame:
        """The result table as a data frame."""
        import pandas as pd

        rows = self.rows(metric)
        names = [*results.varied_names(self.cells()), *results.METRICS, metric, *results.COSTS]
        columns = list(rows[0]) if rows else dict.fromkeys([*COLUMNS, *names])
        return pd.DataFrame(rows, columns=pd.Index(list(columns)))

    def write_csv(self) -> Path:
        """Writes results.csv."""
        path = self.folder / "results.csv"
        write_text(path, self.frame().to_csv(index=False))
        return path

    def summaries(self, rule: str = "final", metric: str = results.TEST) -> list[results.Row]:
        """One row per cell: mean, std, sem, n, min and max of a metric over seeds; see `results.summarise`."""
        return results.summarise(self.rows(metric), self.cells(), self.study().seed_list(), rule, metric)

    def summary(self, rule: str = "final", metric: str = results.TEST) -> pd.DataFrame:
        """`summaries` as a data frame."""
        return results.summary(self.rows(metric), self.cells(), self.study().seed_list(), rule, metric)

    def status(self) -> dict[str, Any]:
        """Counts cells by status, and seeds that have a result."""
        wanted, cells = set(self.study().seed_list()), self.cells()
        states = [row["status"] for row in self.summaries()]
        return {
            "cells": len(cells),
            **{str(status): states.count(str(status)) for status in Status},
            "seeds": sum(len(wanted.intersection(self.seeds(cell))) for cell in cells),
            "seeds_wanted": len(cells) * len(wanted),
        }

    def earlier_note(self) -> str:
        """Names the cells and seeds of earlier runs; empty where there are none."""
        cells, own = len(self.earlier_ids()), self.study().seed_list()
        others = sorted({seed for cell in self.cells() for seed in self.shown_results(cell)}.difference(own))
        parts = [*([counted(cells, "cell")] if cells else []), *([listed("seed", others)] if others else [])]
        return f"{' and '.join(parts)} of earlier runs, not in the last one" if parts else ""


def as_yaml(node: Mapping[str, Any]) -> str:
    """A configuration as YAML, in its order; tuples become lists."""
    return yaml.safe_dump(_plain(node), sort_keys=False)


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _plain(value) for key, value in node.items()}
    return [_plain(value) for value in node] if isinstance(node, list | tuple) else node
