"""Search spaces: which fields are sampled, from what, under which condition."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fpl_tune import config
from fpl_tune.config import SearchSpec
from fpl_tune.errors import ConfigError, did_you_mean
from fpl_tune.paths import shipped

_KEYS = ("low", "high", "log", "step", "int", "choices", "when")


@dataclass(frozen=True)
class Param:
    """One field's distribution: `choices`, or low..high."""

    name: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """Sampled only where each of these fields has one of these values."""

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the distribution."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def draw(self, rng: random.Random) -> Any:
        """A value drawn uniformly, on the scale of the distribution."""
        if known := self.values():
            return rng.choice(known)
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return round(value) if self.whole else value

    def values(self) -> tuple[Any, ...]:
        """All values in order; empty where there are infinitely many."""
        if self.choices:
            return self.choices
        step = self.step or (1 if self.whole and not self.log else None)
        if step is None:
            return ()
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        found = [self.low + i * step for i in range(count)]
        return tuple(int(v) for v in found) if self.whole else tuple(found)


@dataclass(frozen=True)
class Space:
    """What is searched for one method, conditions after what they depend on."""

    params: tuple[Param, ...]
    published: tuple[dict[str, Any], ...]

    def active(self, chosen: Mapping[str, Any], node: Mapping[str, Any], param: Param) -> bool:
        """Whether a parameter is sampled, given what was chosen before and the run it goes into."""
        for field, values in param.when:
            value = chosen.get(field, config.get_field(node, field))
            if isinstance(value, Mapping):
                value = value.get("name")
            if value not in values:
                return False
        return True

    def draw(self, rng: random.Random, node: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """One point, inactive parameters left out."""
        chosen: dict[str, Any] = {}
        for param in self.params:
            if self.active({**given, **chosen}, node, param):
                chosen[param.name] = param.draw(rng)
        return chosen

    def grid(self, node: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Every combination, inactive parameters left out, none twice.

        Raises:
            ConfigError: a parameter has infinitely many values.
        """
        for param in self.params:
            if not param.values():
                raise ConfigError(
                    f"search.sampler=grid needs finitely many values, but {param.name} lies in "
                    f"[{param.low:g}, {param.high:g}]. Give it a step or choices, or use sampler=tpe."
                )
        seen: set[str] = set()
        for values in itertools.product(*(param.values() for param in self.params)):
            chosen: dict[str, Any] = {}
            for param, value in zip(self.params, values, strict=True):
                if self.active({**given, **chosen}, node, param):
                    chosen[param.name] = value
            if repr(chosen) not in seen:
                seen.add(repr(chosen))
                yield chosen


def names_of(node: Mapping[str, Any], option: Any = None) -> list[str]:
    """Names under which a method's space may lie: its option, compositions that are made alike, its own name."""
    alike = []
    for path in sorted(shipped("conf", "method").glob("*.yaml")):
        composed = yaml.safe_load(path.read_text())
        composed = composed.get("method", composed)
        inner = [n["inner"].get("name") if isinstance(n.get("inner"), Mapping) else None for n in (composed, node)]
        if composed.get("name") == node["name"] and inner[0] == inner[1]:
            alike.append(path.stem)
    return [*([option] if isinstance(option, str) else []), *alike, str(node["name"])]


def read_space(names: Sequence[str], search: SearchSpec, axes: Sequence[str]) -> Space:
    """The space of a method (by the first of `names` that has a file), with the study's own overrides.

    Raises:
        ConfigError: no space, an unknown key, an empty or inverted range, an axis that is searched too.
    """
    stored = _file(names)
    entries: dict[str, Any] = {**stored.get("space", {}), **_dotted(search.space)}
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
    params = _ordered([_param(name, node) for name, node in entries.items()])
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
                return yaml.safe_load(path.read_text()) or {}
    return {}


def _dotted(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Entries by dotted field, written nested or dotted."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, Mapping) and not set(value) & set(_KEYS):
            found.update(_dotted(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _param(name: str, node: Any) -> Param:
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
        return Param(name, choices=tuple(choices), when=when)
    try:
        low, high = float(node["low"]), float(node["high"])
        step = None if node.get("step") is None else float(node["step"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"search.space.{name} needs numbers low and high, but is {dict(node)!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"search.space.{name} must have low < high, but is [{low:g}, {high:g}].")
    log, whole = bool(node.get("log", False)), bool(node.get("int", False))
    if log and low <= 0:
        raise ConfigError(f"search.space.{name} is on a log scale, so low must be > 0, but is {low:g}.")
    if step is not None and (step <= 0 or step > high - low):
        raise ConfigError(f"search.space.{name}.step must lie in (0, {high - low:g}], but is {step:g}.")
    if log and step is not None:
        raise ConfigError(f"search.space.{name} has a step or a log scale, not both. Remove one.")
    if whole and (low != int(low) or high != int(high) or (step is not None and step != int(step))):
        raise ConfigError(f"search.space.{name} is of integers, but has {dict(node)!r}.")
    return Param(name, low=low, high=high, log=log, step=step, whole=whole, when=when)


def _ordered(params: Sequence[Param]) -> tuple[Param, ...]:
    """Parameters after those that their conditions name."""
    names = {param.name for param in params}
    placed: list[Param] = []
    waiting = list(params)
    while waiting:
        known = {param.name for param in placed}
        ready = [p for p in waiting if all(f in known or f not in names for f, _ in p.when)]
        if not ready:
            raise ConfigError(f"Conditions must not go in circles, but those of {waiting[0].name} do.")
        placed += ready
        waiting = [p for p in waiting if p not in ready]
    return tuple(placed)
