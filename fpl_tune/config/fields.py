"""Runs as plain dicts: fields by dotted name, the identity of a cell, what can be refused without data."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fpl_tune import methods
from fpl_tune.config.specs import RUN_FIELDS, RunSpec, StageSpec, StudySpec
from fpl_tune.errors import ConfigError, did_you_mean
from fpl_tune.task import check_clip


def known_fields(near: str) -> list[str]:
    """Dotted names of all typed fields, and of the fields of methods if `near` is one of a method."""
    found: list[str] = []

    def walk(kind: type, prefix: str) -> None:
        for f in fields(kind):
            found.append(prefix + f.name)
            if is_dataclass(f.default_factory):
                walk(f.default_factory, f"{prefix}{f.name}.")  # type: ignore[arg-type]

    walk(StudySpec, "")
    if near and ("." not in near or near.startswith(("method", "axes", "+method"))):
        for kind in methods.catalogue().values():
            found.extend(f"method.{f.name}" for f in methods.hyper_parameters(kind))
    return sorted(set(found))


def check(run: RunSpec) -> None:
    """Everything that can be refused without reading data. Raises `ConfigError`."""
    run.optim.check()
    run.protocol.check()
    check_clip(run.clip)
    methods.build(run.method)
    for stage in stages(run):
        methods.build(stage.method, "stages.method")
        if not (stage.rounds or 0) >= 1 or not 0 < (stage.epochs or 0) < math.inf:
            raise ConfigError(
                f"A stage has at least one round and epochs above 0, but has rounds={stage.rounds} and "
                f"epochs={stage.epochs}. Leave them out to take the protocol's."
            )


def stages(run: RunSpec) -> list[StageSpec]:
    """The stages of a run with what they leave open filled in; a run without stages has one, of its protocol.

    Raises:
        ConfigError: a stage names the inner method of one that wraps none.
    """
    return [
        StageSpec(
            _stage_method(run, stage),
            run.protocol.rounds if stage.rounds is None else stage.rounds,
            run.protocol.epochs if stage.epochs is None else stage.epochs,
        )
        for stage in run.stages or [StageSpec()]
    ]


def _stage_method(run: RunSpec, stage: StageSpec) -> dict[str, Any]:
    if isinstance(stage.method, str):
        if stage.method != "inner" or not isinstance(run.method.get("inner"), Mapping):
            raise ConfigError(
                f"A stage's method is `inner` (of a method that wraps another), fields or nothing, but is "
                f"{stage.method!r} of {run.method.get('name')}. Write {{name: {stage.method}}} for another method."
            )
        return dict(run.method["inner"])
    changes = dict(stage.method or {})
    return changes if "name" in changes else {**run.method, **changes}


def as_dict(run: RunSpec) -> dict[str, Any]:
    """Plain nested dict of a run, without the study's fields."""
    return {name: value for name, value in asdict(run).items() if name in RUN_FIELDS}


def identity(run: RunSpec) -> str:
    """8 hex digits of the canonical configuration: the id of a cell. Machine paths and seeds are no part of it."""
    node = {name: vars(part) if is_dataclass(part) else part for name, part in vars(run).items() if name in RUN_FIELDS}
    node["clip"] = {k: v for k, v in node["clip"].items() if (k, v) != ("quick_gelu", "auto")}
    node["data"] = {k: v for k, v in node["data"].items() if k != "root"}
    node["method"] = methods.known_before(node["method"])
    node["protocol"] = _known_before(node["protocol"])
    node["stages"] = [
        {"method": _stage_id(full.method if stage.method == "inner" else stage.method)}
        | {"rounds": full.rounds, "epochs": _whole(full.epochs)}
        for stage, full in zip(run.stages, stages(run), strict=False)
    ]
    text = json.dumps(node, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _stage_id(method: Any) -> Any:
    return methods.known_before(method) if isinstance(method, Mapping) and "name" in method else method


def _known_before(protocol: dict[str, Any]) -> dict[str, Any]:
    """As cells were written before `sampling` was a field and epochs could be broken: their ids stay."""
    rest = {k: v for k, v in protocol.items() if (k, v) != ("sampling", "uniform")}
    return {**rest, "epochs": _whole(protocol["epochs"])}


def _whole(epochs: float | None) -> float | None:
    return int(epochs) if epochs is not None and float(epochs).is_integer() else epochs


def set_field(node: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a field of a composed dict in place by its dotted name.

    Raises:
        ConfigError: there is no such field.
    """
    *path, last = dotted.split(".")
    here = node
    for part in path:
        if not isinstance(here.get(part), dict):
            raise no_field(dotted, node)
        here = here[part]
    if last not in here and path[:2] != ["optim", "groups"]:
        raise no_field(dotted, node)
    here[last] = value


def no_field(dotted: str, node: Mapping[str, Any]) -> ConfigError:
    """`ConfigError` for a field that a composed dict lacks: of a method, with what that method has."""
    *path, last = dotted.split(".")
    method: Any = node if path[:1] == ["method"] else None
    for part in path:
        method = method.get(part) if isinstance(method, Mapping) else None
    if isinstance(method, Mapping) and "name" in method:
        known = [name for name in method if name != "name"]
        return ConfigError(f"{method['name']} has no field {last!r}. {did_you_mean(last, known)}")
    known = known_fields(dotted)
    parts = [name for name in known if name.endswith(f".{dotted}")]
    return ConfigError(f"There is no field {dotted!r}. {did_you_mean(dotted, known, parts)}")


def get_field(node: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """A field of a composed dict by its dotted name, or `default`."""
    here: Any = node
    for part in dotted.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return default
        here = here[part]
    return here
