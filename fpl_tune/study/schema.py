"""The schema of the files in a study's folder, and the only functions that read them.

A file that is truncated, empty, edited or of another kind raises `DamagedFile`, which names the file, what is wrong
and the remedy. `Store` turns it into a warning where other cells stay readable.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.study.cells import Role
from fpl_tune.study.status import Status

SCHEMA = 2
"""Version of the files in a study's folder; files without a number are of schema 1."""

CELL_ID = "[0-9a-f]{8,64}"
SEED_FOLDER = re.compile(r"seed=(\d{1,19})")
REMEDY = "Repair it with `fpl-tune doctor --fix`, or run the study: it sets the file aside and runs what is missing."

_DATABASE = (
    "Set it aside with `fpl-tune doctor --fix`, and run the study: the search begins anew, and trials that it suggests "
    "again have their results."
)


class DamagedFile(ConfigError):
    """A file of a study that cannot be read.

    Args:
        path: the file.
        why: what is wrong with it, without a full stop.
        remedy: what the user can do.
    """

    def __init__(self, path: Path, why: str, remedy: str = REMEDY) -> None:
        super().__init__(f"{path} is damaged: {why}. {remedy}")
        self.path, self.why = path, why


class CellFile(BaseModel):
    """cell.json: a cell, and what its results depend on."""

    id: str = Field(pattern=f"^{CELL_ID}$")
    number: int = Field(ge=0)
    label: str
    role: Role
    varied: dict[str, Any]
    run: dict[str, Any]
    fingerprints: dict[str, Any] = {}
    former: str | None = None
    """The cell's id in schema 1, where it was another."""

    def text(self) -> str:
        """The file's content."""
        node = self.model_dump(exclude={"former"} if self.former is None else None)
        return json.dumps({"schema": SCHEMA, **node}, indent=1)


class ResultFile(BaseModel):
    """result.json: how a seed ended. Written last, so that a seed is finished exactly if it is there."""

    status: Annotated[Status, BeforeValidator(Status)]
    error: str | None = None
    rounds: int = Field(ge=0)
    rules: dict[str, dict[str, float | None]]
    up: float = Field(alias="comm/up_bytes")
    down: float = Field(alias="comm/down_bytes")
    seconds: float = Field(alias="time/seconds")
    split_hash: str
    finished: datetime
    metrics_bytes: int | None = None
    """Size of metrics.jsonl; schema 1 has none."""


class _Record(BaseModel):
    """One line of metrics.jsonl."""

    seed: int
    round: int = Field(ge=1)


class _Tracking(BaseModel):
    id: str = Field(min_length=1)


_IDS = TypeAdapter(list[Annotated[str, Field(pattern=f"^{CELL_ID}$")]])

_SCALE = 20  # times the size of a study file: a stored study has all fields, and interpolations are replaced
_PARTS = ("clip", "data", "partition", "optim", "protocol", "method")
_STUDY = "Run the study again by the name of its YAML file: it sets this file aside, and finished cells are kept."


@contextmanager
def _reading(path: Path, what: str = "JSON", place: str = "", remedy: str = REMEDY) -> Iterator[None]:
    """Reports a file that cannot be read as damaged: `place` of it is not `what`, or not what pydantic expects."""
    try:
        yield
    except ValidationError as problem:
        found = problem.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, found["loc"]))
        raise DamagedFile(path, ": ".join(filter(None, [place, field, found["msg"]])), remedy) from None
    except (ValueError, RecursionError, SafetensorError, OSError) as problem:
        raise DamagedFile(path, f"{place or 'it'} is not {what} ({_line(problem)})", remedy) from None


def read_study(path: Path) -> dict[str, Any]:
    """Reads study.yaml: the resolved study as a plain dict.

    Raises:
        DamagedFile: it is not a mapping in plain YAML, or does not name its study's parts.
        ConfigError: a later release wrote it.
    """
    try:
        node = config.read_mapping(path, "A stored study", _SCALE)
    except ConfigError as problem:
        raise DamagedFile(path, str(problem).rstrip("."), _STUDY) from None
    _take_schema(node, path)
    lacking = [name for name in _PARTS if not isinstance(node.get(name), Mapping)]
    if lacking:
        raise DamagedFile(path, f"it lacks {', '.join(lacking)}", _STUDY)
    return node


def read_cell(path: Path) -> CellFile:
    """Reads cell.json; its folder is named by the cell's id.

    Raises:
        DamagedFile: it does not hold a cell, or that of another folder.
        ConfigError: a later release wrote it.
    """
    with _reading(path):
        node = json.loads(path.read_bytes())
        _take_schema(node, path)
        found = CellFile.model_validate(node)
    if path.parent.name not in (found.id, found.former):
        raise DamagedFile(path, f"its folder is named {path.parent.name}, but it holds cell {found.id}")
    return found


def read_order(path: Path) -> list[str]:
    """Reads cells.json: the ids of the study's cells in order; empty if there is no file."""
    with _reading(path):
        return _IDS.validate_json(path.read_bytes()) if path.is_file() else []


def read_result(path: Path) -> dict[str, Any]:
    """Reads result.json, and checks that metrics.jsonl beside it has the size that it should."""
    with _reading(path):
        node = json.loads(path.read_bytes())
        found = ResultFile.model_validate(node)
    metrics = path.with_name("metrics.jsonl")
    if not metrics.is_file():
        raise DamagedFile(metrics, "it is not there")
    if found.metrics_bytes not in (None, size := metrics.stat().st_size):
        raise DamagedFile(metrics, f"it has {size} bytes, but {found.metrics_bytes} were written")
    if found.status == Status.DONE and "final" not in found.rules:
        raise DamagedFile(path, "rules: final is missing")
    return {**node, "status": found.status}


def read_history(path: Path) -> list[dict[str, Any]]:
    """Reads metrics.jsonl: one record per round; empty if there is no file."""
    history: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), 1):
        with _reading(path, place=f"line {number}"):
            history.append(json.loads(line))
            _Record.model_validate(history[-1])
    return history


def read_tracking(path: Path) -> str:
    """Reads tracking.json: the id of the store on a tracking server."""
    remedy = "Restore it from a copy. Without it, the study's runs on the tracking server cannot be found."
    with _reading(path, remedy=remedy):
        return _Tracking.model_validate_json(path.read_bytes()).id


def read_prompts(path: Path) -> dict[str, Tensor]:
    """Reads prompts.safetensors: the learned parameters of a seed by name."""
    check_prompts(path)
    return load_file(path)


def check_prompts(path: Path) -> None:
    """Reads the header of prompts.safetensors, which gives the size that the file should have."""
    with _reading(path, "a whole safetensors file"), safe_open(path, framework="pt"):
        pass


def check_database(path: Path) -> None:
    """Checks study.db, the Optuna database of a search, by SQLite's own check. An empty one is not damaged."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ((found,),) = database.execute("PRAGMA quick_check(1)")
    except sqlite3.OperationalError:  # locked, or in a folder that cannot be written: not a finding about the file
        return
    except sqlite3.DatabaseError as problem:
        found = problem
    if found != "ok":
        raise DamagedFile(path, f"SQLite cannot read it ({_line(found)})", _DATABASE)


def _take_schema(node: Any, path: Path) -> None:
    """Removes the number of the schema from a file's content.

    Raises:
        ConfigError: a later release wrote it.
    """
    written = node.pop("schema", 1) if isinstance(node, dict) else 1
    if type(written) is not int or written < 1:
        raise DamagedFile(path, f"its schema is {written!r}")
    if written > SCHEMA:
        raise ConfigError(
            f"A study is read by the release that wrote it or a later one, but {path.parent.name}/{path.name} has "
            f"schema {written}, and this fpl-tune knows {SCHEMA}. Install a newer fpl-tune, or name another study."
        )


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:200]
