"""Search spaces: which fields are searched, over which Optuna distributions, under which conditions."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import optuna
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fpl_tune import config, methods
from fpl_tune.config import SearchSpec
from fpl_tune.errors import ConfigError, did_you_mean
from fpl_tune.paths import shipped

Distribution: TypeAlias = FloatDistribution | IntDistribution | CategoricalDistribution

_KEYS = ("low", "high", "log", "step", "int", "choices", "when")


@dataclass(frozen=True)
class Param:
    """A field and its distribution."""

    name: str
    """Dotted name of the field; also the name of Optuna's parameter."""
    distribution: Distribution
    choices: tuple[Any, ...] = ()
    """Values of a categorical distribution as the field takes them; Optuna stores lists and mappings as text."""
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """The field is searched only where each of these fields has one of these values."""

    def suggest(self, trial: optuna.trial.Trial) -> Any:
        """The trial's value of the field."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return self.choices[d.choices.index(trial.suggest_categorical(self.name, d.choices))]
        if isinstance(d, IntDistribution):
            return trial.suggest_int(self.name, d.low, d.high, step=d.step, log=d.log)
        return trial.suggest_float(self.name, d.low, d.high, step=d.step, log=d.log)

    def holds(self, value: Any) -> bool:
        """Whether the distribution contains a value of the field."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return value in self.choices
        if not isinstance(value, int | float):
            return False
        return d.low <= value <= d.high and (isinstance(d, FloatDistribution) or value == int(value))

    def nearest(self, value: Any) -> Any:
        """The value of the distribution nearest to a number; the first choice for other values."""
        d = self.distribution
        number = value if isinstance(value, int | float) else None
        if isinstance(d, CategoricalDistribution):
            numbers = [c for c in self.choices if isinstance(c, int | float)]
            return min(numbers, key=lambda c: abs(c - number)) if numbers and number is not None else self.choices[0]
        return d.low if number is None else min(max(number, d.low), d.high)

    def values(self) -> tuple[Any, ...]:
        """All values in order; empty where there are infinitely many."""
        d = self.distribution
        if isinstance(d, CategoricalDistribution):
            return self.choices
        if d.log or d.step is None:
            return ()
        count = math.floor((d.high - d.low) / d.step + 1e-9) + 1
        return tuple(d.low + i * d.step for i in range(count))


@dataclass(frozen=True)
class Space:
    """The search space of one method. Parameters follow those that their conditions name."""

    params: tuple[Param, ...]
    published: tuple[dict[str, Any], ...]
    """Points of the papers; each may leave fields open."""

    @property
    def searches_methods(self) -> bool:
        """Whether the method itself is searched."""
        return any(param.name == "method" for param in self.params)

    def active(self, chosen: Mapping[str, Any], node: Mapping[str, Any], param: Param) -> bool:
        """Whether a parameter is searched, given the values chosen before and the run that they go into."""
        for field, values in param.when:
            value = chosen.get(field, config.get_field(node, field))
            if isinstance(value, Mapping):
                value = value.get("name")
            if value not in values:
                return False
        return True

    def suggest(self, trial: optuna.trial.Trial, node: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The trial's values of all active fields."""
        return self._fill(node, given, lambda param: param.suggest(trial))

    def _fill(self, node: Mapping[str, Any], given: Mapping[str, Any], value: Callable[[Param], Any]) -> dict[str, Any]:
        """A point: the value of every parameter that is active, given those before it."""
        chosen: dict[str, Any] = {}
        for param in self.params:
            if self.active({**given, **chosen}, node, param):
                chosen[param.name] = value(param)
        return chosen

    def complete(self, point: Mapping[str, Any], node: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """A published point with a value for every active field.

        Fields that it leaves open take the study's own value, or the nearest value of their distribution.
        """

        def value(param: Param) -> Any:
            own = point.get(param.name, config.get_field(node, param.name))
            return own if param.holds(own) else param.nearest(own)

        return self._fill(node, given, value)

    def point_of(self, node: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The values that a run has in this space; None where one lies outside."""

        def value(param: Param) -> Any:
            own = config.get_field(node, param.name)
            return own["name"] if param.name == "method" else own

        point = self._fill(node, given, value)
        return point if all(param.holds(point[param.name]) for param in self.params if param.name in point) else None

    def stored(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """A point as Optuna stores it."""
        return {name: outward(value) for name, value in point.items()}

    def grid(self, node: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Every combination, inactive parameters left out, none twice.

        Raises:
            ConfigError: a parameter has infinitely many values.
        """
        for param in self.params:
            if not param.values():
                low, high = param.distribution.low, param.distribution.high  # type: ignore[union-attr]
                raise ConfigError(
                    f"search.sampler=grid needs finitely many values, but {param.name} lies in [{low:g}, {high:g}]. "
                    "Give it a step or choices, or use sampler=tpe."
                )
        seen: set[str] = set()
        for values in itertools.product(*(param.values() for param in self.params)):
            named = dict(zip((param.name for param in self.params), values, strict=True))
            chosen = self._fill(node, given, lambda param, named=named: named[param.name])
            if repr(chosen) not in seen:
                seen.add(repr(chosen))
                yield chosen


def outward(value: Any) -> Any:
    """A choice as Optuna stores it: lists and mappings as text."""
    return value if isinstance(value, None | bool | int | float | str) else json.dumps(value)


def names_of(node: Mapping[str, Any], option: Any = None) -> list[str]:
    """Possible file names of a method's space: its option, compositions of the same methods, its own name."""
    alike = []
    for path in sorted(shipped("conf", "method").glob("*.yaml")):
        composed = yaml.safe_load(path.read_text())
        composed = composed.get("method", composed)
        inner = [n["inner"].get("name") if isinstance(n.get("inner"), Mapping) else None for n in (composed, node)]
        if composed.get("name") == node["name"] and inner[0] == inner[1]:
            alike.append(path.stem)
    return [*([option] if isinstance(option, str) else []), *alike, str(node["name"])]


def read_space(
    names: Sequence[str], search: SearchSpec, axes: Sequence[str], node: Mapping[str, Any] | None = None
) -> Space:
    """The space of a method, with the schedule's fields and the study's own overrides.

    Args:
        names: names of files in search_spaces/; the first that exists counts.
        search: the study's `search`.
        axes: dotted names of the study's axes.
        node: the run that is searched. Its integer fields are searched as integers.

    Raises:
        ConfigError: the space does not exist, a key is unknown, a range is empty or inverted, an axis is searched too.
    """
    stored = _file(names)
    schedule = _file(["schedule"])["space"] if stored else {}
    entries: dict[str, Any] = {**stored.get("space", {}), **schedule, **config.flatten(search.space, whole=_is_entry)}
    if search.only:
        for name in search.only:
            if name not in entries:
                raise ConfigError(f"search.only names {name!r}. {did_you_mean(name, entries)}")
        entries = {name: entries[name] for name in entries if name in search.only}
    if not entries:
        raise ConfigError(
            f"A search needs a space, but there is no search_spaces/{names[0]}.yaml. "
            "Write search.space={<field>: {low: ..., high: ...}}."
        )
    for name in entries:
        clash = next((a for a in axes if name == a or (name.startswith(f"{a}.") and a != "method")), None)
        if clash is not None:
            raise ConfigError(
                f"A field is an axis or searched, not both, but {name} is both. "
                f"Remove axes.{clash}, or name what is searched in search.only."
            )
    params = _ordered([_param(name, entry, _is_integer(name, node or {})) for name, entry in entries.items()])
    by_name = {param.name: param for param in params}
    published = []
    for point in stored.get("published", []):
        known = {name: value for name, value in point.items() if name in by_name}
        if known and all(by_name[name].holds(value) for name, value in known.items()):
            published.append(known)
    unique = {repr(sorted(point.items())): point for point in published}
    return Space(params, tuple(unique.values()))


def _file(names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        for path in (Path.cwd() / "search_spaces" / f"{name}.yaml", shipped("search_spaces", f"{name}.yaml")):
            if path.is_file():
                return config.read_mapping(path, "A search space")
    return {}


def _is_entry(name: str, node: Mapping[str, Any]) -> bool:
    """Whether a mapping is a field's entry, not a group of fields."""
    return not set(node).isdisjoint(_KEYS)


def _is_integer(name: str, node: Mapping[str, Any]) -> bool:
    """Whether a field of a run holds integers: by its value, or by the method's type where that is null."""
    value = config.get_field(node, name)
    if value is not None or not name.startswith("method.") or "method" not in node:
        return type(value) is int
    types = {f"method.{f.name}": str(f.type) for f in methods.hyper_parameters(methods.find(node["method"]["name"]))}
    return types.get(name) == "int | None"


def _param(name: str, node: Any, integer: bool) -> Param:
    """A parameter from its entry. `integer`: the field holds integers."""
    if isinstance(node, list):
        node = {"choices": node}
    if not isinstance(node, Mapping):
        raise ConfigError(f"search.space.{name} must be {{low, high}} or {{choices}}, but is {node!r}.")
    for key in node:
        if key not in _KEYS:
            raise ConfigError(f"search.space.{name} has no key {key!r}. {did_you_mean(key, _KEYS)}")
    when = tuple((str(f), tuple(v) if isinstance(v, list) else (v,)) for f, v in (node.get("when") or {}).items())
    if "choices" in node:
        choices = node["choices"]
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"search.space.{name}.choices must name at least one value, but is {choices!r}.")
        return Param(name, CategoricalDistribution([outward(c) for c in choices]), tuple(choices), when)
    return Param(name, _range(name, node, integer), when=when)


def _range(name: str, node: Mapping[str, Any], integer: bool) -> Distribution:
    try:
        low, high = float(node["low"]), float(node["high"])
        step = None if node.get("step") is None else float(node["step"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"search.space.{name} needs numbers low and high, but is {dict(node)!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"search.space.{name} must have low < high, but is [{low:g}, {high:g}].")
    log = bool(node.get("log", False))
    if log and low <= 0:
        raise ConfigError(f"search.space.{name} is on a log scale, so low must be > 0, but is {low:g}.")
    if step is not None and (step <= 0 or step > high - low):
        raise ConfigError(f"search.space.{name}.step must lie in (0, {high - low:g}], but is {step:g}.")
    if log and step is not None:
        raise ConfigError(f"search.space.{name} has a step or a log scale, not both. Remove one.")
    whole = low == int(low) and high == int(high) and (step is None or step == int(step))
    if not node.get("int", integer):
        reached = high if step is None else low + math.floor((high - low) / step + 1e-9) * step
        return FloatDistribution(low, reached, log=log, step=step)
    if not whole:
        raise ConfigError(f"search.space.{name} needs integers, but is {dict(node)!r}. Write whole low, high and step.")
    by = int(step or 1)
    return IntDistribution(int(low), int(low) + (int(high) - int(low)) // by * by, log=log, step=by)


def _ordered(params: Sequence[Param]) -> tuple[Param, ...]:
    """Parameters after those that their conditions name."""
    names = {param.name for param in params}
    placed: list[Param] = []
    waiting = list(params)
    while waiting:
        known = {param.name for param in placed}
        ready = [p for p in waiting if all(f in known or f not in names for f, _ in p.when)]
        if not ready:
            raise ConfigError(f"Conditions must not form a circle, but those of {waiting[0].name} do.")
        placed += ready
        waiting = [p for p in waiting if p not in ready]
    return tuple(placed)
