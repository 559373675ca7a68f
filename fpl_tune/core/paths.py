"""Paths of the shipped files, the output folder and the feature cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryFile

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, unknown

_PACKAGE = Path(__file__).resolve().parents[1]


def local(path: str | Path) -> Path:
    """A path as the user wrote it: `~` is the home folder, and relative paths are below the user's current folder.

    Ray Tune changes the current folder of its workers, and stores the original one in TUNE_ORIG_WORKING_DIR.
    """
    return Path(os.environ.get("TUNE_ORIG_WORKING_DIR", ""), os.path.expanduser(path))  # leaves a ~name of no user


CONFIG_DIR = "FPL_TUNE_CONFIG_DIR"
"""Variable of the environment with the folder of the user's own options."""


def shipped(kind: str, name: str = "") -> Path:
    """The folder `conf`, `studies` or `search_spaces`, or a file in it.

    A checkout has the last two next to the package, a wheel inside it.
    """
    if kind == "conf":
        return _PACKAGE / "config" / "conf" / name
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file() and (_PACKAGE.parent / kind).is_dir()
    return (_PACKAGE.parent if checkout else _PACKAGE / "_shipped") / kind / name


def config_dir() -> Path | None:
    """The folder of the user's own options, `<group>/<option>.yaml`, in FPL_TUNE_CONFIG_DIR, which `--config-dir` sets.

    Raises:
        ConfigError: it is not a folder.
    """
    if not (named := os.environ.get(CONFIG_DIR)):
        return None
    if not (folder := Path(named).expanduser().resolve()).is_dir():
        raise ConfigError(f"--config-dir and {CONFIG_DIR} name a folder with options, but {named} is none.")
    return folder


def option_files(group: str) -> dict[str, Path]:
    """The YAML files of a group's options by name: the shipped ones, and those in `config_dir`.

    Raises:
        ConfigError: an option of one's own has the name of a shipped one.
    """
    files, own = {path.stem: path for path in sorted(shipped("conf", group).glob("*.yaml"))}, config_dir()
    for path in sorted((own / group).glob("*.yaml")) if own is not None else ():
        if path.stem in files:
            raise ConfigError(f"{path} has the name of a shipped option, {group}={path.stem}. Rename it.")
        files[path.stem] = path
    return files


def list_studies() -> dict[str, Path]:
    """The files of studies by name: those in `studies/` of the current folder, and the shipped ones."""
    studies: dict[str, Path] = {}
    for folder in (Path.cwd() / "studies", shipped("studies")):
        for path in sorted(folder.glob("*.yaml")):
            studies.setdefault(path.stem, path)
    return studies


def study_file(name: str) -> Path:
    """The file of a study, given its path or its name, which may be that of a study with results.

    Raises:
        ConfigError: there is no such study.
    """
    if name.endswith((".yaml", ".yml")):
        if not Path(name).exists():
            raise ConfigError(f"There is no file {name!r}. A study is a name (fpl-tune ls studies) or a YAML file.")
        return Path(name)
    studies = list_studies()
    path = studies.get(name) or output_folder() / name / "study.yaml"
    if not path.exists():
        raise unknown("study", name, studies, "fpl-tune ls studies")
    return path


def stored_studies() -> list[str]:
    """The names of the studies that have results."""
    return sorted(path.parent.name for path in output_folder().glob("*/study.yaml"))


def output_folder() -> Path:
    """FPL_TUNE_OUTPUT, or else `outputs/` in the current folder."""
    return Path(os.environ.get("FPL_TUNE_OUTPUT", "outputs")).expanduser().resolve()


def output_root() -> Path:
    """The output folder for writing. It is created with the first file in it.

    Raises:
        EnvironmentProblem: the folder is not writable.
    """
    root = output_folder()
    if why := why_not_writable(root):
        raise EnvironmentProblem(
            f"The output folder must be writable, but {root} is not ({why}). Name another one in FPL_TUNE_OUTPUT."
        )
    return root


def check_sqlite(url: str, what: str) -> None:
    """Checks that no `?` of a path cuts an address of a SQLite file, which would then be created elsewhere.

    Raises:
        ConfigError: one does.
    """
    if re.match(r"sqlite[^?]*\?[^=]*/", url):
        raise ConfigError(f"{what} must have a path's ? as %3F and its % as %25, but is {url!r}. Escape them.")


def cache_root() -> Path:
    """The folder of the feature cache: FPL_TUNE_CACHE, else XDG_CACHE_HOME/fpl-tune, else ~/.cache/fpl-tune."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return local(os.environ.get("FPL_TUNE_CACHE") or f"{base}/fpl-tune")


def usable_cache() -> Path:
    """The feature cache for writing, or one that is read-only but not empty, as it may hold all features in question.

    Raises:
        EnvironmentProblem: the folder is not writable, and holds no features.
    """
    folder = cache_root()
    if (why := why_not_writable(folder)) and not any(folder.glob("*.npy")):
        raise EnvironmentProblem(
            f"The feature cache must be writable, but {folder} is not ({why}). Name another folder in FPL_TUNE_CACHE."
        )
    return folder


def why_not_writable(folder: Path) -> str:
    """The reason why files cannot be written to a folder, which need not exist yet; "" if they can."""
    try:
        existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        TemporaryFile(dir=existing).close()
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""
