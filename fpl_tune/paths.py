"""Where things lie: shipped files, the output folder, the feature cache."""

from __future__ import annotations

import os
from pathlib import Path

from fpl_tune.errors import EnvironmentProblem

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
        EnvironmentProblem: it cannot be written.
    """
    root = output_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise EnvironmentProblem(
            f"The output folder must be writable, but {root} is not ({problem.strerror}). "
            "Name another one in FPL_TUNE_OUTPUT."
        ) from None
    return root


def cache_root() -> Path:
    """Feature cache: FPL_TUNE_CACHE, else XDG_CACHE_HOME/fpl-tune, else ~/.cache/fpl-tune."""
    named = os.environ.get("FPL_TUNE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "fpl-tune"
    return Path(named).expanduser() if named else base
