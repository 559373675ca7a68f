"""Composition of a study that reports every override without effect."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune import config
from fpl_tune.config import GROUPS, SearchSpec, Study
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.paths import list_studies, shipped
from fpl_tune.search.search import Search
from fpl_tune.study.cells import axes_of, expand, grid, label


def compose(name: str, overrides: Sequence[str] = ()) -> Study:
    """Composes a study as `config.compose_study` does, and refuses overrides without effect.

    Warns if the study is a file of the current folder that has the name of a shipped study.

    Args:
        name: a study's name, or the path of its YAML file.
        overrides: `key=value`, in Hydra's syntax.

    Raises:
        ConfigError: an invalid study, or an override without effect because of an axis, a stage or a missing sampler.
    """
    spec = config.compose_study(name, overrides)
    _warn_of_shadowed(name)
    _warn_of_repeated(spec)
    for text in overrides:
        dotted = text.partition("=")[0]
        if dotted.split(".")[0] in GROUPS:
            _check(name, overrides, text, spec)
    if spec.search.sampler is None and spec.search != SearchSpec():
        fields = [name for name, value in vars(spec.search).items() if value != getattr(SearchSpec(), name)]
        raise ConfigError(
            f"search.{fields[0]} has no effect without a sampler. Set search.sampler=tpe, or remove the search block."
        )
    if spec.report.claims and not any(_changes_cells(text) for text in overrides):
        from fpl_tune.study import claims  # imports pandas

        claims.check(spec, expand(spec))  # a study that is narrowed leaves some claims without cells
    search = Search.plan(spec)
    points = (
        [point for part in search.parts for point in part.space.outside]
        if search and spec.search.sampler != "grid"
        else []
    )
    for text in dict.fromkeys(map(label, points)):
        warnings.warn(f"The published point {text} lies outside search.space and is not tried.", Notice, stacklevel=2)
    searched = {param.name for part in search.parts for param in part.space.params} if search else set[str]()
    for text in overrides:
        dotted, _, value = text.partition("=")
        if dotted in searched:
            warnings.warn(
                f"{text} does not fix {dotted}: the study searches it. Fix it with "
                f"'search.space.{dotted}={{choices:[{value}]}}'.", Notice, stacklevel=2,
            )  # fmt: skip
    return spec


def _check(name: str, overrides: Sequence[str], text: str, spec: Study) -> None:
    """Refuses an override of a field that an axis or the stages set anew; warns if it reaches references alone."""
    dotted = text.partition("=")[0]
    axis = next((axis for axis, values in axes_of(spec.axes).items() if _sets(axis, values, dotted)), None)
    if axis is not None:
        wins = f"the study sweeps {axis}. Override the axis, 'axes.{axis}=[...]', or remove it, '~axes.{axis}'."
        if _same_cells(name, overrides, text, spec):
            raise ConfigError(f"{text} has no effect: {wins}")
        warnings.warn(f"{text} sets references only: {wins}", Notice, stacklevel=3)
    elif dotted in ("protocol.rounds", "protocol.epochs"):
        field = dotted.removeprefix("protocol.")
        own = [stage.get(field) for stage in spec.node["stages"]]
        others = bool(spec.references) or "method" in axes_of(spec.axes)  # may bring stages of their own
        if own and None not in own and not others:
            raise ConfigError(f"{text} has no effect: every stage of the method sets {field}. Override stages.")


def _changes_cells(text: str) -> bool:
    """Whether an override may remove or rename cells."""
    return text.lstrip("+~").partition("=")[0].split(".")[0] in ("axes", "references", "let", "scale", *GROUPS)


def _sets(axis: str, values: Sequence[Any], dotted: str) -> bool:
    """Whether an axis sets a field in all of its cells."""
    if axis == dotted or (axis in GROUPS and dotted.startswith(f"{axis}.")):
        return True
    return all(isinstance(value, Mapping) and dotted in value for value in values)


def _same_cells(name: str, overrides: Sequence[str], text: str, spec: Study) -> bool:
    """Whether a study has the same cells without an override."""
    other = config.compose_study(name, [given for given in overrides if given != text])
    return [cell.id for cell in expand(spec)] == [cell.id for cell in expand(other)]


def _warn_of_repeated(spec: Study) -> None:
    """Warns of labelled variants of one configuration, of which only the first is run."""
    if not any(isinstance(value, Mapping) for values in axes_of(spec.axes).values() for value in values):
        return
    labels: dict[str, str] = {}
    for varied, run in grid(spec):
        kept = labels.setdefault(config.identity(run), label(varied))
        if kept != label(varied):
            warnings.warn(f"{label(varied)!r} has the configuration of {kept!r}, which alone is run.",
                          Notice, stacklevel=3)  # fmt: skip


def _warn_of_shadowed(name: str) -> None:
    """Warns if a study of the current folder has the name of a shipped one."""
    here, theirs = list_studies().get(name), shipped("studies", f"{name}.yaml")
    if here is not None and theirs.is_file() and here.resolve() != theirs.resolve():
        warnings.warn(f"{here} is run, not the shipped study {name}. Rename the file if that is not intended.",
                      Notice, stacklevel=3)  # fmt: skip
