"""The study's truth on disk: configurations, histories, results. Written by the driver alone, every file at once.

A folder `<root>/<study>/`; `result.json` is written last, so that a seed is finished exactly if it is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fpl_tune import config
from fpl_tune.config import StudySpec
from fpl_tune.errors import ConfigError
from fpl_tune.files import atomic_write, save_tensors
from fpl_tune.redact import redact
from fpl_tune.study import results
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import FINAL, Status
from fpl_tune.trial import Record

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

SCHEMA = 1
"""Of the files in a study's folder; files without a number are of schema 1 too."""


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text)


class Store:
    """One study's folder.

    Args:
        root: the output folder.
        name: the study's name, which cannot lead out of it.
    """

    def __init__(self, root: Path, name: str) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise ConfigError(f"A study lies in a folder of its own in {root}, but is named {name!r}.")
        self.root, self.name = root, name
        self.folder = root / name
        self._results: dict[tuple[str, int], dict[str, Any]] = {}
        self._cells: dict[str, Cell] = {}

    @classmethod
    def open(cls, root: Path, name: str) -> Store:
        """A study that exists.

        Raises:
            ConfigError: there is none of that name.
        """
        store = cls(root, name)
        if not (store.folder / "study.yaml").is_file():
            known = sorted(p.parent.name for p in root.glob("*/study.yaml"))
            raise ConfigError(
                f"There is no study {name!r} in {root}. "
                + (f"Known: {', '.join(known)}." if known else f"Run `fpl-tune study {name}` first.")
            )
        return store

    # -- the study -------------------------------------------------------------------------------------------

    def begin(self, node: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        """Writes the resolved study and its cells; cells of earlier settings stay on disk, out of the tables.

        Passwords and tokens in addresses are not written.
        """
        if (self.folder / "study.yaml").is_file():
            self.node()  # nothing of a later release is written over
        node = {"schema": SCHEMA, **_plain(node)}
        for part in ("tracking", "execution"):
            node[part] = {k: redact(v) if isinstance(v, str) else v for k, v in node[part].items()}
        write(self.folder / "study.yaml", yaml.safe_dump(node, sort_keys=False))
        for cell in cells:
            self._write_cell(cell)
        self._index([cell.id for cell in cells])

    def add(self, cells: Sequence[Cell]) -> None:
        """Adds the cells that a search asked for."""
        for cell in cells:
            self._write_cell(cell)
        self._index([*self._order(), *(cell.id for cell in cells)])

    def spec(self) -> StudySpec:
        return config.to_study(self.node(), stored=True)

    def node(self) -> dict[str, Any]:
        """The resolved study as a plain dict."""
        path = self.folder / "study.yaml"
        try:
            return _readable(yaml.safe_load(path.read_text()), path)
        except yaml.YAMLError as problem:
            text = " ".join(str(problem).split())
            raise ConfigError(f"A stored study is plain YAML, but {path} is not: {text}") from None

    def cells(self) -> list[Cell]:
        """Cells of the study in its order."""
        return [self.cell(key) for key in self._order()]

    def left(self) -> list[Cell]:
        """Cells of earlier settings, which are in no table."""
        here = {path.parent.name for path in self.folder.glob("cells/*/cell.json")}
        return [self.cell(key) for key in sorted(here - set(self._order()))]

    def cell(self, key: str) -> Cell:
        """A cell by its id, its number, or its label.

        Raises:
            ConfigError: there is no such cell.
        """
        if key in self._cells:
            return self._cells[key]
        path = self.folder / "cells" / key / "cell.json"
        if not path.is_file():
            order = self._order()
            for known in order if key not in order else ():
                found = self.cell(known)
                if key in (str(found.number), found.label):
                    return found
            raise ConfigError(f"There is no cell {key!r} in {self.name}. Cells have an id, a number and a label.")
        node = _readable(json.loads(path.read_text()), path)
        if not re.fullmatch("[0-9a-f]{8,64}", str(node["id"])) or node["id"] != key:
            raise ConfigError(f"A cell's folder is named after its id, hex digits, but {path} says {node['id']!r}.")
        parts = (node[k] for k in ("id", "number", "label", "role", "varied"))
        self._cells[key] = Cell(*parts, run=config.to_run(node["run"], stored=True))
        return self._cells[key]

    def _write_cell(self, cell: Cell) -> None:
        self._cells[cell.id] = cell
        path = self.folder / "cells" / cell.id / "cell.json"
        node: dict[str, Any] = {"schema": SCHEMA}
        node |= {k: getattr(cell, k) for k in ("id", "number", "label", "role", "varied")}
        node["run"] = _plain(config.as_dict(cell.run))
        node["fingerprints"] = self.fingerprints(cell)
        text = json.dumps(node, indent=1)
        if not path.is_file() or path.read_text() != text:
            write(path, text)

    def fingerprints(self, cell: Cell) -> dict[str, Any]:
        """What the cell's results depend on, as it was when they were made; empty before."""
        path = self.folder / "cells" / cell.id / "cell.json"
        return json.loads(path.read_text()).get("fingerprints", {}) if path.is_file() else {}

    def stamp(self, cell: Cell, prints: Mapping[str, Any]) -> None:
        """Notes what the results that are about to be made depend on."""
        path = self.folder / "cells" / cell.id / "cell.json"
        node = json.loads(path.read_text())
        if node.get("fingerprints") != prints:
            write(path, json.dumps({**node, "fingerprints": dict(prints)}, indent=1))

    def _order(self) -> list[str]:
        path = self.folder / "cells.json"
        return json.loads(path.read_text()) if path.is_file() else []

    def _index(self, keys: Sequence[str]) -> None:
        write(self.folder / "cells.json", json.dumps(list(dict.fromkeys(keys)), indent=0))

    # -- results ---------------------------------------------------------------------------------------------

    def place(self, cell: Cell, seed: int) -> Path:
        return self.folder / "cells" / cell.id / f"seed={seed}"

    def finished(self, cell: Cell, seed: int) -> bool:
        found = self.result(cell, seed)
        return found is not None and found["status"] in FINAL

    def missing(self, cell: Cell, spec: StudySpec) -> list[int]:
        """Seeds of a study that a cell still has to run; those that a race left out too where there is none now."""
        found = ((seed, self.result(cell, seed)) for seed in spec.seed_list())
        racing = spec.prune.seeds is not None
        again = {Status.FAILED} if racing else {Status.FAILED, Status.ELIMINATED}
        return [s for s, r in found if r is None or r["status"] in again]

    def result(self, cell: Cell, seed: int) -> dict[str, Any] | None:
        key = (cell.id, seed)
        if key not in self._results:
            path = self.place(cell, seed) / "result.json"
            if not path.is_file():
                return None
            result = json.loads(path.read_text())
            self._results[key] = {**result, "status": Status(result["status"])}
        return self._results[key]

    def history(self, cell: Cell, seed: int) -> list[Record]:
        """Records by round; empty where nothing was stored."""
        path = self.place(cell, seed) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def put(
        self,
        cell: Cell,
        seed: int,
        history: Sequence[Record],
        result: Mapping[str, Any],
        prompts: Mapping[str, Tensor] | Path | None = None,
    ) -> None:
        """Stores one seed; `prompts` are tensors, or the file they lie in, which is moved."""
        place = self.place(cell, seed)
        write(place / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in history))
        if isinstance(prompts, Path):
            os.replace(prompts, place / "prompts.safetensors")
        elif prompts:
            with atomic_write(place / "prompts.safetensors") as temporary:
                save_tensors(prompts, temporary)
        write(place / "result.json", json.dumps(result, indent=1))
        self._results[cell.id, seed] = {**result, "status": Status(result["status"])}

    def forget(self, cell: Cell, seed: int) -> None:
        """Takes a seed's result away, so that it runs again."""
        self._results.pop((cell.id, seed), None)
        place = self.place(cell, seed)
        (place / "result.json").unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)

    def sweep(self) -> None:
        """Removes what a killed process left half-written."""
        for path in self.folder.rglob("*.part"):
            path.unlink(missing_ok=True)

    def seeds(self, cell: Cell) -> list[int]:
        """Seeds that have a result."""
        folder = self.folder / "cells" / cell.id
        found = (int(p.parent.name.partition("=")[2]) for p in folder.glob("seed=*/result.json"))
        return sorted(found)

    # -- tables ----------------------------------------------------------------------------------------------

    def frame(self, metric: str = results.TEST) -> pd.DataFrame:
        """The result table: one row per cell, seed and reporting rule; see `results.frame`."""
        return results.frame(self, metric)

    def write_csv(self) -> Path:
        """Writes results.csv."""
        path = self.folder / "results.csv"
        write(path, self.frame().to_csv(index=False))
        return path

    def summary(self, rule: str = "final", metric: str = results.TEST) -> pd.DataFrame:
        """One row per cell: mean, std, sem, n, min and max of a metric over seeds; see `results.summary`."""
        return results.summary(self.frame(metric), self.cells(), len(self.spec().seed_list()), rule, metric)


def _readable(node: dict[str, Any], path: Path) -> dict[str, Any]:
    """What a file holds, its schema's number taken off.

    Raises:
        ConfigError: a later release wrote it.
    """
    written = node.pop("schema", 1)
    if written > SCHEMA:
        raise ConfigError(
            f"A study is read by the release that wrote it or a later one, but {path.parent.name}/{path.name} has "
            f"schema {written}, and this fpl-tune knows {SCHEMA}. Install a newer fpl-tune, or name another study."
        )
    return node


def _plain(node: Any) -> Any:
    """Tuples as lists: what YAML and JSON can hold."""
    if isinstance(node, Mapping):
        return {key: _plain(value) for key, value in node.items()}
    return [_plain(value) for value in node] if isinstance(node, list | tuple) else node
