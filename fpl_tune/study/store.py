"""A study's folder: the study, its cells and their results. Only the driver writes it, each file atomically.

Layout of `<root>/<study>/`: study.yaml (the resolved study), cells.json (the cells that it asks for), and per cell
cells/<id>/cell.json (its configuration), cells/<id>/marks.json (rungs that it has passed), and cells/<id>/seed=<n>/
with metrics.jsonl, prompts.safetensors and result.json (the results of a seed). Each file names its owner,
metrics.jsonl by its digest in result.json: a file of another cell, seed or study counts as damaged. The state of a cell
follows from these files; see `study.standing`.

Reading needs neither PyTorch nor Hydra, and no write permission.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fpl_tune.core.errors import ConfigError, did_you_mean, unknown
from fpl_tune.core.files import TEMPORARY, digest, remove, write_text
from fpl_tune.core.redact import redact
from fpl_tune.core.yaml_files import write_mapping
from fpl_tune.study import schema
from fpl_tune.study.cells import Cell, changed_parts
from fpl_tune.study.design import Design
from fpl_tune.study.lock import owner
from fpl_tune.study.results import COSTS, Run
from fpl_tune.study.schema import SCHEMA, CellFile, CellsFile, DamagedFile, Effective, Place, StudyFile
from fpl_tune.study.standing import Row
from fpl_tune.study.table import StudyTable

if TYPE_CHECKING:
    from fpl_tune.config import Study
    from fpl_tune.simulation.simulation import Record

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Store:
    """A study's store.

    A damaged file costs its cell or seed, never the study: it is left out, named once in a warning, listed in `damage`,
    and written again when the study runs again. A damaged study.yaml raises `DamagedFile`.

    Args:
        root: the output folder.
        name: the study's name.

    Raises:
        ConfigError: the name has slashes or points out of the output folder.
    """

    def __init__(self, root: Path, name: str) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise ConfigError(f"Invalid study name {name!r}: name it without slashes.")
        self.root, self.name = root, name
        self.folder = root / name
        self.damage: dict[Path, DamagedFile] = {}
        """Damaged files that were found so far."""
        self._cells: dict[str, tuple[Cell, dict[str, Any]]] = {}
        """Cells that this object has written, with the fingerprints of their runs."""
        self._places: dict[str, tuple[Place, str]] = {}
        """Entries of cells.json that this object has written, also as JSON."""
        self._made: dict[str, tuple[tuple[Any, ...], CellFile, Cell]] = {}
        """Cells that were made of an entry of cells.json and a file, with both: a study may have thousands."""
        self._read: dict[Path, tuple[object, Any]] = {}
        """Contents of files, each with its stamp when it was read: another process may write it again."""
        self._lost: set[Path] = set()
        """Folders of seeds that have a damaged file."""
        self._warned: set[Path] = set()
        """Damaged files that a warning has named, including those that were replaced since."""

    @classmethod
    def open(cls, root: Path, name: str) -> Store:
        """Opens an existing study.

        Raises:
            ConfigError: no study has that name, or another release wrote it.
        """
        store = cls(root, name)
        if not store.exists:
            names = sorted(path.parent.name for path in root.glob("*/study.yaml"))
            if not names:
                raise ConfigError(
                    f"There are no results in {root} yet. Run a study first, or point FPL_TUNE_OUTPUT to other results."
                )
            raise unknown("study with results", name, names)
        store.node()
        return store

    # -- the study -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """True if the study was ever started."""
        return (self.folder / "study.yaml").exists()

    def begin(
        self,
        spec: Study,
        cells: Sequence[Cell],
        prints: Mapping[str, dict[str, Any]] | None = None,
        effective: Effective | None = None,
    ) -> None:
        """Writes the resolved study and the cells that it asks for. Others stay on disk.

        Passwords and tokens in addresses are not written. Damaged files are replaced, and seeds that
        have such a file run again. The caller holds the lock.

        Args:
            spec: the study.
            cells: its cells.
            prints: fingerprints of their runs today, by the cell's id. Results with others are out of date.
            effective: the resolved values of fields of the study.

        Raises:
            ConfigError: the store has another layout.
        """
        if self.exists:
            self._unless_damaged(self.node)
        for path in [*self.folder.rglob(TEMPORARY)]:  # of a killed process; a reader that is writing writes again
            remove(path)
        for folder in self._lost:  # so that readers find no result there, even if the cell does not run again
            (folder / "result.json").unlink(missing_ok=True)
        node = dict(spec.node)
        for group in ("tracking", "execution"):
            node[group] = {k: redact(v) if isinstance(v, str) else v for k, v in node[group].items()}
        (_, exhausted), resolved = self.ended(), (effective or Effective()).model_dump()
        text = as_yaml({**node, "effective": resolved, "schema": SCHEMA})
        self._write_cells(cells, prints or {})
        if not self.exists or (self.folder / "study.yaml").read_bytes() != text.encode():
            (self.folder / "cells.json").unlink(missing_ok=True)  # cells of one study are never those of another
            write_text(self.folder / "study.yaml", text)
        self._write_order(sorted(cells, key=lambda cell: cell.number), exhausted=exhausted)
        for path in (path for path in self.damage if path.name == "marks.json"):  # cells that are done write none
            path.unlink(missing_ok=True)
        self.damage.clear()

    def end(self, *, complete: bool, exhausted: Collection[str]) -> None:
        """Stores how a run has ended, and writes the tables of results; see `schema.CellsFile`."""
        self._write_order(self.cells(), complete=complete, exhausted=exhausted)
        self._write_tables()

    def refresh_tables(self) -> None:
        """Writes results.csv and rules.csv again if a result, or what the study asks for, is newer, as after a kill.

        A study that is running, or a folder that cannot be written, is left as it is.
        """
        tables = [self.folder / name for name in ("results.csv", "rules.csv")]
        with suppress(OSError):
            written = min((path.stat().st_mtime_ns for path in tables if path.is_file()), default=0)
            read = (
                path for pattern in ("cells.json", "cells/*/seed=*/result.json") for path in self.folder.glob(pattern)
            )
            stale = any(path.stat().st_mtime_ns > written for path in read)
            if owner(self.folder) is None and (stale or not all(path.is_file() for path in tables)):
                self._write_tables()

    def _write_tables(self) -> None:
        """Writes results.csv, a row per cell and seed, and rules.csv, a row per cell, seed and reporting rule."""
        table = self.table()
        write_text(self.folder / "results.csv", table.frame().to_csv(index=False))
        write_text(self.folder / "rules.csv", table.frame(every_rule=True).to_csv(index=False))

    def ended(self) -> tuple[bool, list[str]]:
        """Returns whether the last run left nothing to run, and its exhausted searches; see `schema.CellsFile`.

        After a damaged cells.json, a start finds out again.
        """
        order = self._unless_damaged(self._order) or CellsFile()
        return order.complete, order.exhausted

    def spec(self) -> Study:
        """The typed study, which needs PyTorch to be composed. `study` has the fields that tables need.

        Raises:
            ConfigError: its file is damaged, or has a field or value that this release rejects.
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
        self.node()
        path = self.folder / "study.yaml"
        return schema.read_design(path, path.stat().st_mtime_ns)[0]

    def stated(self) -> list[bytes]:
        """The contents of study.yaml and cells.json. Each start writes cells.json, so that its time says nothing."""
        paths = (self.folder / name for name in ("study.yaml", "cells.json"))
        return [path.read_bytes() for path in paths if path.exists()]

    def node(self) -> dict[str, Any]:
        """The resolved study as a plain dict; copy it before changing it.

        Raises:
            ConfigError: its file is damaged, or has another layout.
        """
        path = self.folder / "study.yaml"
        node, _ = schema.read_study(path, path.stat().st_mtime_ns)  # another process may run the study again
        try:
            listed = self._order().study
        except DamagedFile:  # whoever needs the cells says so
            return node
        if listed not in ("", node.get("name")):
            raise DamagedFile(path, f"it belongs to study {node.get('name')!r}, but cells.json to {listed!r}")
        return node

    def effective(self) -> Effective:
        """The resolved values of fields in the last run of the study.

        Raises:
            ConfigError: its file is damaged, or has another layout.
        """
        path = self.folder / "study.yaml"
        return schema.read_study(path, path.stat().st_mtime_ns)[1]

    def design(self) -> Design:
        """The study's design; see `standing.Design`.

        Raises:
            ConfigError: its file is damaged, or has another layout.
        """
        path = self.folder / "study.yaml"
        return schema.read_design(path, path.stat().st_mtime_ns)[1]

    # -- cells -----------------------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """The cells that the study asks for in their order, without those with a damaged file.

        Raises:
            DamagedFile: cells.json, which a start writes again.
        """
        return self._readable(self._order().cells)

    def ids(self) -> list[str]:
        """Ids of the cells on disk, whether they are asked for or not."""
        names = (path.parent.name for path in self.folder.glob("cells/*/cell.json"))
        return sorted(name for name in names if re.fullmatch(schema.CELL_ID, name))

    def files(self) -> list[CellFile]:
        """The configurations on disk, whether they are asked for or not, except those with a damaged file."""
        files = (self._unless_damaged(lambda key=key: self._file(key)) for key in self.ids())
        return [file for file in files if file is not None]

    def cell(self, key: str) -> Cell:
        """A cell by its id, its label, or its number: in a study that searches that of a trial, as tables count.

        The name of a search, such as "promptfl, alpha=0.5", is its tuned cell.

        Raises:
            ConfigError: there is no such cell, several searches have a trial of that number, or its file is damaged.
        """
        cells = self.cells()
        trials = [cell for cell in cells if cell.role == "trial"]
        tuned = [cell for cell in cells if cell.role == "tuned"]
        named = [cell for cell in cells if key in (cell.id, cell.label)]
        named = named or [cell for cell in tuned if cell.label.startswith(f"{key} (")]
        found = named or [cell for cell in trials or cells if str(cell.trial_number) == key]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(f"{cell.id} ({cell.label})" for cell in found)
            raise ConfigError(f"{self.name} has several cells {key!r}. Name one by its id: {ids}.")
        labels = dict.fromkeys(cell.label for cell in [*tuned, *cells])
        alike = [each for each in labels if key in each]
        hint = did_you_mean(key, labels, alike, listing=f"fpl-tune show {self.name}")
        raise ConfigError(f"There is no cell {key!r} in {self.name}: cells have an id, a number and a label. {hint}")

    def add(self, cell: Cell, prints: dict[str, Any]) -> None:
        """Adds a cell of a search, such as a trial that it has suggested, with the fingerprints of its run.

        One of the same id, which has become something else too, is replaced.
        """
        self._write_cells([cell], {cell.id: prints})
        others = [other for other in self.cells() if other.id != cell.id]
        self._write_order(sorted([*others, cell], key=lambda each: each.number), exhausted=self._order().exhausted)

    def remove(self, cell: Cell) -> None:
        """Takes a cell that is not asked for any more out of the study; its files stay."""
        others = [other for other in self.cells() if other.id != cell.id]
        self._write_order(others, exhausted=self._order().exhausted)

    def prints(self, cell: Cell) -> dict[str, Any]:
        """Fingerprints of a cell's run at the last start; empty if its file is missing or damaged."""
        if cell.id in self._cells:
            return self._cells[cell.id][1]
        file = self._unless_damaged(lambda: self._file(cell.id))
        return file.prints if file is not None else {}

    def _file(self, key: str) -> CellFile:
        """The content of cell.json; read again if another process has written it."""
        path = self.folder / "cells" / key / "cell.json"
        return self._read_cached(path, schema.read_cell) or schema.read_cell(path)

    def _readable(self, places: Iterable[Place]) -> list[Cell]:
        cells = (self._unless_damaged(lambda place=place: self._cell(place)) for place in places)
        return [cell for cell in cells if cell is not None]

    def _cell(self, place: Place) -> Cell:
        """A cell by its entry of cells.json."""
        if place.id in self._cells:
            return self._cells[place.id][0]
        file, values = self._file(place.id), tuple(vars(place).values())
        made = self._made.get(place.id)
        if made is None or made[0] != values or made[1] is not file:
            made = self._made[place.id] = values, file, place.cell(file)
        return made[2]

    def _write_cells(self, cells: Iterable[Cell], prints: Mapping[str, dict[str, Any]]) -> None:
        for cell in cells:
            path, suggestion = self.folder / "cells" / cell.id / "cell.json", cell.suggestion
            if suggestion is None and path.exists():  # a trial that is a cell of a grid now
                file = self._unless_damaged(lambda key=cell.id: self._file(key))
                suggestion = file.suggestion if file is not None else None
            content = {"id": cell.id, "rounds": cell.rounds, "varied": cell.varied}
            content["suggestion"] = asdict(suggestion) if suggestion is not None else None
            content["prints"] = prints.get(cell.id, {})
            self._cells[cell.id] = cell, content["prints"]
            self._places.pop(cell.id, None)  # it may be something else by now
            _write(path, {**content, "run": cell.node})

    def _order(self) -> CellsFile:
        """The content of cells.json; empty if it is missing: a start was killed before it wrote the file."""
        path = self.folder / "cells.json"
        order = self._read_cached(path, lambda path: schema.read(path, CellsFile)) or CellsFile()
        if order.cells and not any((self.folder / "cells" / place.id).exists() for place in order.cells):
            raise DamagedFile(path, "none of its cells is in this study's folder")
        return order

    def _write_order(self, cells: Sequence[Cell], *, exhausted: Collection[str], complete: bool = False) -> None:
        """Writes cells.json, with a line for each cell: it is written for each trial, of which there may be many."""
        head = {"study": self.name, "complete": complete, "exhausted": sorted(exhausted)}
        for cell in cells:
            if cell.id not in self._places:
                self._places[cell.id] = (place := Place.of(cell)), place.model_dump_json()
        places, texts = zip(*(self._places[cell.id] for cell in cells), strict=True) if cells else ((), ())
        path, listed = self.folder / "cells.json", ",\n  ".join(texts)
        _write_changed(path, f'{json.dumps(head)[:-1]}, "cells": [\n  {listed}\n]}}')
        self._read[path] = _stamp(path), CellsFile.model_construct(**head, cells=[*places])

    # -- results ---------------------------------------------------------------------------------------------

    def row(self, cell: Cell) -> Row:
        """A cell with its stored runs, as the last start left it."""
        return self.row_under(self.design(), cell, self.prints(cell), complete=self._order().complete)

    def row_under(self, design: Design, cell: Cell, prints: Mapping[str, Any], *, complete: bool = False) -> Row:
        """A cell with its stored runs of one version of its method and data.

        Args:
            design: what the study asks of it.
            cell: the cell.
            prints: fingerprints of the cell's run, of that version.
            complete: see `Row.complete`.
        """
        stale, runs = dict[str, None](), dict[int, Run]()
        for seed, run in self.runs(cell).items():
            if reasons := changed_parts(run.fingerprints, prints):
                stale |= dict.fromkeys(reasons)
            else:
                runs[seed] = run
        noted = self._marks(cell)
        if noted is not None and (reasons := changed_parts(noted.prints, prints)):
            stale, noted = stale | dict.fromkeys(reasons if noted.rejected else ()), None
        if noted is None:
            return Row(cell, design, runs, stale=tuple(stale), complete=complete)
        marks = frozenset(noted.passed), tuple(noted.together), tuple(stale), noted.rejected
        return Row(cell, design, runs, *marks, complete)

    def _marks(self, cell: Cell | CellFile) -> schema.MarksFile | None:
        """The content of a cell's marks.json."""
        path = self.folder / "cells" / cell.id / "marks.json"
        return self._unless_damaged(lambda: self._read_cached(path, schema.read_marks))

    def put_marks(self, row: Row, prints: Mapping[str, Any]) -> None:
        """Stores the rungs that a cell has passed, the seeds that were started together, and whether it is rejected."""
        marks = {"cell": row.cell.id, "prints": dict(prints), "passed": sorted(row.passed),
                 "together": [*row.together], "rejected": row.rejected}  # fmt: skip
        _write(self.folder / "cells" / row.cell.id / "marks.json", marks)

    def table(self) -> StudyTable:
        """A snapshot of the study's results. Figures that are shown together are computed from one snapshot."""
        order, design = self._order(), self.design()
        cells = self._readable(order.cells)
        rows = {c.id: self.row_under(design, c, self.prints(c), complete=order.complete) for c in cells}
        return StudyTable(self.study(), design, rows, folder=self.folder, effective=self.effective())

    def seed_folder(self, cell: Cell | CellFile, seed: int) -> Path:
        """The folder of one seed."""
        return self.folder / "cells" / cell.id / f"seed={seed}"

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds that have a result: of the study's present seeds, and of the version of method and data at the last
        start."""
        return list(self.row(cell).results)

    def runs(self, cell: Cell | CellFile) -> dict[int, Run]:
        """The stored runs of a cell by seed, of any version of method and data."""
        names = (path.name for path in (self.folder / "cells" / cell.id).glob("seed=*"))
        numbers = sorted(int(match[1]) for name in names if (match := schema.SEED_FOLDER.fullmatch(name)))
        return {seed: run for seed in numbers if (run := self.result(cell, seed)) is not None}

    def result(self, cell: Cell | CellFile, seed: int) -> Run | None:
        """The stored result of a seed; None if there is none, or a file of the seed is damaged."""
        stored = self._result(cell, seed)
        return None if stored is None else stored[0]

    def _result(self, cell: Cell | CellFile, seed: int) -> tuple[Run, str] | None:
        """The stored result of a seed, and the digest of its history."""

        def read(path: Path) -> tuple[Run, str]:
            file = schema.read_result(path)
            costs: dict[str, float] = dict(zip(COSTS, (file.up, file.down, file.seconds), strict=True))
            run = Run(file.status, file.rounds, partial(self.records, cell, seed), file.error, file.rules, costs,
                      file.split_hash, file.finished, file.fingerprints)  # fmt: skip
            return run, file.history

        folder = self.seed_folder(cell, seed)
        if folder in self._lost:
            return None
        return self._unless_damaged(lambda: self._read_cached(folder / "result.json", read))

    def _read_cached(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """The content of a file, which is read again if it has changed; None if there is no file."""
        try:
            stamp = _stamp(path)
        except NotADirectoryError:
            return read(path)  # raises an error that names the problem
        except OSError:
            return None
        cached = self._read.get(path)
        if cached is None or cached[0] != stamp:
            cached = self._read[path] = stamp, read(path)
        return cached[1]

    def history(self, cell: Cell, seed: int) -> list[Record]:
        """Records by round; empty if there is no result (see `seeds`), or the file is damaged."""
        return self.records(cell, seed) if seed in self.seeds(cell) else []

    def records(self, cell: Cell | CellFile, seed: int) -> list[Record]:
        """Records by round, of any version of method and data; empty if there are none, or the file is damaged."""
        stored = self._result(cell, seed)
        if stored is None:
            return []
        (run, noted), path = stored, self.seed_folder(cell, seed) / "metrics.jsonl"
        return self._unless_damaged(lambda: schema.read_history(path, run.rounds, noted)) or []

    def put(self, cell: Cell, seed: int, run: Run, prompts: Path | None = None) -> None:
        """Stores one seed.

        Args:
            cell, seed: the cell and the seed.
            run: its result, with its history.
            prompts: a file of the learned tensors, which is moved; None: there are none, nor any of a former run.
        """
        folder = self.seed_folder(cell, seed)
        text = "".join(json.dumps(record) + "\n" for record in run.records())
        (folder / "result.json").unlink(missing_ok=True)  # so that a kill leaves no result with another history
        write_text(folder / "metrics.jsonl", text)
        learned = folder / "prompts.safetensors"
        if prompts:
            os.replace(prompts, learned)
        else:
            learned.unlink(missing_ok=True)
        owner = {"cell": cell.id, "seed": seed, "history": digest(text, schema.DIGEST)}
        stored = {"fingerprints": run.fingerprints, **run.as_dict(), **owner}
        write_text(folder / "result.json", json.dumps(stored, indent=1))
        self._lost.discard(folder)

    def forget(self, cell: Cell, seed: int) -> None:
        """Removes the results of a seed."""
        folder = self.seed_folder(cell, seed)
        (folder / "result.json").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    # -- damage ----------------------------------------------------------------------------------------------

    def check(self) -> list[DamagedFile]:
        """Reads every file of the store, and returns the damaged ones. Seeds with a damaged file lose their result."""
        self._unless_damaged(self._order)
        for cell in self.files():
            self._marks(cell)
            for seed in self.runs(cell):
                before, prompts = len(self.damage), self.seed_folder(cell, seed) / "prompts.safetensors"
                self.records(cell, seed)
                self._unless_damaged(lambda path=prompts: schema.check_prompts(path))
                if len(self.damage) > before:
                    self._lost.add(self.seed_folder(cell, seed))
        return list(self.damage.values())

    def _unless_damaged(self, read: Callable[[], T]) -> T | None:
        """Returns the result of `read`; on a damaged file it warns and returns None."""
        try:
            return read()
        except DamagedFile as problem:
            self._warn(problem)
            return None

    def _warn(self, problem: DamagedFile) -> None:
        """Records a damaged file, and warns of it only once, even if it is read again before it is replaced."""
        self.damage.setdefault(problem.path, problem)
        if problem.path not in self._warned:
            self._warned.add(problem.path)
            _log.warning("%s", problem)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes whenever a file is written."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _write(path: Path, content: Any) -> None:
    """Writes a JSON file if its content changes."""
    _write_changed(path, json.dumps(content, indent=1))


def _write_changed(path: Path, text: str) -> None:
    """Writes a text file if its content changes."""
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def as_yaml(node: Mapping[str, Any]) -> str:
    """A configuration as YAML, with its order of fields; tuples become lists."""
    return write_mapping(json.loads(json.dumps(node)))
