"""The files in a study's folder, and the only functions that read them. Needs neither PyTorch nor Hydra.

A file that is truncated, empty, edited or of another kind raises `DamagedFile`, one line that names the file, what is
wrong and the remedy. `Store` turns it into a warning: a damaged file costs its
cell or seed, which the study runs again.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES
from fpl_tune.core.nested import GROUPS
from fpl_tune.core.yaml_files import read_mapping
from fpl_tune.study.records import Cell, Role
from fpl_tune.study.status import Status

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 3
"""Version of the layout of a study's folder, named in study.yaml."""
CELL_ID = "[0-9a-f]{8,64}"
SEED_FOLDER = re.compile(r"seed=(\d{1,19})")
SUMS = "sums"
"""Field of result.json: file beside it -> its size and checksum."""

_REMEDY = "Run the study again: it makes the file anew."
_SCALE = 20  # times the size of a study file: a stored study has all fields, and interpolations are replaced


class DamagedFile(ConfigError):
    """A file of a study that cannot be read.

    Args:
        path: the file.
        why: what is wrong with it, without a full stop.
        remedy: what the user can do.
    """

    def __init__(self, path: Path, why: str, remedy: str = _REMEDY) -> None:
        super().__init__(f"{path} is damaged: {why}. {remedy}")
        self.path, self.why, self.remedy = path, why, remedy


class _Search(BaseModel):
    sampler: Any = None


class _Report(BaseModel):
    metric: str = "test/acc_mean"
    rule: str = "final"
    select: str = "mean"


class StudyFile(BaseModel):
    """The fields of study.yaml that tables and choices read; named as in `config.Study`, which holds all."""

    name: str = "study"
    title: str = ""
    axes: dict[str, Any] = {}
    seeds: Annotated[int, Field(ge=1)] | Annotated[list[int], Field(min_length=1)] = 3
    search: _Search = _Search()
    report: _Report = _Report()

    def seed_list(self) -> list[int]:
        """The seeds as a list; a number n stands for 1..n."""
        return self.seeds if isinstance(self.seeds, list) else list(range(1, self.seeds + 1))


class CellFile(BaseModel):
    """cell.json: a cell, and what its results depend on."""

    id: str = Field(pattern=f"^{CELL_ID}$")
    number: int = Field(ge=0)
    label: str
    role: Role
    varied: dict[str, Any]
    run: dict[str, Any]
    fingerprints: dict[str, Any] = {}

    def cell(self) -> Cell:
        """The cell."""
        return Cell(self.id, self.number, self.label, self.role, self.varied, self.run)


def _rules(rules: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    for name, rule in rules.items():
        if name not in (*CHOICES, *TEST_SELECTED_RULES):
            raise ValueError(f"there is no rule {name!r}")
        if not all(math.isfinite(rule.get(key, math.nan)) for key in ("round", "test/acc_mean")):
            raise ValueError(f"{name} needs a round and a test accuracy")
    return rules


class ResultFile(BaseModel):
    """result.json: how a seed ended. Written last, so that a seed is finished exactly if it is there."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    status: Annotated[Status, BeforeValidator(Status)]
    error: str | None = None
    rounds: int = Field(ge=0)
    rules: Annotated[dict[str, dict[str, Annotated[float, Field(allow_inf_nan=True)]]], AfterValidator(_rules)]
    up: float = Field(alias="comm/up_bytes")
    down: float = Field(alias="comm/down_bytes")
    seconds: float = Field(alias="time/seconds")
    split_hash: str
    finished: datetime
    sums: dict[Literal["metrics.jsonl", "prompts.safetensors"], tuple[int, int]] = {}


class Order(BaseModel):
    """cells.json: ids of the study's cells in order, and which of them only earlier runs had."""

    cells: list[Annotated[str, Field(pattern=f"^{CELL_ID}$")]] = []
    earlier: list[str] = []


@contextmanager
def _reading(path: Path, what: str = "JSON", place: str = "", remedy: str = _REMEDY) -> Iterator[None]:
    """Reports a file that cannot be read as damaged: `place` of it is not `what`, or not what pydantic expects."""
    try:
        yield
    except ValidationError as problem:
        found = problem.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, found["loc"]))
        raise DamagedFile(path, ": ".join(filter(None, [place, field, _line(found["msg"])])), remedy) from None
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise DamagedFile(path, f"{place or 'it'} is not {what} ({_line(problem)})", remedy) from None


def read_study(path: Path) -> dict[str, Any]:
    """Reads study.yaml: the resolved study as a plain dict.

    Raises:
        DamagedFile: it is not a mapping in plain YAML, or does not name its study's parts.
        ConfigError: another release wrote it.
    """
    remedy = "Run the study again by the name of its YAML file: finished cells are kept."
    try:
        node = read_mapping(path, "A stored study", _SCALE)
    except ConfigError as problem:
        raise DamagedFile(path, str(problem).rstrip("."), remedy) from None
    if (written := node.pop("schema", SCHEMA)) != SCHEMA:
        raise ConfigError(
            f"{path.parent} has layout {written!r}, but this release of fpl-tune reads {SCHEMA}. Move the folder away "
            "and run the study again, or read it with the release that wrote it."
        )
    lacking = [name for name in GROUPS if not isinstance(node.get(name), Mapping)]
    if lacking:
        raise DamagedFile(path, f"it lacks {', '.join(lacking)}", remedy)
    return node


def as_study(node: Mapping[str, Any], path: Path) -> StudyFile:
    """The fields of a stored study that tables and choices read."""
    with _reading(path, "a study"):
        return StudyFile.model_validate(node)


def read_cell(path: Path) -> CellFile:
    """Reads cell.json; its folder is named by the cell's id."""
    with _reading(path):
        found = CellFile.model_validate_json(path.read_bytes())
    if path.parent.name != found.id:
        raise DamagedFile(path, f"its folder is named {path.parent.name}, but it holds cell {found.id}")
    if lacking := [name for name in GROUPS if not isinstance(found.run.get(name), Mapping)]:
        raise DamagedFile(path, f"run lacks {', '.join(lacking)}")
    return found


def read_order(path: Path) -> Order:
    """Reads cells.json; empty if there is no file."""
    with _reading(path):
        return Order.model_validate_json(path.read_bytes()) if path.is_file() else Order()


def read_result(path: Path) -> dict[str, Any]:
    """Reads result.json, and checks that the files beside it have the sizes that it names; see `check_seed`."""
    with _reading(path):
        node = json.loads(data := path.read_bytes())
        found = ResultFile.model_validate_json(data)
    if found.status == Status.DONE and "final" not in found.rules:
        raise DamagedFile(path, "rules: final is missing")
    for name, (size, _) in found.sums.items():
        beside = path.with_name(name)
        there = beside.stat().st_size if beside.is_file() else None
        if there != size:
            has = "it is not there" if there is None else f"it has {there} bytes"
            raise DamagedFile(beside, f"{has}, but {size} were written")
    return {**node, "status": found.status}


def check_seed(result: Mapping[str, Any], folder: Path) -> None:
    """Reads the files of a seed and compares them with their checksums."""
    for name, (_, checksum) in result.get(SUMS, {}).items():
        if sum_of(folder / name)[1] != checksum:
            raise DamagedFile(folder / name, "its content is not what was written (checksum)")


def sum_of(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    data = path.read_bytes()
    return len(data), zlib.crc32(data)


def read_history(path: Path) -> list[dict[str, Any]]:
    """Reads metrics.jsonl: one record per round; empty if there is no file."""
    history: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), 1):
        with _reading(path, place=f"line {number}"):
            history.append(_record(json.loads(line)))
    return history


def _record(record: Any) -> dict[str, Any]:
    """A line of metrics.jsonl: `seed`, `round`, numbers by name, and lists of numbers."""
    for name, least in (("seed", 0), ("round", 1)):
        if type(record[name]) is not int or record[name] < least:
            raise ValueError(f"{name} is {record[name]!r}")
    for name, value in record.items():
        if not isinstance(value, int | float | list | None):
            raise ValueError(f"{name} is {value!r}")
    return record


def read_prompts(path: Path) -> dict[str, Tensor]:
    """Reads prompts.safetensors: the learned parameters of a seed by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as problem:
        raise DamagedFile(path, f"it is not a whole safetensors file ({_line(problem)})") from None


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:200]
