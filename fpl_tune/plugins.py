"""The code of others: what installed packages bring by entry points, and modules that the user names.

Group `fpl_tune.methods`: a dataclass derived from `fpl_tune.method.Method`.
Group `fpl_tune.data`: a `fpl_tune.data.sources.Source`.
Group `fpl_tune.towers`: a function (pretrained, *, device, dtype, seed) that returns `fpl_tune.clip.Towers`.
Group `fpl_tune.samplers`: a class derived from `optuna.samplers.BaseSampler`.
Group `fpl_tune.pruners`: a class derived from `optuna.pruners.BasePruner`.
The name of the entry point is the name in the configuration: `method=NAME`, `data.name=NAME`, `clip.name=NAME`,
`search.sampler=NAME`, `prune.rule=NAME`.
Methods may come from any module that FPL_TUNE_PLUGINS lists; see `fpl_tune.methods`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from fpl_tune.errors import ConfigError

VARIABLE = "FPL_TUNE_PLUGINS"
"""Top-level modules that the user allows methods to come from; processes that this one starts inherit it."""

Kind = Literal["methods", "data", "towers", "samplers", "pruners"]

_PLACE = "fpl_tune_place"


def trusted() -> list[str]:
    """Top-level modules that may be imported for a method."""
    return [name for name in os.environ.get(VARIABLE, "").replace(" ", "").split(",") if name]


def names(kind: Kind) -> list[str]:
    """Names of the plug-ins of a kind; nothing is imported."""
    return sorted({point.name for point in entry_points(group=f"fpl_tune.{kind}")})


def load(kind: Kind, name: str) -> Any:
    """What a plug-in brings.

    Raises:
        ConfigError: it cannot be imported.
    """
    (point, *_) = entry_points(group=f"fpl_tune.{kind}", name=name)
    try:
        return point.load()
    except Exception as problem:  # the code of others: whatever it raises
        brought = f" of the package {point.dist.name}" if point.dist else ""
        raise ConfigError(
            f"The plug-in {name!r}{brought} cannot be imported from {point.value}: {told(problem)}. Mend or remove it."
        ) from problem


def told(problem: BaseException) -> str:
    """An error in a line: its kind, what it says and, where it went through a plug-in, the file and line there."""
    text = problem.msg if isinstance(problem, SyntaxError) else " ".join(str(problem).split())
    place = where(problem)
    return f"{type(problem).__name__}{f': {text}' if text else ''}{f' ({place})' if place else ''}"


def where(problem: BaseException) -> str:
    """`file:line` of the innermost frame in the code of a plug-in; empty where there is none."""
    if isinstance(problem, SyntaxError) and problem.filename:
        return f"{problem.filename}:{problem.lineno}"
    if found := getattr(problem, _PLACE, ""):
        return str(found)
    points = (point for kind in get_args(Kind) for point in entry_points(group=f"fpl_tune.{kind}"))
    theirs = {*trusted(), *map(_top, points)}
    found = ""
    for frame, line in traceback.walk_tb(problem.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in theirs:
            found = f"{frame.f_code.co_filename}:{line}"
    return found


@contextmanager
def located() -> Iterator[None]:
    """An error takes its place in a plug-in along to another process, which gets it without its frames."""
    try:
        yield
    except Exception as problem:
        setattr(problem, _PLACE, where(problem))
        raise


def _top(point: EntryPoint) -> str:
    """The top-level module of an entry point."""
    return point.value.partition(":")[0].partition(".")[0].strip()
