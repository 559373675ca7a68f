"""The files in a study's folder, and the only functions that read them. Needs neither PyTorch nor Hydra.

A file that is truncated, empty, not a regular file, or of another cell or seed raises `DamagedFile`: one line with the
file, what is wrong with it, and the remedy. `Store` turns it into a warning: a damaged file costs its cell or seed,
which the study runs again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError, field_validator

from fpl_tune.core.clients import with_clients
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import digest
from fpl_tune.core.metrics import Metric, use_stored
from fpl_tune.core.spec import LOOKS, Seeds
from fpl_tune.core.yaml_files import read_mapping
from fpl_tune.study.cells import Cell, Role, Suggestion
from fpl_tune.study.design import Design
from fpl_tune.study.results import Status

SCHEMA = 8
"""Version of the layout of a study's folder, stored in study.yaml."""
DIGEST = 16
"""Bytes of the digest of a history."""
CELL_ID = "[0-9a-f]{8,64}"
SEED_FOLDER = re.compile(r"seed=(\d{1,19})")


class DamagedFile(ConfigError):
    """A file of a study that cannot be read.

    Args:
        path: the file.
        why: what is wrong with it, without a full stop.
    """

    remedy = "Run the study again to recreate the file."

    def __init__(self, path: Path, why: object) -> None:
        self.path, self.why = path, " ".join(str(why).split())[:200].rstrip(".")
        super().__init__(f"{path} is damaged: {self.why}. {self.remedy}")


class _Prune(BaseModel):
    reduction: int
    first_rung: int | None


class _Report(BaseModel):
    metric: str
    rule: str


class _Search(BaseModel):
    sampler: Any
    trials: int | None
    budget: float | None
    space: dict[str, Any]
    only: list[str]
    objectives: list[str]
    limits: dict[str, float] = {}
    across: Literal["settings"] | None = None
    confirm: int | list[int] | str | None


class StudyFile(Seeds, BaseModel):
    """The fields of study.yaml that tables and choices read, named as in `config.Study`."""

    name: str
    title: str
    axes: dict[str, Any]
    seeds: Annotated[int, Field(ge=1)] | Annotated[list[int], Field(min_length=1)] | Literal["until_decided"]
    looks: Annotated[list[int], Field(min_length=1)] = [*LOOKS]
    search: _Search
    prune: _Prune
    report: _Report

    @classmethod
    def of(cls, study: Any) -> StudyFile:
        """Those fields of a composed study."""
        return cls.model_validate(study, from_attributes=True)


class Effective(BaseModel):
    """Resolved values of fields in the last run of the study, so that readers need no other file of the user."""

    halving: bool = False
    """True if `prune.rule` resolved to halving."""
    confirm: list[int] = []
    """The seeds that `search.confirm` resolved to."""
    spaces: dict[str, dict[str, Any]] = {}
    """Content of the file of the search space, with its published points, by the label of the cell of the axes."""
    metrics: list[Metric] = []
    """Metrics of methods by which the study chooses or reports."""


class CellFile(BaseModel):
    """cell.json: a configuration, whether today's study asks for it or not."""

    id: str = Field(pattern=f"^{CELL_ID}$")
    varied: dict[str, Any]
    """The fields that varied when the study asked for it last."""
    suggestion: Suggestion | None
    """How it was suggested; None if it never was a trial of a search."""
    rounds: int = Field(ge=1)
    prints: dict[str, Any]
    """Fingerprints of the method's source, data and weights at the last start; see `study.fingerprints`."""
    run: Annotated[dict[str, Any], AfterValidator(with_clients)]


class Place(BaseModel):
    """An entry of cells.json: what a cell is in today's study; the fields are those of `Cell`."""

    id: str = Field(pattern=f"^{CELL_ID}$")
    number: int = Field(ge=0)
    label: str
    role: Role
    reference: str = ""
    step: bool = False
    search: str = ""
    first: Literal["", "published", "default"] = ""
    inside: bool = True

    @classmethod
    def of(cls, cell: Cell) -> Place:
        """What a cell is."""
        return cls.model_construct(**{name: getattr(cell, name) for name in cls.model_fields})

    def cell(self, file: CellFile) -> Cell:
        """The cell, with its configuration."""
        suggestion = file.suggestion if self.search else None
        return Cell(**dict(self), varied=file.varied, source=file.run, suggestion=suggestion, _rounds=file.rounds)


class MarksFile(BaseModel):
    """marks.json: decisions that cannot be derived later, since they followed from the results at that moment."""

    cell: str
    prints: dict[str, Any]
    """Fingerprints of the cell at that moment: marks of another version of the method are ignored."""
    passed: list[int] = []
    together: list[int] = []
    rejected: str = ""


class ResultFile(BaseModel, extra="allow"):
    """result.json: how a seed ended. It is written last: a seed is finished if and only if this file exists."""

    cell: str
    seed: int
    history: str
    """Digest of the metrics.jsonl that it was made from."""
    status: Status
    error: str | None = None
    rounds: int = Field(ge=0)
    rules: dict[str, dict[str, int | float]]
    up: int | float = Field(alias="comm/up_bytes")
    down: int | float = Field(alias="comm/down_bytes")
    seconds: int | float = Field(alias="time/seconds")
    split_hash: str
    finished: str
    fingerprints: dict[str, Any]


class CellsFile(BaseModel):
    """cells.json: the cells that today's study asks for, in order."""

    study: str = ""
    """The study's name, as in study.yaml."""
    complete: bool = False
    """True if the last run ended with nothing left to run."""
    exhausted: list[str] = []
    """Searches whose sampler had no new point to suggest, as `str` of their `search.CellSearch`."""
    cells: list[Place] = []

    @field_validator("cells")
    @classmethod
    def _different(cls, cells: list[Place]) -> list[Place]:
        if len({place.id for place in cells}) < len(cells):
            raise ValueError("a cell is repeated")
        return cells


_HISTORY = TypeAdapter(list[dict[str, int | float | list[int | float]]])

File = TypeVar("File", bound=BaseModel)


def read(path: Path, kind: type[File]) -> File:
    """Reads a JSON file."""
    return checked(path, kind.model_validate_json, _content(path))


def read_cell(path: Path) -> CellFile:
    """Reads cell.json."""
    file = read(path, CellFile)
    _check_owner(path, file.id)
    return file


def read_marks(path: Path) -> MarksFile:
    """Reads marks.json."""
    file = read(path, MarksFile)
    _check_owner(path, file.cell)
    return file


def read_result(path: Path) -> ResultFile:
    """Reads result.json."""
    file = read(path, ResultFile)
    _check_owner(path, file.cell, file.seed)
    return file


def _content(path: Path) -> bytes:
    """The bytes of a file. Errors besides a missing file, such as permissions, are not damage and raise `OSError`."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DamagedFile(path, "it is missing") from None


def _check_owner(path: Path, cell: str, *seed: object) -> None:
    """Raises `DamagedFile` for a file of another cell or seed than the folder that it is in."""
    owner = (cell, *(f"seed={number}" for number in seed))
    if path.parent.parts[-len(owner) :] != owner:
        raise DamagedFile(path, f"it belongs to cell {', '.join(map(str, owner))}")


def checked(path: Path, validate: Callable[[Any], File], content: Any) -> File:
    """The content of a file as a pydantic model."""
    try:
        return validate(content)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        raise DamagedFile(path, ": ".join([*map(str, first["loc"]), first["msg"]])) from None


def read_study(path: Path, stamp: int) -> tuple[dict[str, Any], Effective]:
    """Reads study.yaml: the resolved study as a plain dict, and the resolved values of its last run, whose metrics are
    used from then on; see `metrics.use_stored`.

    Args:
        path: the file.
        stamp: its modification time, so that a changed file is read again.

    Raises:
        DamagedFile: it is not a mapping in plain YAML.
        ConfigError: it has another layout.
    """
    node, effective = _read_study(path, stamp)
    use_stored(effective.metrics)
    return node, effective


@lru_cache(maxsize=8)
def _read_study(path: Path, stamp: int) -> tuple[dict[str, Any], Effective]:
    try:
        node = read_mapping(path, "A stored study")
    except ConfigError as problem:
        raise DamagedFile(path, problem) from None
    if "schema" not in node:  # the last line
        raise DamagedFile(path, "it ends early")
    if (written := node.pop("schema")) != SCHEMA:
        raise ConfigError(
            f"{path.parent} has layout {written!r}, but this version of fpl-tune reads {SCHEMA}. Move the folder away "
            "and run the study again."
        )
    return node, checked(path, Effective.model_validate, node.pop("effective", {}))


@lru_cache(maxsize=8)
def read_design(path: Path, stamp: int) -> tuple[StudyFile, Design]:
    """Reads study.yaml as `read_study` does: the fields that tables and choices read, and the study's design."""
    node, effective = read_study(path, stamp)
    study = checked(path, StudyFile.model_validate, node)
    return study, Design.of(study, halved=effective.halving, confirm=effective.confirm)


def read_history(path: Path, rounds: int, noted: str) -> list[dict[str, Any]]:
    """Reads metrics.jsonl: one record for each of `rounds` rounds.

    Args:
        path: the file.
        rounds: number of rounds in the result.
        noted: digest of the file in the result.
    """
    try:
        content = _content(path)
        history = _HISTORY.validate_json(b"[" + b",".join(content.splitlines()) + b"]")
    except (OSError, ValueError) as problem:
        raise DamagedFile(path, f"it is not JSON lines of numbers ({problem})") from None
    if [record.get("round") for record in history] != [*range(1, rounds + 1)]:
        raise DamagedFile(path, f"it must hold {rounds} records, of one round each")
    if noted != digest(content, DIGEST):
        raise DamagedFile(path, "it is not the history that the seed's result was made from")
    return history


def check_prompts(path: Path) -> None:
    """Checks the header of prompts.safetensors, which has the file's size and owner, if the file exists."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return
    try:
        with safe_open(path, framework="numpy") as opened:
            facts = opened.metadata() or {}
    except (SafetensorError, OSError) as problem:
        raise DamagedFile(path, f"it is not a whole safetensors file ({problem})") from None
    _check_owner(path, facts.get("cell", ""), facts.get("seed"))
