"""Composition of a study that reports every override without effect."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune import config
from fpl_tune.config import GROUPS, Given, Override, SearchSpec, Study
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.search.search import Search
from fpl_tune.study.cells import axes_of, label
from fpl_tune.study.grid import expand, grid


def compose(name: str, overrides: Sequence[Given] = ()) -> Study:
    """Composes a study as `config.compose_study` does, and rejects overrides without effect.

    Args:
        name: a study's name, or the path of its YAML file.
        overrides: `key=value`, in Hydra's syntax, or mappings of dotted names to Python values.

    Raises:
        ConfigError: an invalid study, or an override without effect because of an axis, a stage or a missing sampler.
    """
    given = config.parse(overrides)
    spec = config.compose_study(name, given)
    _warn_of_equal_cells(spec)
    for override in given:
        _check(override, spec)
    if spec.search.sampler is None and spec.search != SearchSpec():
        fields = [name for name, value in vars(spec.search).items() if value != getattr(SearchSpec(), name)]
        raise ConfigError(
            f"search.{fields[0]} has no effect without a sampler. Set search.sampler=auto, or remove the search block."
        )
    changes_cells = ("axes", "references", "let", "scale", *GROUPS)
    if spec.report.claims and not any(override.field.split(".")[0] in changes_cells for override in given):
        from fpl_tune.study import claims  # imports pandas

        claims.check(spec, expand(spec))  # a narrowed study leaves some claims without cells
    search = Search.plan(spec)
    searched = {param.name for part in search.parts for param in part.space.params} if search else set[str]()
    for override in given:
        if override.field in searched:
            value = override.text.partition("=")[2]
            warnings.warn(
                f"{override.text} does not fix {override.field}: the study searches it. Fix it with "
                f"'search.space.{override.field}={{choices:[{value}]}}'.", Notice, stacklevel=2,
            )  # fmt: skip
    return spec


def _check(override: Override, spec: Study) -> None:
    """Rejects an override of a field that an axis or the stages also set; warns if it only affects references."""
    dotted, text = override.field, override.text
    if dotted.split(".")[0] not in GROUPS:
        return
    axis = next((axis for axis, values in axes_of(spec.axes).items() if _sets(axis, values, dotted)), None)
    field, stages = dotted.removeprefix("protocol."), spec.node["stages"]
    if axis is not None:
        wins = f"the study sweeps {axis}. Override the axis, 'axes.{axis}=[...]', or remove it, '~axes.{axis}'."
        if not spec.references:
            raise ConfigError(f"{text} has no effect: {wins}")
        warnings.warn(f"{text} sets references only: {wins}", Notice, stacklevel=3)
    elif field in ("rounds", "epochs") and stages and all(stage.get(field) for stage in stages):
        others = spec.references or "method" in axes_of(spec.axes)  # these may have other stages
        if not others:
            raise ConfigError(f"{text} has no effect: every stage of the method sets {field}. Override stages.")


def _sets(axis: str, values: Sequence[Any], dotted: str) -> bool:
    """True if an axis sets a field in all its cells."""
    if axis == dotted or (axis in GROUPS and dotted.startswith(f"{axis}.")):
        return True
    return all(isinstance(value, Mapping) and dotted in value for value in values)


def _warn_of_equal_cells(spec: Study) -> None:
    """Warns of values or labelled variants with the same configuration, of which only the first runs."""
    labels: dict[str, str] = {}
    for varied, run in grid(spec):
        named, cell = label(varied), config.identity(run)
        if cell in labels:
            warnings.warn(f"{named!r} has the same configuration as {labels[cell]!r}, and only the latter runs.",
                          Notice, stacklevel=3)  # fmt: skip
        labels.setdefault(cell, named)
