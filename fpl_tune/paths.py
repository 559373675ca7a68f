"""Paths of the shipped files, the output folder and the feature cache."""

from __future__ import annotations

import os
from multiprocessing.context import TimeoutError as Late
from multiprocessing.pool import ThreadPool
from pathlib import Path

from fpl_tune.errors import EnvironmentProblem

ANSWER_SECONDS = 30.0
"""Time limit of writing to the output folder."""
_PACKAGE = Path(__file__).resolve().parent


def shipped(kind: str, name: str = "") -> Path:
    """`conf`, `studies` or `search_spaces`, or a file in it: in a checkout beside the package, in a wheel inside it."""
    if kind == "conf":
        return _PACKAGE / "conf" / name
    beside = _PACKAGE.parent / kind
    folder = (
        beside if (_PACKAGE.parent / "pyproject.toml").is_file() and beside.is_dir() else _PACKAGE / "_shipped" / kind
    )
    return folder / name


def study_folders() -> list[Path]:
    """Where study files are looked for: `studies/` of the current folder, then the shipped ones."""
    return [folder for folder in (Path.cwd() / "studies", shipped("studies")) if folder.is_dir()]


def list_studies() -> dict[str, Path]:
    """Study name -> file; the current folder's first."""
    found: dict[str, Path] = {}
    for folder in study_folders():
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def output_folder() -> Path:
    """`outputs/` of the current folder, or what FPL_TUNE_OUTPUT names."""
    return Path(os.environ.get("FPL_TUNE_OUTPUT", "outputs")).expanduser().resolve()


def output_root() -> Path:
    """The output folder, created.

    Raises:
        EnvironmentProblem: it cannot be written, or its storage does not answer.
    """
    root = output_folder()
    try:
        with ThreadPool(1) as thread:  # of daemons: a call that storage does not answer cannot be ended
            thread.apply_async(_probe, [root]).get(ANSWER_SECONDS)
    except Late:
        raise EnvironmentProblem(
            f"The output folder must be writable, but {root} did not answer within {ANSWER_SECONDS:g} s. Check its "
            "disk or network, or name another one in FPL_TUNE_OUTPUT."
        ) from None
    except OSError as problem:
        raise EnvironmentProblem(
            f"The output folder must be writable, but {root} is not ({problem.strerror}). "
            "Name another one in FPL_TUNE_OUTPUT."
        ) from None
    return root


def _probe(folder: Path) -> None:
    """Creates a folder, and a file in it, which it removes."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".write-{os.getpid()}"
    probe.touch()
    probe.unlink()


def cache_root() -> Path:
    """Feature cache: FPL_TUNE_CACHE, else XDG_CACHE_HOME/fpl-tune, else ~/.cache/fpl-tune."""
    named = os.environ.get("FPL_TUNE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "fpl-tune"
    return Path(named).expanduser() if named else base
