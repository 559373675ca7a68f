"""The sources of the learning rates of a study's methods, which readers of its table need to know."""

from __future__ import annotations

from collections.abc import Iterable

from fpl_tune import config, methods
from fpl_tune.config import Study
from fpl_tune.core.formatting import some
from fpl_tune.study.cells import Cell, axes_of, fields_of, is_setting, label

_NAMED = 6
"""Maximum number of cells of one source that the sentence names."""


def note(spec: Study, cells: Iterable[Cell]) -> str:
    """A sentence on the sources of the rates, with the cells of each; empty if all methods have the same source.

    Args:
        spec: the study.
        cells: the cells whose rates are compared. Methods that train nothing have none.
    """
    by_source: dict[str, dict[str, None]] = {}
    kinds: set[str] = set()
    for cell in cells:
        if cell.run.learns:
            by_source.setdefault(_source(spec, cell), {})[_name(spec, cell)] = None
            kinds.add(methods.name_of(cell.run.method))
    if len(by_source) < 2 or len(kinds) < 2:
        return ""
    parts = (f"{some(list(names), _NAMED)}: {source}" for source, names in by_source.items())
    return f"Learning rates come from different sources ({'; '.join(parts)})."


def _name(spec: Study, cell: Cell) -> str:
    """A cell's label without searched fields, and without axes of data, partition and protocol."""
    axes = axes_of(spec.axes) if cell.searched else cell.varied
    parts = {name: {name: value} for name, value in cell.varied.items() if name in axes}
    where = {name for name, overrides in parts.items() if fields_of(overrides) and is_setting(overrides)}
    named = {name: cell.varied[name] for name in parts if name not in where}
    return label(named) if named or not cell.searched else "the trials"


def _source(spec: Study, cell: Cell) -> str:
    """The source of a cell's learning rate, as a phrase."""
    given, written = fields_of(cell.varied), spec.node["optim"]
    if "optim.lr" in given:
        searched = cell.searched and "optim.lr" not in fields_of({n: cell.varied[n] for n in axes_of(spec.axes)})
        return "found by the search" if searched else "given in the study"
    option = given.get("optim", written["name"])
    rate = None if "optim" in given else written["lr"]
    if option == "tuned" and rate is None:
        row, derived = config.tuned_row(cell.run.method) or ("", True)
        parent = f"the row of the parent class{f' {row}' if row else ''} in optim=tuned"
        return parent if derived else "their rows in optim=tuned"
    exists = option in config.options("optim")
    usual = rate is None or (exists and rate == config.choose("optim", option)["optim"]["lr"])
    return f"the default of optim={option}" if usual else "given in the study"
