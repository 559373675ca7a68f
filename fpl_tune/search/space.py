"""Search spaces: which fields are searched, over which Optuna distributions, under which conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import optuna
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import Field
from pydantic.dataclasses import dataclass

from fpl_tune import config, methods
from fpl_tune.config import SearchSpec
from fpl_tune.core.errors import ConfigError, did_you_mean, unknown
from fpl_tune.core.nested import MAPPINGS
from fpl_tune.core.paths import shipped
from fpl_tune.core.spec import SPEC, quoted, validated
from fpl_tune.findings.choice import TUNABLE
from fpl_tune.method import Method
from fpl_tune.search.components import quiet
from fpl_tune.study.cells import SETTING

Distribution: TypeAlias = FloatDistribution | IntDistribution | CategoricalDistribution
Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, config=SPEC)
class SpaceEntry:
    """A field of a search space in YAML: a range or choices."""

    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    choices: Annotated[list[bool | int | float | str | None], Field(min_length=1)] | None = None
    when: dict[str, Any] = field(default_factory=dict)
    """Field -> value, or list of values, for which this field is searched."""


_FOREIGN = {
    "low": ("min", "minimum", "min_value", "lower", "start"),
    "high": ("max", "maximum", "max_value", "upper", "stop", "end"),
    "choices": ("values", "value", "choice", "categories", "categorical", "options", "grid", "grid_search"),
    "step": ("q", "quantization"),
    "low and high": ("range", "bounds", "interval", "uniform", "randint", "int", "float"),
    "low, high and log: true": ("loguniform", "log_uniform", "log_uniform_values", "lograndint", "log_scale"),
    "low and high, with log: true or a step, or choices": ("distribution", "type", "quniform", "normal"),
}
"""Keys of other tools, by the keys of fpl-tune."""
_WORDS = {word: ours for ours, words in _FOREIGN.items() for word in words}


class Param(NamedTuple):
    """A field and its distribution."""

    name: str
    """Dotted name of the field; also the name of Optuna's parameter."""
    distribution: Distribution
    when: Mapping[str, Sequence[Any]] = {}
    """The field is only searched if each of these fields has one of these values."""

    @property
    def ends(self) -> Sequence[Any]:
        """The choices, or both ends of the range."""
        d = self.distribution
        return d.choices if isinstance(d, CategoricalDistribution) else (d.low, d.high)

    def suggest(self, trial: optuna.trial.Trial) -> Any:
        """The trial's value of the field."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return trial.suggest_categorical(self.name, d.choices)
        if isinstance(d, IntDistribution):
            return trial.suggest_int(self.name, d.low, d.high, step=d.step, log=d.log)
        return trial.suggest_float(self.name, d.low, d.high, step=d.step, log=d.log)

    def holds(self, value: Any) -> bool:
        """True if the distribution contains a value of the field."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return value in d.choices
        if not isinstance(value, int | float) or not d.low <= value <= d.high:
            return False
        steps = (value - d.low) / d.step if d.step else 0.0
        return abs(steps - round(steps)) < 1e-8 and (isinstance(d, FloatDistribution) or value == int(value))

    def nearest(self, value: Any) -> Any:
        """The value of the distribution nearest to a number; the first choice for other values."""
        d = self.distribution
        number = value if isinstance(value, int | float) else None
        if isinstance(d, CategoricalDistribution):
            numbers = [c for c in d.choices if isinstance(c, int | float)]
            return min(numbers, key=lambda c: abs(c - number)) if numbers and number is not None else d.choices[0]
        number = d.low if number is None else min(max(number, d.low), d.high)
        # 0.1 + 0.2 * 3 is above 0.7
        return min(d.low + d.step * round((number - d.low) / d.step), d.high) if d.step else number


class Space(NamedTuple):
    """The search space of one method. Parameters follow those that their conditions name."""

    params: tuple[Param, ...]
    published: tuple[dict[str, Any], ...]
    """Points that are tried first, which may leave fields open."""
    outside: tuple[dict[str, Any], ...] = ()
    """Published points with a value outside the space, which are not tried."""
    first: Literal["published", "default"] = "published"
    """The kind of `published`: `default` where none is known, and the run's own values are tried first."""

    def holds(self, point: Mapping[str, Any]) -> bool:
        """True if the space contains a point, which may lack fields that are searched by now."""
        params = {param.name: param for param in self.params}
        return all(name in params and params[name].holds(value) for name, value in point.items())

    def fill(self, node: Mapping[str, Any], given: Mapping[str, Any], value: Callable[[Param], Any]) -> dict[str, Any]:
        """A point: a value for every parameter that is active, given those before it.

        Args:
            node: the run in which the point is set, as a plain dict.
            given: fields that the axes set.
            value: returns the value of a parameter.
        """
        chosen: dict[str, Any] = {}
        for param in self.params:
            fields = {**given, **chosen}
            own = {name: fields.get(name, config.get_field(node, name)) for name in param.when}
            if all(_name(own[name]) in values for name, values in param.when.items()):
                chosen[param.name] = value(param)
        return chosen

    def suggest(self, trial: optuna.trial.Trial, node: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The trial's values of all active fields."""
        return self.fill(node, given, lambda param: param.suggest(trial))

    def complete(self, point: Mapping[str, Any], node: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """A published point with a value for every active field.

        Fields that it leaves open take the study's own value, or the nearest value of their distribution.
        """

        def value(param: Param) -> Any:
            own = point.get(param.name, config.get_field(node, param.name))
            return own if param.holds(own) else param.nearest(own)

        return self.fill(node, given, value)


def _name(value: Any) -> Any:
    """The value of a field; for a group, such as `method`, its name."""
    return value.get("name") if isinstance(value, Mapping) else value


def names_of(node: Mapping[str, Any], option: Any = None) -> list[str]:
    """Possible names of the file of a method's space.

    Its option, compositions of the same methods, and its own name; for a method of a user's file, such as `mine:Mine`,
    also that file's name.
    """
    own, inner = str(node["name"]), _name(node.get("inner"))
    alike = [stem for stem, method in _options().items() if method == (own, inner)]
    return list(dict.fromkeys([*([option] if isinstance(option, str) else []), *alike, own, own.partition(":")[0]]))


@cache
def _options() -> dict[str, tuple[Any, Any]]:
    """The names of each shipped option's method and of the method inside it."""
    options = {}
    for path in sorted(shipped("conf", "method").glob("*.yaml")):
        composed = yaml.safe_load(path.read_text())
        composed = composed.get("method", composed)
        options[path.stem] = composed.get("name"), _name(composed.get("inner"))
    return options


def read_space(
    names: Sequence[str],
    search: SearchSpec,
    axes: Sequence[str],
    node: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> Space:
    """The space of a method: that of its file with the study's own overrides, of fields that the method has.

    Args:
        names: possible names of its file, see `names_of`.
        search: the study's `search`.
        axes: dotted names of the study's axes, and of the fields in its bundles.
        node: the run that is searched. Its integer fields are searched as integers.
        file: content of the file, from `read_file`; None: it is read.

    Raises:
        ConfigError: the space is empty; a field has an unknown key, or an empty or inverted range; a searched field is
            also an axis, or decides on which clients and images trials are compared.
    """
    file = read_file(names) if file is None else file
    overrides = config.flatten(search.space, whole=_is_entry)
    entries: dict[str, Any] = {**file.get("space", {}), **overrides}
    every = {name: _param(name, entry, _is_integer(name, node or {})) for name, entry in entries.items()}
    if node and "method" not in every:
        own = str(node["method"]["name"])
        every = _of_method(every, {own, *names} - {own.rpartition(":")[0]})
        every = {name: param for name, param in every.items() if name not in overrides or _is_field(name, node)}
    if node:
        _check_conditions(every, node)
    searched = {n: param for n, param in every.items() if n in (search.only or every) and n not in search.without}
    if not every:
        raise ConfigError(
            f"A search needs a space, but there is no search_spaces/{names[-1]}.yaml. "
            "Write search.space={<field>: {low: ..., high: ...}}."
        )
    if not searched:
        raise ConfigError(
            f"search.only and search.without leave nothing to search. Keep one of {', '.join(sorted(every))}."
        )
    for name in searched:
        clash = next((a for a in axes if name == a or (name.startswith(f"{a}.") and a != "method")), None)
        if clash is not None:
            raise ConfigError(
                f"A field is an axis or searched, not both, but {name} is both. "
                f"Remove {clash} from axes, or leave it out: search.without=[{name}]."
            )
        if name.partition(".")[0] in SETTING and name not in TUNABLE:
            raise ConfigError(
                "Trials compare on the same data, clients and evaluation, so a search can only vary how clients train, "
                f"but {name} is searched. Make it an axis, axes.{name}=[...], and remove search.space.{name}."
            )
    points = file.get("published", []) if search.published is None else map(config.flatten, search.published)
    points = [{n: v for n, v in point.items() if n in searched} for point in points]
    known = any(points)
    if not known:
        own = {name: config.get_field(node or {}, name) for name in searched}
        points = [{name: value for name, value in own.items() if value is not None}]
    unique = {repr(sorted(point.items())): point for point in points if point}.values()
    inside = [point for point in unique if all(searched[n].holds(v) for n, v in point.items())]
    outside = [point for point in unique if point not in inside]
    params = sorted(searched.values(), key=lambda param: _depth(param, searched))
    return Space(tuple(params), tuple(inside), tuple(outside), "published" if known else "default")


def read_file(names: Sequence[str], kind: type[Method] = Method) -> dict[str, Any]:
    """The space of a method, with the fields that are searched in all methods.

    Args:
        names: names of files in search_spaces/; the first that exists is used.
        kind: the method's class. A class of a user's own also has the space of the nearest method that it derives from,
            but not what is published of that method.
    """
    content = _content(names)
    named = {other: name for name, other in methods.catalogue().items()}
    spaces = [content.get("space", {})]
    if kind not in named:
        spaces.append(_content([named[parent] for parent in kind.__mro__ if parent in named]).get("space", {}))
    if kind.learns:
        spaces.append(_content(["default"])["space"])
    space: dict[str, Any] = {}
    for each in spaces:
        space |= {name: entry for name, entry in each.items() if name not in space}
    return {**content, "space": space} if space else {}


def _content(names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        for path in (Path.cwd() / "search_spaces" / f"{name}.yaml", shipped("search_spaces", f"{name}.yaml")):
            if path.is_file():
                content = config.read_mapping(path, "A search space")
                for key in content.keys() - {"space", "published"}:
                    raise ConfigError(f"{path}: {unknown('field', key, ['space', 'published'])}")
                return content
    return {}


def _of_method(space: Mapping[str, Param], names: Set[str]) -> dict[str, Param]:
    """The fields that are searched for a method, without their condition on it.

    Args:
        space: the fields by name. None of them is the method, which stays the same in a search.
        names: the method's names in conditions.

    Raises:
        ConfigError: a condition names no method.
    """
    own: dict[str, Param] = {}
    for name, param in space.items():
        for method in {*map(str, param.when.get("method", ()))} - {*config.options("method")}:
            try:
                methods.find(method)
            except ConfigError as problem:
                raise ConfigError(f"search.space.{name}.when: {problem}") from None
        if names & {*param.when.get("method", names)}:
            own[name] = param._replace(when={f: values for f, values in param.when.items() if f != "method"})
    return own


def check_names(search: SearchSpec, nodes: Sequence[Mapping[str, Any]], files: Iterable[Mapping[str, Any]]) -> None:
    """Checks that each field that a study's search names is one of at least one of its methods.

    Args:
        search: the study's `search`.
        nodes: the runs that are searched, as plain dicts.
        files: the contents of the files of their spaces.

    Raises:
        ConfigError: no run has a field of `space`, or no space one of `only`, `without` or `published`; or `only` or
            `without` name one twice.
    """
    overrides = config.flatten(search.space, whole=_is_entry)
    owners = {name: node for node in reversed(nodes) for name in config.flatten(node)}
    for name in overrides:
        if not any(_is_field(name, node, any_method="method" in overrides) for node in nodes):
            (nearest,) = get_close_matches(name, owners, n=1, cutoff=0.0)
            raise ConfigError(f"search.space.{name}: {config.no_field(name, owners[nearest])}")
    space = {*overrides, *(name for file in files for name in file.get("space", {}))}
    published = list(dict.fromkeys(name for point in search.published or () for name in config.flatten(point)))
    for key, names in (("only", search.only), ("without", search.without), ("published", published)):
        for name in names:
            if name not in space:
                ways = f"Give it a range: search.space.{name}={{low: ..., high: ...}}." if name in owners else ""
                ways = ways if key != "without" else "Remove it." * (name in owners)
                raise ConfigError(f"search.{key} names {name!r}, which is not in the space. "
                                  f"{ways or did_you_mean(name, space)}")  # fmt: skip
            if names.count(name) > 1:
                raise ConfigError(f"search.{key} names {name!r} twice. Remove one.")


def _check_conditions(space: Mapping[str, Param], node: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if no run has a field that a condition names."""
    for name, param in space.items():
        for other in param.when.keys() - space.keys():
            if not _is_field(other, node, any_method=True):
                raise ConfigError(f"search.space.{name}.when: {config.no_field(other, node)}")


def _is_integer(name: str, node: Mapping[str, Any]) -> bool:
    """True if a field of a run holds integers, by its value or, if that is null, by the method's type."""
    value = config.get_field(node, name)
    if value is not None or not name.startswith("method.") or "method" not in node:
        return type(value) is int
    types = {f"method.{f.name}": str(f.type) for f in methods.hyper_parameters(methods.find(node["method"]["name"]))}
    return types.get(name) == "int | None"


def _is_entry(_: str, node: Mapping[str, Any]) -> bool:
    """True if a mapping in a space is an entry, even an invalid one, and not a group of entries."""
    return not node.keys().isdisjoint({*vars(SpaceEntry()), *_WORDS}) or not any(
        isinstance(value, Mapping | list) for value in node.values()
    )


def _is_field(name: str, node: Mapping[str, Any], *, any_method: bool = False) -> bool:
    """True if a run has a field, also as the rate of a leaf, or, with `any_method`, can have it with another method."""
    inside, _, last = name.rpartition(".")
    parent = config.get_field(node, inside) if inside else node
    if any_method and inside.partition(".")[0] == "method" and methods.owners(last):
        return True
    return inside in MAPPINGS or (isinstance(parent, Mapping) and last in parent)


def _param(name: str, node: Any, integer: bool) -> Param:
    """A parameter from its entry. `integer`: the field holds integers."""
    where = f"search.space.{name}"
    if not isinstance(node, Mapping | list):
        raise ConfigError(f"{where} must be {{low: ..., high: ...}} or a list of choices, but is {quoted(node)}.")
    for word in node:
        if isinstance(node, Mapping) and word in _WORDS:
            raise ConfigError(f"There is no field '{where}.{word}'. Write {_WORDS[word]}.")
    entry = validated(SpaceEntry, {"choices": node} if isinstance(node, list) else node, where)
    when = {str(f): v if isinstance(v, list) else [v] for f, v in entry.when.items()}
    low, high, step = entry.low, entry.high, entry.step
    if entry.choices is not None:
        if entry.log or (low, high, step) != (None, None, None):
            raise ConfigError(f"{where} is a range or choices, but is both: {quoted(node)}. Remove one.")
        return Param(name, CategoricalDistribution(entry.choices), when)
    if low is None or high is None or not low < high or (step or 0) > high - low:
        raise ConfigError(f"{where} must have low < high, and a step up to high - low, or choices, but is {node!r}.")
    try:
        with quiet():
            if not integer:
                return Param(name, FloatDistribution(low, high, entry.log, step), when)
            if all(number.is_integer() for number in (low, high, step or 1.0)):
                return Param(name, IntDistribution(int(low), int(high), entry.log, int(step or 1)), when)
    except ValueError as problem:
        raise ConfigError(f"{where} cannot be {node!r}: {problem}") from None
    raise ConfigError(f"{where} needs integers, but is {node!r}. Write integers for low, high and step.")


def _depth(param: Param, searched: Mapping[str, Param], below: tuple[str, ...] = ()) -> int:
    """The number of conditions that a parameter depends on; those without any come first.

    Raises:
        ConfigError: conditions are circular.
    """
    if param.name in below:
        raise ConfigError(f"Conditions must not be circular, but those of {param.name} are.")
    return max(
        (1 + _depth(searched[f], searched, (*below, param.name)) for f in param.when if f in searched), default=0
    )
