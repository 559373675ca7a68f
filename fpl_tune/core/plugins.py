"""Plug-ins: entry points of installed packages, and modules that the user names.

Group `fpl_tune.methods`: a dataclass derived from `fpl_tune.method.Method`.
Group `fpl_tune.data`: a `fpl_tune.data.sources.Source`.
Group `fpl_tune.towers`: a function (pretrained, *, device, dtype, seed) that returns `fpl_tune.clip.Towers`.
Group `fpl_tune.samplers`: a class derived from `optuna.samplers.BaseSampler`.
The name of the entry point is the name in the configuration: `method=NAME`, `data.name=NAME`, `clip.name=NAME`,
`search.sampler=NAME`.
Methods, data sets and samplers can also be named as `package.module:Name`; see `module_of`.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import output_folder

VARIABLE = "FPL_TUNE_PLUGINS"
"""Environment variable with the top-level modules that may be imported; child processes inherit it."""

CODE = "code"
"""Name of the folder beside an exported study that holds the modules which the study names."""
_beside: list[Path] = []

Kind = Literal["methods", "data", "towers", "samplers"]


def trusted() -> list[str]:
    """The top-level modules that may be imported."""
    return [name for name in os.environ.get(VARIABLE, "").replace(" ", "").split(",") if name]


def trust(overrides: Iterable[str]) -> None:
    """Trusts the modules that the user's own overrides name as `package.module:Name`."""
    for text in overrides:
        trust_modules(*re.findall(r"(?<![\w.])([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]", text))


def trust_modules(*modules: str) -> None:
    """Trusts top-level modules, here and in child processes."""
    if not set(modules) <= set(trusted()):
        os.environ[VARIABLE] = ",".join(dict.fromkeys([*trusted(), *modules]))


def look_beside(folder: Path) -> None:
    """Takes trusted modules also from the folder `code` of a study's folder."""
    if (code := folder.resolve() / CODE).is_dir() and code not in _beside:
        _beside.append(code)


def modules() -> set[str]:
    """The top-level modules of all plug-ins."""
    points = (point for kind in get_args(Kind) for point in entry_points(group=f"fpl_tune.{kind}"))
    return {*trusted(), *(point.module.partition(".")[0] for point in points)}


def module_of(name: str, field: str) -> ModuleType:
    """Imports the module of `package.module:Name`.

    A study file may come from anywhere, and importing a module runs it. Modules are therefore imported only if they are
    part of fpl-tune or Optuna, lie in the current folder, were named on the command line (or in the overrides of the
    Python interface), or are listed in FPL_TUNE_PLUGINS. In the two latter cases they may lie beside an exported study.

    Args:
        name: `package.module:Name`.
        field: the field of the configuration that holds it, for messages.

    Raises:
        ConfigError: the name is not of that form, or its module is not trusted or cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if "/" in module or not module or not attribute:
        raise ConfigError(f"{field} must have the form package.module:Name, but is {name!r}.")
    if module.endswith(".py"):
        raise ConfigError(
            f"{field} names a module, not a file: write {field}={module.removesuffix('.py')}:{attribute}."
        )
    top, here = module.partition(".")[0], Path.cwd()
    if _holds(here, top):
        trust_modules(top)
    if top not in ("fpl_tune", "optuna", *trusted()):
        beside = next((folder for folder in _beside if _holds(folder, top)), None)
        # A name alone keeps the fields of an exported method.
        written = f"{field}.name={name}" if beside and field == "method" else f"{field}={name}"
        missing = f"The code of {name} is in {beside}." if beside else _missing(top)
        raise ConfigError(
            f"{missing} A file may not import code from elsewhere, but names {field}={name}. If you trust the module "
            f"{top}, set {VARIABLE}={top}, or write {written} on the command line."
        )
    for folder in (here, *_beside):
        if _holds(folder, top) and str(folder) not in sys.path:
            sys.path.append(str(folder))  # at the end, so that no file of the folder hides a library
    try:
        return import_module(module)
    except Exception as problem:
        lacking = isinstance(problem, ModuleNotFoundError) and f"{module}.".startswith(f"{problem.name}.")
        if lacking and getattr(problem, "name", "") == top:
            raise ConfigError(f"{field} {name!r} cannot be imported: {_missing(top)}") from problem
        why = f"{problem}. Set PYTHONPATH to its folder" if lacking else describe_error(problem)
        raise ConfigError(f"{field} {name!r} cannot be imported: {why}.") from problem


def _missing(top: str) -> str:
    """A sentence that the current folder does not contain a module, and where to run the command."""
    beside = output_folder().parent
    place = beside if _holds(beside, top) else "the folder that holds it"
    return f"{top}.py is not in this folder. Run the command in {place}."


def _holds(folder: Path, top: str) -> bool:
    """True if a folder holds a top-level module."""
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()


def names(kind: Kind) -> list[str]:
    """The names of the plug-ins of a kind. Nothing is imported."""
    return sorted({point.name for point in entry_points(group=f"fpl_tune.{kind}")})


def load(kind: Kind, name: str) -> Any:
    """Imports a plug-in.

    Raises:
        ConfigError: the plug-in cannot be imported.
    """
    (point, *_) = entry_points(group=f"fpl_tune.{kind}", name=name)
    try:
        return point.load()
    except Exception as problem:  # a plug-in may raise anything
        brought = f" of the package {point.dist.name}" if point.dist else ""
        raise ConfigError(
            f"The plug-in {name!r}{brought} cannot be imported from {point.value}: {describe_error(problem)}. "
            "Fix or remove it."
        ) from problem


def describe_error(problem: BaseException) -> str:
    """An error in one line: its class, at most 400 characters of its message, and file and line in a plug-in."""
    text = problem.msg if isinstance(problem, SyntaxError) else textwrap.shorten(str(problem), 400, placeholder=" ...")
    location = where(problem)
    return f"{type(problem).__name__}{f': {text}' if text else ''}{f' ({location})' if location else ''}"


def where(problem: BaseException) -> str:
    """`file:line` of the innermost frame in a plug-in; "" if there is none."""
    if isinstance(problem, SyntaxError) and problem.filename:
        return f"{problem.filename}:{problem.lineno}"
    plugin_modules, location = modules(), ""
    for frame, line in traceback.walk_tb(problem.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in plugin_modules:
            location = f"{frame.f_code.co_filename}:{line}"
    return location
