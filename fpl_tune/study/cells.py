"""Cells, the configurations of a study, and their texts in labels and tables. Needs neither PyTorch nor Hydra."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import digest
from fpl_tune.core.formatting import titles
from fpl_tune.core.nested import GROUPS, MAPPINGS, flatten

if TYPE_CHECKING:
    from fpl_tune.config import RunSpec

SETTING = ("data", "partition", "protocol", "clients")
"""Groups of fields that say where a cell runs, not what it runs."""
Role = Literal["cell", "reference", "trial", "tuned", "published", "ablation"]
"""A cell of a grid, a reference, a trial of a search, the confirmation of a search's chosen or published point on fresh
seeds, or a step of an ablation."""


@dataclass(frozen=True)
class Suggestion:
    """A suggested point, as it was suggested: later edits of the study do not change it."""

    number: int
    """Within its search, from 0. Points that were rejected or repeated leave gaps."""
    params: dict[str, Any]
    """The values of the searched fields."""
    seeds: Sequence[int]
    """The seeds of the study at that time, whose results the sampler saw."""
    hedged: bool = False
    """True if the trial passes all rungs but the last one, whatever its value."""
    attrs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Attributes that the sampler has set, of its trial and of its study."""


@dataclass(frozen=True)
class Cell:
    """One configuration of a study, without its seed, and what it is in the study.

    What it is follows from the study file alone, and changes with it: see `execute.asked`, which computes it, and
    cells.json, from which readers have it.
    """

    id: str
    """See `config.identity`."""
    number: int
    """Position in the study, from 0."""
    label: str
    """The fields that vary, such as "lam=0.5"; for references "promptfl"."""
    role: Role
    varied: dict[str, Any]
    """Dotted field (or group) -> value."""
    source: RunSpec | Mapping[str, Any] = field(compare=False, repr=False)
    """The typed run where one was composed, or its plain mapping as it was read; see `run` and `node`."""
    reference: str = ""
    """The label as a reference, of another cell that is also a reference."""
    step: bool = False
    """True for a step of an ablation that is another cell too."""
    search: str = ""
    """The label of the cell of the axes in which the point was searched; empty for a cell that was not."""
    first: Literal["", "published", "default"] = ""
    """The kind of a search's first point, such as a published one; empty for other cells."""
    inside: bool = True
    """True if the point lies in the search space."""
    suggestion: Suggestion | None = field(default=None, compare=False, repr=False)
    """The suggestion of a trial, or of the trial that is confirmed; None for other cells."""
    _rounds: int = field(default=0, compare=False, repr=False)
    """The rounds in cell.json; 0 for a cell that was not read from a file."""

    @cached_property
    def rounds(self) -> int:
        """Communication rounds; see `RunSpec.rounds`."""
        return self._rounds or self.run.rounds

    @cached_property
    def eval_every(self) -> int:
        """Rounds between evaluations."""
        run = self.source
        return run["protocol"]["eval_every"] if isinstance(run, Mapping) else run.protocol.eval_every

    @cached_property
    def run(self) -> RunSpec:
        """The typed run; composed, which takes PyTorch, where the cell was read from a file.

        Raises:
            ConfigError: the stored run has a field or value that this release rejects.
        """
        if not isinstance(self.source, Mapping):
            return self.source
        from fpl_tune import config

        try:
            return config.to_run(self.source, stored=True)
        except (ConfigError, KeyError, AttributeError, TypeError) as problem:
            raise ConfigError(f"Cell {self.id} ({self.label}) cannot be composed: {problem}") from None

    @cached_property
    def node(self) -> Mapping[str, Any]:
        """The run as a plain mapping, in JSON's types."""
        if isinstance(self.source, Mapping):
            return self.source
        from fpl_tune import config

        return json.loads(json.dumps(config.as_dict(self.source)))

    @property
    def title(self) -> str:
        """The label in tables, with its label as a reference if that is another one."""
        return f"{self.label}{self.reference_note}"

    @property
    def reference_note(self) -> str:
        """` (reference NAME)`; empty for a cell without another label as a reference."""
        reference = self.reference.removesuffix(f", {self.label}")
        return "" if reference in ("", self.label) else f" (reference {reference})"

    @property
    def candidate(self) -> bool:
        """True if the cell may be chosen as the best: references and steps of an ablation may not."""
        return self.role in ("cell", "trial", "tuned")

    @property
    def searched(self) -> bool:
        """True for a point of a search: a trial, or the confirmation of one."""
        return self.role in ("trial", "tuned", "published")

    @property
    def trial_number(self) -> int:
        """The number of a trial within its search; for other cells, their number in the study."""
        return self.number if self.suggestion is None else self.suggestion.number

    @property
    def hedged(self) -> bool:
        """True for a trial that passes all rungs but the last one, whatever its value."""
        return self.suggestion is not None and self.suggestion.hedged

    @property
    def published(self) -> bool:
        """True for a first point of a search: a published one or, where none is known, the run's own values."""
        return self.first != ""

    @property
    def completes(self) -> bool:
        """True for a trial that is never stopped early, since others are compared with it."""
        return self.reference != "" or self.step

    @property
    def is_reference(self) -> bool:
        """True if other cells are compared with this one, which may also be a trial."""
        return self.role == "reference" or self.reference != ""


def confirming_id(key: str) -> str:
    """The id of the cell that runs a configuration on the seeds that confirm a search.

    Args:
        key: the configuration's own id, which the trial has.
    """
    return digest(f"confirm {key}")


_PRINTS = {"method": "method source", "data": "data", "weights": "weights"}


def changed_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names the parts in which two fingerprints differ, apart from versions of packages; empty if either is empty."""
    return [word for key, word in _PRINTS.items() if one and other and one.get(key) != other.get(key)]


def axes_of(axes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Axes as dotted name -> values, nested mappings flattened.

    Raises:
        ConfigError: an axis is not a list of values, or is empty.
    """
    by_name = flatten(axes)
    for dotted, values in by_name.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            axis, *names = dotted.split(".")
            variants = f"{axis}=[{{label: {names[0]}, method.lam: 0.5}}, ...]" if names and axis not in GROUPS else ""
            raise ConfigError(
                f"An axis is a list of at least one value, but axes.{dotted} is {values!r}. Write axes."
                f"{variants or f'{dotted}=[a,b]'}."
            )
    return {dotted: list(values) for dotted, values in by_name.items()}


def is_bundle(name: str, value: Any) -> bool:
    """True for a value of an axis that sets fields by name: a mapping with a label, or of an axis that is no field."""
    return isinstance(value, Mapping) and name not in MAPPINGS and (name not in GROUPS or "label" in value)


def unfold(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of a bundle by dotted name. Groups come first, since they bring the fields that others set.

    Raises:
        ConfigError: its label is not a string.
    """
    if not isinstance(bundle.get("label", ""), str):
        raise ConfigError(f"A label must be a string, but is {bundle['label']!r}. Quote it.")
    overrides: dict[str, Any] = {}
    for name, value in bundle.items():
        if isinstance(value, Mapping) and name not in MAPPINGS and not (name == "method" and "name" in value):
            overrides.update({f"{name}.{inner}": inside for inner, inside in unfold(cast(Any, value)).items()})
        else:
            overrides[name] = value
    return dict(sorted(overrides.items(), key=lambda item: item[0] not in GROUPS))


def fields_of(varied: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides by dotted name, including those inside bundles, without labels.

    Raises:
        ConfigError: two axes, or an axis and a bundle, set the same field.
    """
    overrides: dict[str, Any] = {}
    for name, value in varied.items():
        for dotted, own in unfold(value if is_bundle(name, value) else {name: value}).items():
            if dotted in overrides and dotted != "label":
                raise ConfigError(
                    f"A cell gets {dotted} twice, {overrides[dotted]!r} and {own!r}. Vary it in one axis."
                )
            overrides[dotted] = own
    overrides.pop("label", None)
    return overrides


def is_setting(varied: Mapping[str, Any]) -> bool:
    """True if all varied fields say where a cell runs (data, partition, protocol, clients), not what it runs."""
    return all(name.partition(".")[0] in SETTING for name in fields_of(varied))


def label(varied: Mapping[str, Any]) -> str:
    """A short text of the fields that vary: the last part of each name, and only the option of a group."""
    short = titles(map(str, varied))  # a class name may be a number
    parts = []
    for name, value in varied.items():
        if isinstance(value, Mapping):
            parts.append(shown(value))
        elif name == "label":
            parts.append(value)
        elif name in GROUPS:
            parts.append(shown(value))
        else:
            parts.append(f"{short[str(name)]}={shown(value)}")
    return ", ".join(parts) or "base"


def axes_label(cell: Cell, axes: Collection[str]) -> str:
    """The label of a cell's values on some axes; empty if it varies none of them."""
    varied = {name: value for name, value in cell.varied.items() if name in axes}
    return label(varied) if varied else ""


CLASS = re.compile(r"[A-Za-z_][\w.]*:([A-Za-z_]\w*)")
"""A class of a user's file: `module:Class`."""


def shown(value: Any, digits: int = 6) -> str:
    """A value as text in a label; tables show numbers with fewer digits, and of `module:Class` the class alone."""
    if isinstance(value, Mapping):
        return str(value["label"]) if "label" in value else label(unfold(value))
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        return "+".join(shown(v, digits) for v in value)
    if isinstance(value, str):
        return named[1] if (named := CLASS.fullmatch(value)) else value
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def field_text(cell: Cell, name: str) -> str:
    """A field of a cell as text in a table, numbers with three digits; `–` if the cell does not vary it."""
    return shown(cell.varied[name], 3) if name in cell.varied else "–"
