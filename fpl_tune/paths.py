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


def output_root() -> Path:
    """`outputs/` of the current folder, or what FPL_TUNE_OUTPUT names; created.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    root = Path(os.environ.get("FPL_TUNE_OUTPUT", "outputs")).expanduser().resolve()
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
