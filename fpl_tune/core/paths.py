"""Paths of the shipped files, the output folder and the feature cache."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, unknown

_PACKAGE = Path(__file__).resolve().parents[1]


def local(path: str | Path) -> Path:
    """A path that the user wrote: `~` is their home, and a relative one is below the folder that they started in.

    Ray Tune moves its workers into folders of their own; they find the former one in TUNE_ORIG_WORKING_DIR.
    """
    return Path(os.environ.get("TUNE_ORIG_WORKING_DIR", ""), os.path.expanduser(path))  # leaves a ~name of no user


def shipped(kind: str, name: str = "") -> Path:
    """`conf`, `studies` or `search_spaces`, or a file in it: in a checkout beside the package, in a wheel inside it."""
    if kind == "conf":
        return _PACKAGE / "config" / "conf" / name
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file() and (_PACKAGE.parent / kind).is_dir()
    return (_PACKAGE.parent if checkout else _PACKAGE / "_shipped") / kind / name


def list_studies() -> dict[str, Path]:
    """Study name -> file: those in `studies/` of the current folder, then the shipped ones."""
    found: dict[str, Path] = {}
    for folder in (Path.cwd() / "studies", shipped("studies")):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def study_file(name: str) -> Path:
    """The file of a study by its name, also of one that has results, or by its path.

    Raises:
        ConfigError: there is none.
    """
    if name.endswith((".yaml", ".yml")):
        if not Path(name).exists():
            raise ConfigError(f"There is no file {name!r}. A study is a name (fpl-tune ls studies) or a YAML file.")
        return Path(name)
    known = list_studies()
    path = known.get(name) or output_folder() / name / "study.yaml"
    if not path.exists():
        raise unknown("study", name, known, "fpl-tune ls studies")
    return path


def stored_studies() -> list[str]:
    """Names of the studies that have results."""
    return sorted(path.parent.name for path in output_folder().glob("*/study.yaml"))


def output_folder() -> Path:
    """`outputs/` of the current folder, or what FPL_TUNE_OUTPUT names."""
    return Path(os.environ.get("FPL_TUNE_OUTPUT", "outputs")).expanduser().resolve()


def output_root() -> Path:
    """The output folder, to write to; it is made with the first file in it.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    root = output_folder()
    if why := refusal(root):
        raise EnvironmentProblem(
            f"The output folder must be writable, but {root} is not ({why}). Name another one in FPL_TUNE_OUTPUT."
        )
    return root


def cache_root() -> Path:
    """Feature cache: FPL_TUNE_CACHE, else XDG_CACHE_HOME/fpl-tune, else ~/.cache/fpl-tune."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return local(os.environ.get("FPL_TUNE_CACHE") or f"{base}/fpl-tune")


def usable_cache() -> Path:
    """The feature cache, to write to; or one that others filled, which may hold all that is read.

    Raises:
        EnvironmentProblem: it cannot be written, and holds nothing.
    """
    folder = cache_root()
    if (why := refusal(folder)) and not any(folder.glob("*.npy")):
        raise EnvironmentProblem(
            f"The feature cache must be writable, but {folder} is not ({why}). Name another folder in FPL_TUNE_CACHE."
        )
    return folder


def refusal(folder: Path) -> str:
    """Why files cannot be written to a folder, which need not exist yet; "" if they can. Nothing is left there."""
    try:
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        TemporaryFile(dir=there).close()
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""
