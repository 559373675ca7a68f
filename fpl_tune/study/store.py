"""A study's folder with its results. The driver alone writes it, each file atomically.

Layout of `<root>/<study>/`: study.yaml (the resolved study), cells.json (its cells in order), and per cell
cells/<id>/cell.json and cells/<id>/seed=<n>/ with metrics.jsonl, prompts.safetensors and result.json.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fpl_tune.config import StudySpec
from fpl_tune.errors import ConfigError
from fpl_tune.files import atomic_write, save_tensors, write_text
from fpl_tune.redact import redact
from fpl_tune.study import earlier, results, schema
from fpl_tune.study.cells import Cell
from fpl_tune.study.folder import Folder, plain
from fpl_tune.study.migrate import convert, convert_cells
from fpl_tune.study.schema import SCHEMA, DamagedFile
from fpl_tune.study.status import Status
from fpl_tune.trial import Record

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor


class Store(Folder):
    """A study's store: its folder with the results."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root, name)
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

    def begin(self, node: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        """Writes the resolved study and its cells, after which come the cells of earlier runs; see `earlier`.

        Passwords and tokens in addresses are not written. Damaged files are set aside. The caller holds the lock.

        Raises:
            ConfigError: a later release wrote the store.
        """
        if self.exists:
            try:
                self.node()
            except DamagedFile as problem:
                self._set_aside(problem)
                convert_cells(self.folder)
            else:
                convert(self.folder, locked=True)
        node = {"schema": SCHEMA, **plain(node)}
        for part in ("tracking", "execution"):
            node[part] = {k: redact(v) if isinstance(v, str) else v for k, v in node[part].items()}
        write_text(self.folder / "study.yaml", yaml.safe_dump(node, sort_keys=False))
        for cell in cells:
            self._write_cell(cell)
        self._order()  # names the file if it is damaged
        kept = earlier.find(self, cells)
        earlier.mark(self, kept)
        self._index([cell.id for cell in [*cells, *kept]])
        for cell in cells:
            self._set_aside_seeds(cell)

    # -- results ---------------------------------------------------------------------------------------------

    def place(self, cell: Cell, seed: int) -> Path:
        """The folder of one seed."""
        return self.folder / "cells" / cell.id / f"seed={seed}"

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds that have a result."""
        names = (path.parent.name for path in (self.folder / "cells" / cell.id).glob("seed=*/result.json"))
        numbers = sorted(int(found[1]) for name in names if (found := schema.SEED_FOLDER.fullmatch(name)))
        return [seed for seed in numbers if self.result(cell, seed) is not None]

    def missing(self, cell: Cell, spec: StudySpec) -> list[int]:
        """Lists the seeds that a cell still has to run; without a race, those that one eliminated are among them."""
        again = {Status.FAILED} if spec.prune.seeds is not None else {Status.FAILED, Status.ELIMINATED}
        found = ((seed, self.result(cell, seed)) for seed in spec.seed_list())
        return [seed for seed, result in found if result is None or result["status"] in again]

    def checkpointed(self, cell: Cell) -> int:
        """The round of a cell's newest checkpoint; 0 if it has none. Finished seeds have no checkpoint."""
        found = (self.folder / "cells" / cell.id).glob("ckpt-*/round-*.safetensors")
        return max((int(path.stem.removeprefix("round-")) for path in found), default=0)

    def result(self, cell: Cell, seed: int) -> dict[str, Any] | None:
        """The stored result of a seed; None if there is none, or it is damaged."""
        key, path = (cell.id, seed), self.place(cell, seed) / "result.json"
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
        result = self._results.get((cell.id, seed), {})
        rounds = result.get("rounds") if result.get("metrics_bytes") is None else None
        return schema.read_history(self.place(cell, seed) / "metrics.jsonl", rounds)

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
        place = self.place(cell, seed)
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
        place = self.place(cell, seed)
        (place / "result.json").unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def sweep(self) -> None:
        """Removes the temporary files of a killed process."""
        for path in self.folder.rglob("*.part"):
            path.unlink(missing_ok=True)

    # -- damage ----------------------------------------------------------------------------------------------

    def check(self) -> list[DamagedFile]:
        """Reads every file of the store and lists the damaged ones. Seeds with a damaged history lose their result."""
        for cell in (*self.cells(), *self.left()):
            for seed in self.seeds(cell):
                if self._unless_damaged(lambda cell=cell, seed=seed: self.history(cell, seed)) is None:
                    self._results.pop((cell.id, seed))
                self._check(self.place(cell, seed) / "prompts.safetensors", schema.check_prompts)
        self._check(self.folder / "study.db", schema.check_database)
        return list(self.damage.values())

    def _check(self, path: Path, check: Callable[[Path], None]) -> None:
        """Reports a file without figures if it exists and is damaged."""
        if path.is_file():
            self._unless_damaged(lambda: check(path))

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
        return sorted([*inside, *(path for path in beside if path.suffix != ".former")])

    def _set_aside_seeds(self, cell: Cell) -> None:
        self.seeds(cell)
        inside = self.folder / "cells" / cell.id
        for problem in [problem for path, problem in self.damage.items() if inside in path.parents]:
            self._set_aside(problem)

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
