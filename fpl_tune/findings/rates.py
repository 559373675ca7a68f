"""The sources of the learning rates of a study's methods, which readers of its table need to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fpl_tune import config, methods
from fpl_tune.config import Study
from fpl_tune.core.formatting import counted, some
from fpl_tune.study.cells import Cell, axes_of, fields_of, is_setting, label

_NAMED = 6
"""Maximum number of cells of one source that the sentence names."""


def note(spec: Study, cells: Iterable[Cell]) -> str:
    """Sentences on the sources of the rates, if those of methods differ, and on rows of `optim=tuned` that were chosen
    under other data, towers or schedules, with the cells of each; empty if there is nothing to say.

    Args:
        spec: the study.
        cells: the cells whose rates are compared. Methods that train nothing have none.
    """
    learning = [cell for cell in cells if cell.run.learns]
    return " ".join(filter(None, (_sources(spec, learning), _tuned_elsewhere(spec, learning))))


def _sources(spec: Study, cells: Iterable[Cell]) -> str:
    by_source: dict[str, dict[str, None]] = {}
    kinds: set[str] = set()
    for cell in cells:
        by_source.setdefault(_source(spec, cell), {})[_name(spec, cell)] = None
        kinds.add(methods.name_of(cell.run.method))
    if len(by_source) < 2 or len(kinds) < 2:
        return ""
    parts = (f"{some(list(names), _NAMED)}: {source}" for source, names in by_source.items())
    return f"Learning rates come from different sources ({'; '.join(parts)})."


def _tuned_elsewhere(spec: Study, cells: Iterable[Cell]) -> str:
    by_protocol: dict[str, dict[str, None]] = {}
    for cell in cells:
        run = cell.run
        row = config.tuned_row(run.method, run.clip.name, run.data.name) if _takes_row(spec, cell) else None
        if row is None:
            continue
        under = row.under
        schedule = {"rounds": run.protocol.rounds, "epochs": run.protocol.epochs}
        here = {"data": run.data.name, "clip": run.clip.name, **schedule}
        world = any(here[name] != under[name] for name in ("data", "clip"))
        text = f"{_protocol(under, world)}, here {_protocol(here, world)}" if here != under else ""
        by_protocol.setdefault(text, {})[_name(spec, cell)] = None
    named = {text: f"{some(list(names), _NAMED)}: {text}" for text, names in by_protocol.items() if text}
    parts = named.values() if len(by_protocol) > 1 else named
    where = f"were chosen under another protocol ({'; '.join(parts)})"
    return f"Rows of optim=tuned {where}: other rates may be better." if named else ""


def _protocol(node: Mapping[str, Any], world: bool) -> str:
    """`20 rounds of 1 epoch`, with data and towers if asked for."""
    text = f"{counted(node['rounds'], 'round')} of {node['epochs']:g} epoch{'s' * (node['epochs'] != 1)}"
    return f"{text} on {node['data']} with {node['clip']}" if world else text


def _name(spec: Study, cell: Cell) -> str:
    """A cell's label without searched fields, and without axes of data, partition, protocol and clients."""
    axes = axes_of(spec.axes) if cell.searched else cell.varied
    parts = {name: {name: value} for name, value in cell.varied.items() if name in axes}
    where = {name for name, overrides in parts.items() if fields_of(overrides) and is_setting(overrides)}
    named = {name: cell.varied[name] for name in parts if name not in where}
    return label(named).replace(", ", " ") if named or not cell.searched else "the trials"  # commas separate cells


def _takes_row(spec: Study, cell: Cell) -> bool:
    """True if a cell takes its learning rate from a row of `optim=tuned`."""
    given, written = fields_of(cell.varied), spec.node["optim"]
    usual = given["optim"] == "tuned" if "optim" in given else (written["name"], written["lr"]) == ("tuned", None)
    return usual and "optim.lr" not in given


def _source(spec: Study, cell: Cell) -> str:
    """The source of a cell's learning rate, as a phrase."""
    given, written = fields_of(cell.varied), spec.node["optim"]
    if "optim.lr" in given:
        searched = cell.searched and "optim.lr" not in fields_of({n: cell.varied[n] for n in axes_of(spec.axes)})
        return "found by the search" if searched else "given in the study"
    if _takes_row(spec, cell):
        row = config.tuned_row(cell.run.method, cell.run.clip.name, cell.run.data.name)
        parent = f"the row of the parent class{f' {row.method}' if row else ''} in optim=tuned"
        return parent if row is None or row.derived else "their rows in optim=tuned"
    option = given.get("optim", written["name"])
    rate = None if "optim" in given else written["lr"]
    exists = option in config.options("optim")
    usual = rate is None or (exists and rate == config.choose("optim", option)["optim"]["lr"])
    return f"the default of optim={option}" if usual else "given in the study"
