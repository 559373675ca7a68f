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
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fpl_tune import config
from fpl_tune.errors import ConfigError
from fpl_tune.spec import shown
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

T = TypeVar("T")


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

    model_config = ConfigDict(extra="ignore")

    id: str = Field(pattern=f"^{CELL_ID}$")
    number: int = Field(ge=0)
    label: str
    role: Literal["cell", "reference", "trial", "ablation"]
    varied: dict[str, Any]
    run: dict[str, Any]
    fingerprints: dict[str, Any] = {}
    former: str | None = None
    """The cell's id in schema 1, where it was another."""


class ResultFile(BaseModel):
    """result.json: how a seed ended. Written last, so that a seed is finished exactly if it is there."""

    model_config = ConfigDict(extra="allow")

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

    model_config = ConfigDict(extra="allow")

    seed: int
    round: int = Field(ge=1)


class _Tracking(BaseModel):
    id: str = Field(min_length=1)


_IDS = TypeAdapter(list[Annotated[str, Field(pattern=f"^{CELL_ID}$")]])


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
    node = _versioned(node, path)
    lacking = [name for name in _PARTS if not isinstance(node.get(name), Mapping)]
    if lacking:
        raise DamagedFile(path, f"it lacks {', '.join(lacking)}", _STUDY)
    return node


_SCALE = 20  # times the size of a study file: a stored study has all fields, and interpolations are replaced
_PARTS = ("clip", "data", "partition", "optim", "protocol", "method")
_STUDY = "Run the study again by the name of its YAML file: it sets this file aside, and finished cells are kept."


def schema_of(path: Path) -> int:
    """The schema of study.yaml, without a look at the rest; 1 where it cannot be read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        found = re.match(r"schema: (\d+)\s", file.readline(40))
    return int(found[1]) if found else 1


def read_cell(path: Path) -> CellFile:
    """Reads cell.json; its folder is named by the cell's id.

    Raises:
        DamagedFile: it does not hold a cell, or that of another folder.
        ConfigError: a later release wrote it.
    """
    found = _validated(CellFile, _versioned(_mapping(path), path), path)
    if path.parent.name not in (found.id, found.former):
        raise DamagedFile(path, f"its folder is named {path.parent.name}, but it holds cell {found.id}")
    return found


def read_order(path: Path) -> list[str]:
    """Reads cells.json: the ids of the study's cells in order; empty if there is no file."""
    if not path.is_file():
        return []
    try:
        return _IDS.validate_python(_json(path))
    except ValidationError as problem:
        raise DamagedFile(path, _first(problem)) from None


def read_result(path: Path) -> dict[str, Any]:
    """Reads result.json, and checks that metrics.jsonl beside it has the size that it should."""
    node = _mapping(path)
    found = _validated(ResultFile, node, path)
    metrics = path.with_name("metrics.jsonl")
    size = metrics.stat().st_size if metrics.is_file() else -1
    if size < 0:
        raise DamagedFile(metrics, "it is not there")
    if found.metrics_bytes is not None and size != found.metrics_bytes:
        raise DamagedFile(metrics, f"it has {size} bytes, but {found.metrics_bytes} were written")
    if found.metrics_bytes is None and (size == 0) != (found.rounds == 0):
        raise DamagedFile(metrics, f"it has {size} bytes, but {found.rounds} rounds were run")
    if found.status == Status.DONE and "final" not in found.rules:
        raise DamagedFile(path, "rules: final is missing")
    return {**node, "status": found.status}


def read_history(path: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """Reads metrics.jsonl: one record per round; empty if there is no file.

    Args:
        path: the file.
        rounds: the last round that it should hold; None: whatever it holds.
    """
    if not path.is_file():
        return []
    history: list[dict[str, Any]] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            node = json.loads(line)
            _Record.model_validate(node)
        except (ValueError, RecursionError) as problem:
            why = _first(problem) if isinstance(problem, ValidationError) else "it is not JSON"
            raise DamagedFile(path, f"line {number}: {why}") from None
        history.append(node)
    last = history[-1]["round"] if history else 0
    if rounds is not None and last != rounds:
        raise DamagedFile(path, f"its last round is {last}, but result.json counts {rounds}")
    return history


def read_tracking(path: Path) -> str:
    """Reads tracking.json: the id of the store on a tracking server."""
    try:
        return _validated(_Tracking, _mapping(path), path).id
    except DamagedFile as problem:
        remedy = "Restore it from a copy. Without it, the study's runs on the tracking server cannot be found."
        raise DamagedFile(path, problem.why, remedy) from None


def read_prompts(path: Path) -> dict[str, Tensor]:
    """Reads prompts.safetensors: the learned parameters of a seed by name."""
    with _readable(path):
        return load_file(path)


def check_prompts(path: Path) -> None:
    """Reads the header of prompts.safetensors, which gives the size that the file should have."""
    with _readable(path), safe_open(path, framework="pt"):
        pass


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError) as problem:
        raise DamagedFile(path, f"it is not a whole safetensors file ({_line(problem)})") from None


def check_database(path: Path) -> None:
    """Checks study.db, the Optuna database of a search, by SQLite's own check. An empty one is not damaged."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ((found,),) = database.execute("PRAGMA quick_check(1)")
    except sqlite3.OperationalError:  # locked, or in a folder that cannot be written: not a finding about the file
        return
    except sqlite3.DatabaseError as problem:
        raise DamagedFile(path, f"SQLite cannot read it ({_line(problem)})", _DATABASE) from None
    if found != "ok":
        raise DamagedFile(path, f"SQLite finds an error ({_line(found)})", _DATABASE)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DamagedFile(path, "it is not text in UTF-8") from None
    except OSError as problem:
        raise DamagedFile(path, str(problem.strerror)) from None


def _json(path: Path) -> Any:
    text = _text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DamagedFile(path, "it is empty" if not text.strip() else f"it is not JSON ({_line(problem)})") from None


def _mapping(path: Path) -> dict[str, Any]:
    node = _json(path)
    if not isinstance(node, dict):
        raise DamagedFile(path, f"it holds {shown(node)}, not a mapping")
    return cast(dict[str, Any], node)


def _versioned(node: dict[str, Any], path: Path) -> dict[str, Any]:
    """A file's content without the number of its schema.

    Raises:
        ConfigError: a later release wrote it.
    """
    written = node.pop("schema", 1)
    if type(written) is not int or written < 1:
        raise DamagedFile(path, f"its schema is {written!r}")
    if written > SCHEMA:
        raise ConfigError(
            f"A study is read by the release that wrote it or a later one, but {path.parent.name}/{path.name} has "
            f"schema {written}, and this fpl-tune knows {SCHEMA}. Install a newer fpl-tune, or name another study."
        )
    return node


def _validated(model: type[T], node: Any, path: Path) -> T:
    try:
        return model.model_validate(node)  # type: ignore[attr-defined, no-any-return]
    except ValidationError as problem:
        raise DamagedFile(path, _first(problem)) from None


def _first(problem: ValidationError) -> str:
    """The first of a validation's findings: `rounds: Input should be a valid integer`."""
    found = problem.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:200]
