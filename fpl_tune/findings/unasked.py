"""Cells with results that today's study does not ask for, which are in no table, and how to see them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import Any

from fpl_tune.core.formatting import counted, numeric
from fpl_tune.core.nested import flatten, get_field
from fpl_tune.study import schema
from fpl_tune.study.cells import Cell, axes_of, confirming_id, is_bundle, label, shown
from fpl_tune.study.schema import CellFile, DamagedFile
from fpl_tune.study.store import Store

_BROUGHT = {"method": ("stages", "optim.groups"), "data": ("partition",)}
"""Group -> other fields that choosing one of its options may also set."""
_AXES = "a value that its axes lack"


@dataclass(frozen=True)
class Unasked:
    """The cells of a store that have results and that a study does not ask for.

    Those that confirm a search are not among them while its trial is asked for: they return once it is over.
    """

    store: Store
    node: Mapping[str, Any]
    """The study, as a plain mapping."""
    cells: Sequence[Cell]
    """The cells that it asks for."""

    @cached_property
    def files(self) -> list[CellFile]:
        """What is on disk of them, without damaged files, which matter once they are asked for."""
        asked, files = {key for cell in self.cells for key in (cell.id, confirming_id(cell.id))}, list[CellFile]()
        for key in self.store.ids():
            if key not in asked and self._seeds(key):
                with suppress(DamagedFile):
                    files.append(schema.read_cell(self.store.folder / "cells" / key / "cell.json"))
        return files

    def _seeds(self, key: str) -> int:
        """The number of seeds of a cell that have a result."""
        return len([*(self.store.folder / "cells" / key).glob("seed=*/result.json")])

    def note(self) -> str:
        """`7 cells with results are not asked for: 'axes.method.lam=[0,0.5,1]' shows them too`; empty without any."""
        by_change: dict[str, list[CellFile]] = {}
        for file in self.files:
            by_change.setdefault(self._change(file), []).append(file)
        if not by_change:
            return ""
        number, listing = len(self.files), f"fpl-tune ls studies {self.node['name']} lists them"
        (change, *others), remedy = by_change, listing
        if wider := by_change.get(_AXES):
            number, remedy = len(wider), f"{self._wider(wider)} shows them too"
        elif change and not others:
            remedy = f"{change} shows them"
        text = f"{counted(number, 'cell')} with results {'is' if number == 1 else 'are'} not asked for: {remedy}"
        rest = len(self.files) - number
        return text if not rest else f"{text}; of {counted(rest, 'other cell')}, {listing}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell: its fields that varied, its id, its seeds, and in what it differs."""
        return [
            {"cell": label(file.varied), "id": file.id, "seeds": self._seeds(file.id),
             "differs by": self._change(file) or "being a reference, a trial, or a step of an ablation"}
            for file in self.files
        ]  # fmt: skip

    @cached_property
    def _alike(self) -> dict[str, dict[str, Any]]:
        """The configuration of the first cell of each method, with flat names."""
        return {str(cell.node["method"]["name"]): flatten(cell.node) for cell in reversed(self.cells)}

    def _change(self, file: CellFile) -> str:
        """The overrides in which a cell differs from those that are asked for, apart from fields that vary; or that
        axes lack its value; empty where it is of another kind, such as a reference."""
        axes, own = axes_of(self.node["axes"]), _without_params(file)
        free = {name for varied in (file.varied, axes) for name in _names(varied)}
        mine = flatten(file.run)
        theirs = self._alike.get(str(file.run["method"]["name"])) or next(iter(self._alike.values()), mine)
        differing = [
            name
            for name in {**mine, **theirs}
            if mine.get(name) != theirs.get(name)
            and not any(name == field or name.startswith(f"{field}.") for field in free)
        ]
        if differing:
            return " ".join(quote(f"{name}={_text(mine.get(name))}") for name in differing)
        same_kind = (file.suggestion is not None) == (self.node["search"]["sampler"] is not None)
        plain = not any(isinstance(value, Mapping | list) for value in own.values())
        return _AXES if own and same_kind and plain and axes.keys() <= own.keys() else ""

    def _wider(self, files: Sequence[CellFile]) -> str:
        """The overrides with which the axes have the values of these cells too."""
        stated, values = axes_of(self.node["axes"]), axes_of(self.node["axes"])
        for name, value in (item for file in files for item in _without_params(file).items()):
            axis = values.setdefault(name, [self._usual(name)])
            axis += [value] if value not in axis else []
        wider = {name: sorted(v) if numeric(v) else v for name, v in values.items() if v != stated.get(name)}
        return " ".join(quote(f"axes.{name}=[{','.join(map(_text, v))}]") for name, v in wider.items())

    def _usual(self, name: str) -> Any:
        """The study's own value of a field; of a group, its option's name."""
        value = get_field(self.node, name)
        return value.get("name") if isinstance(value, Mapping) else value


def _text(value: Any) -> str:
    """A value in an override."""
    return "null" if value is None else value if isinstance(value, str) else shown(value)


def _without_params(file: CellFile) -> dict[str, Any]:
    """The fields that varied in a cell, without those that a search suggested and without its label."""
    params = file.suggestion.params if file.suggestion is not None else {}
    return {name: value for name, value in file.varied.items() if name not in params and name != "label"}


def _names(varied: Mapping[str, Any]) -> set[str]:
    """Names of the fields and groups that may differ, including those within bundles."""
    bundles = [
        bundle
        for name, value in varied.items()
        for bundle in (value if isinstance(value, list) else [value])
        if is_bundle(name, bundle)
    ]
    names = {*varied, *(name for bundle in bundles for name in (*bundle, *flatten(bundle)))}
    return names | {brought for name in names & _BROUGHT.keys() for brought in _BROUGHT[name]}
