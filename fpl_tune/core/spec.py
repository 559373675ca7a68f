"""Specifications: frozen pydantic dataclasses. pydantic alone checks their types, ranges and unknown fields.

A specification is declared with `@dataclass` of this module. `validated` builds one from plain values and turns
pydantic's errors into a `ConfigError` of one line.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from functools import cache
from string import Formatter
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fpl_tune.core.errors import ConfigError, did_you_mean, nearest, unknown

SPEC = ConfigDict(
    extra="forbid", validate_default=True, coerce_numbers_to_str=True, arbitrary_types_allowed=True, allow_inf_nan=True
)

Spec = TypeVar("Spec")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(kind: type[Spec]) -> type[Spec]:
    """A frozen dataclass that pydantic validates: a specification, or a method with its hyper-parameters."""
    return pydantic.dataclasses.dataclass(frozen=True, config=SPEC)(kind)  # pyright: ignore[reportReturnType]


AtLeastOne = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Rate
"""Weight of a loss term."""
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


UNTIL_DECIDED = "until_decided"
"""Value of `seeds` with which seeds are added until all comparisons are decided."""
LOOKS = (3, 5, 8, 12, 20)
"""Numbers of seeds after which they are compared."""


class Seeds:
    """The meaning of the fields `seeds` and `looks` of a study, composed or stored."""

    seeds: Any
    looks: Any

    def seed_list(self) -> list[int]:
        """All seeds of the study. A number n stands for 1..n, `until_decided` for the seeds of the last look."""
        return self._listed(self.looks[-1])

    def first_seeds(self) -> list[int]:
        """The seeds that every cell runs: those of the first look with `until_decided`, else all."""
        return self._listed(self.looks[0])

    def declared_looks(self) -> list[int]:
        """The looks of a study with `seeds=until_decided`; [] for other studies."""
        return list(self.looks) if self.seeds == UNTIL_DECIDED else []

    def _listed(self, look: int) -> list[int]:
        if isinstance(self.seeds, list):
            return self.seeds
        return list(range(1, 1 + (self.seeds if isinstance(self.seeds, int) else look)))


def with_place(template: str, or_else: str = "") -> str:
    """The template, if it has exactly one {} for the class name.

    Args:
        template: the sentence.
        or_else: other valid values, for the message.

    Raises:
        ValueError: there is no {}, or more than one, or another brace.
    """
    try:
        fields = [field for _, *field in Formatter().parse(template) if field[0] is not None]
    except ValueError:  # a brace that is not closed, or not opened
        fields = []
    if fields != [["", "", None]]:
        raise ValueError(f"must be {or_else}a string with {{}} once for the class name, and no other braces")
    return template


_KINDS = {
    "float": "must be a number",
    "int": "must be an integer",
    "bool": "must be true or false",
    "string": "must be a string",
    "str": "must be a string",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be a mapping of names to values",
    "dataclass": "must be a mapping of its fields",
    "finite": "must be a finite number",
}
_CONVERSIONS = {
    (str, bool), (str, int), (str, float), (bool, int), (bool, float), (int, bool), (float, bool), (float, str),
}  # fmt: skip
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def validated(kind: type[Spec], values: Any, where: str) -> Spec:
    """A specification built from plain values.

    Args:
        kind: a pydantic dataclass.
        values: a mapping of field names to values, or an instance, which is returned as it is.
        where: dotted name of the specification in the configuration, such as `optim`; "" at the top.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type or outside its range.
    """
    if isinstance(values, Mapping):
        field_names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
        for name in values:
            if name not in field_names:
                raise unknown("field", join_name(where, name), [join_name(where, field) for field in field_names])
    try:
        made: Any = _adapter(kind).validate_python(values)
    except ValidationError as problem:
        raise config_error(problem, where, kind) from None
    reject_conversions(values, made, where)
    return made


def reject_conversions(given: Any, made: Any, where: str) -> None:
    """Rejects values that pydantic converted: strings to numbers, `true` to 1, 1.10 to the string "1.1".

    An integer may stand for a float or a string, and 3.0 for 3.

    Args:
        given: plain values.
        made: the values that pydantic made of them.
        where: their dotted name.

    Raises:
        ConfigError: a value was converted, or is the string "None".
    """
    if isinstance(given, Mapping):
        inside = made.values() if isinstance(made, Mapping) else (getattr(made, name) for name in given)
        for (name, value), other in zip(given.items(), inside, strict=True):
            reject_conversions(value, other, join_name(where, name))
    elif isinstance(given, list) and isinstance(made, list | tuple):
        for i, (one, other) in enumerate(zip(given, made, strict=False)):
            reject_conversions(one, other, join_name(where, i))
    elif given == "None" and not {"label", "names"} & set(where.split(".")):  # else a label or a class's own name
        raise ConfigError(f"{where} is the string 'None'. Write null.")
    elif (type(given), type(made)) in _CONVERSIONS:
        quote = " Quote it." if isinstance(made, str) else ""
        raise ConfigError(f"{where} {_KINDS[type(made).__name__]}, but is {quoted(given)}.{quote}")


def _fields_of(kind: Any, path: Sequence[Any]) -> list[str]:
    """The fields of the specification at a path inside another one; [] if there is no specification."""
    for name in path:
        kind = get_type_hints(kind).get(str(name)) if is_dataclass(kind) else None
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def config_error(problem: ValidationError, where: str, of: Any = None) -> ConfigError:
    """pydantic's first error as a `ConfigError` of one line with field, rule and value; `of` is the specification."""
    first = problem.errors(include_url=False)[0]
    kind, value, details = first["type"], first["input"], first.get("ctx", {})
    name = join_name(where, *_path(first["loc"]))
    if kind == "literal_error":
        choices = [text.strip("' ") for text in details["expected"].replace(" or ", ", ").split(",")]
        return unknown(name, str(value), choices)
    if kind == "unexpected_keyword_argument":
        *inside, last = _path(first["loc"])
        similar = [join_name(where, *inside, each) for each in nearest(str(last), _fields_of(of, inside))]
        return ConfigError(f"There is no field {name!r}. {did_you_mean(name, similar) if similar else ''}".rstrip())
    if kind in ("missing", "string_too_short", "too_short"):
        return ConfigError(f"{name} is missing. Give it a value.")
    if kind == "value_error":
        text = str(details["error"])  # a rule, or of several fields together a whole sentence
        return ConfigError(text if text.endswith(".") or not name else f"{name} {text}, but is {quoted(value)}.")
    for bound in _SIGNS.keys() & details.keys():
        limit = details[bound] if isinstance(details[bound], int) else f"{details[bound]:g}"
        return ConfigError(f"{name} must be {_SIGNS[bound]} {limit}, but is {quoted(value)}.")
    if value is None:
        return ConfigError(f"{name} cannot be null. Leave it out, or remove it: '~{name}'.")
    rule = _KINDS.get("int" if kind == "int_from_float" else kind.partition("_")[0])
    rule = rule or first["msg"].replace("Input should be", "must be")
    remedy = " Write null." if str(value).lower() == "none" else ""
    return ConfigError(f"{name} {rule}, but is {quoted(value)}.{remedy}")


def quoted(value: Any) -> str:
    """A value for messages, shortened to one line."""
    return " ".join(_short.repr(value).split())


def join_name(*parts: object) -> str:
    """A dotted name from its parts; empty parts are left out."""
    return ".".join(str(name) for name in parts if name != "")


def _path(loc: Sequence[int | str]) -> list[str]:
    """The fields in a location of pydantic, without branches of a union such as `int` or `list[int]`."""
    return [str(step) for step in loc if isinstance(step, int) or (step.isidentifier() and step not in _BRANCHES)]


_BRANCHES = ("int", "float", "str", "bool", "dict", "list", "tuple")


@cache
def _adapter(kind: type[Spec]) -> TypeAdapter[Spec]:
    return TypeAdapter(kind)
