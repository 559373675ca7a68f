"""Conversion of runs to and from plain dicts, fields by dotted name, and the identity of a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from fpl_tune import methods
from fpl_tune.clip.load import COMPACT, model_content
from fpl_tune.config.specs import (
    RUN_FIELDS,
    ClipSpec,
    OptimSpec,
    ProtocolSpec,
    RunSpec,
    Stage,
    Study,
    StudySpec,
)
from fpl_tune.core.clients import ClientsSpec
from fpl_tune.core.contents import digest_of
from fpl_tune.core.errors import ConfigError, did_you_mean, nearest
from fpl_tune.core.files import digest
from fpl_tune.core.nested import MAPPINGS, get_field
from fpl_tune.core.paths import local, shipped
from fpl_tune.core.spec import quoted, validated
from fpl_tune.core.yaml_files import read_mapping
from fpl_tune.data import DataSpec, PartitionSpec
from fpl_tune.data.registry import resolve
from fpl_tune.method import Method


def known_fields() -> list[str]:
    """Dotted names of all typed fields of a study."""
    names: list[str] = []

    def walk(kind: type, prefix: str) -> None:
        for f in fields(kind):
            names.append(prefix + f.name)
            if is_dataclass(f.default_factory):
                walk(f.default_factory, f"{prefix}{f.name}.")  # type: ignore[arg-type]

    walk(StudySpec, "")
    return names


_SPECS: dict[str, type] = {
    "clip": ClipSpec, "data": DataSpec, "partition": PartitionSpec, "optim": OptimSpec, "protocol": ProtocolSpec,
    "clients": ClientsSpec,
}  # fmt: skip


def to_run(node: Mapping[str, Any], *, stored: bool = False) -> RunSpec:
    """Makes a run from plain values: checks every field, and resolves the partition's open fields and the stages.

    Args:
        node: a composed or stored configuration; fields of studies are ignored.
        stored: True if the method may be one that cannot be built here; see `methods.stored`.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type or outside its range.
    """
    return validated(RunSpec, _parts(node, stored), "")


def to_study(node: Mapping[str, Any], *, stored: bool = False) -> Study:
    """Makes a study from plain values, which `Study.node` keeps with all fields of the method; see `to_run`.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type or outside its range.
    """
    parts = _parts(node, stored)
    return validated(Study, {**node, **parts, "node": {**node, "method": methods.as_dict(parts["method"])}}, "")


def _parts(node: Mapping[str, Any], stored: bool) -> dict[str, Any]:
    """The fields of a `RunSpec`."""
    for name in (*_SPECS, "method"):
        if isinstance(chosen := node.get(name), str):
            raise ConfigError(
                f"{name} must be a mapping of its fields, but is {quoted(chosen)}. To choose one by name in a study's "
                f"YAML, write '- override /{name}: {' '.join(chosen.split()) or 'NAME'}' under 'defaults:'."
            )
    method = methods.stored(node["method"]) if stored else methods.build(node["method"])
    parts: dict[str, Any] = {n: validated(kind, node.get(n, {}), n) for n, kind in _SPECS.items() if n != "optim"}
    optim = _optim(node.get("optim", {}), method, parts["clip"].name, parts["data"].name)
    parts["optim"] = validated(OptimSpec, optim, "optim")
    parts["partition"] = resolve(parts["data"], parts["partition"])
    parts["method"] = method
    parts["stages"] = stages(parts["method"], parts["protocol"], node.get("stages", []), stored=stored)
    trained = [*(stage.method for stage in parts["stages"]), method]
    parts["optim"] = replace(parts["optim"], groups=_groups(parts["optim"].groups, trained))
    return parts


def _groups(given: Mapping[str, float | None], trained: Sequence[Method]) -> dict[str, float | None]:
    """The learning rates of groups: those given, else the methods' own. None is kept where it replaces a rate."""
    own = {group.name: group.rate for method in trained for group in method.leaf_groups}
    rates = {name: rate for name, rate in own.items() if rate is not None}
    return {name: rate for name, rate in {**rates, **given}.items() if rate is not None or name in rates}


_OPEN = {f.name for f in fields(OptimSpec)} - {"name", "lr"}
"""Fields besides the rate that `optim=tuned` leaves open."""


def _optim(node: Any, method: Method, clip: str, data: str) -> Any:
    """The optimiser's fields; those that `optim=tuned` leaves open are taken from the method's row, see `tuned_row`.

    A method without a row needs an explicit rate, and takes the other open fields from `optim=sgd`, as the rows do.
    """
    if not isinstance(node, Mapping):
        return node
    if node.get("name") != "tuned":  # a variant that sets optim.name keeps fields that `tuned` leaves open
        return {name: value for name, value in node.items() if value is not None or name not in _OPEN}
    own: dict[str, Any] = {name: value for name, value in node.items() if name != "name" and value is not None}
    row: Mapping[str, Any] = {}
    if tuned := tuned_row(method, clip, data):
        row = tuned.fields
    elif method.learns and "lr" in own:
        row = read_mapping(shipped("conf", "optim/sgd.yaml"), "An option")
    elif method.learns and not isinstance(method, methods.Absent):
        name = methods.name_of(method)
        quoted = f"'{name}'" if ":" in name else name
        raise ConfigError(
            f"optim=tuned has no row of {name}, nor of a class that it derives from. Give it a rate: in a study's "
            f"variant {{method: {quoted}, optim.lr: 0.02}}, in a run optim.lr=0.02."
        )
    return {**row, **own, "groups": {**row.get("groups", {}), **own.get("groups", {})}}


class TunedRow(NamedTuple):
    """A row of `optim=tuned`."""

    method: str
    """The method that was tuned."""
    derived: bool
    """True if the run's method derives from it."""
    fields: Mapping[str, Any]
    """The optimiser's fields."""
    under: Mapping[str, Any]
    """The data, towers, rounds and local epochs under which it was chosen."""


def tuned_row(method: Method, clip: str, data: str) -> TunedRow | None:
    """The row that `optim=tuned` takes for a method: of the run's towers if they have one, and of its data set if these
    have several; else the one of the embedded world.

    Args:
        method: a method of the package, or a user's own.
        clip, data: names of the run's towers and data set.

    Returns:
        The row of the method, of the nearest of its base classes that has one, or of the method that it wraps; None if
        there is none.
    """
    names, inner = {kind: name for name, kind in methods.catalogue().items()}, method
    chain = list[tuple[str, bool]]()
    while isinstance(inner, Method):
        chain += [(names[kind], kind is not type(inner)) for kind in type(inner).__mro__ if kind in names]
        inner = getattr(inner, "inner", None)
    for towers in dict.fromkeys((clip, COMPACT)):
        tables = [table for table in _tuned_tables() if table["under"]["clip"] == towers]
        tables.sort(key=lambda table: table["under"]["data"] != data)
        for name, derived in chain:
            for table in tables:
                if name in table["rows"]:
                    return TunedRow(name, derived, table["rows"][name], table["under"])
    return None


@cache
def _tuned_tables() -> list[dict[str, Any]]:
    return [*read_mapping(shipped("conf", "tuned.yaml"), "The table of rates").values()]


def stages(method: Method, protocol: ProtocolSpec, nodes: Any, *, stored: bool = False) -> tuple[Stage, ...]:
    """The stages of a run. Open fields are taken from the run; without stages, there is one by the protocol.

    Args:
        method: the run's own method.
        protocol: the run's schedule.
        nodes: stages as in YAML; see `RunSpec.stages`.
        stored: see `to_run`.

    Raises:
        ConfigError: a malformed stage, or `inner` for a method that does not wrap another.
    """
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        raise ConfigError(f"stages must be a list, but is {quoted(nodes)}. Write stages=[{{rounds: 10}}].")
    parsed, entries = [], list[Any](nodes or [{}])
    for i, node in enumerate(entries):
        if not isinstance(node, Mapping):
            raise ConfigError(f"A stage is a mapping such as {{rounds: 10}}, but stages.{i} is {quoted(node)}.")
        given = {name: value for name, value in node.items() if value is not None}
        full = {"rounds": protocol.rounds, "epochs": protocol.epochs, **given}
        full["method"] = _stage_method(method, given.get("method"), stored)
        parsed.append(validated(Stage, full, f"stages.{i}"))
    return tuple(parsed)


def _stage_method(method: Method, node: Any, stored: bool) -> Method:
    if not node:
        return method
    if isinstance(node, Mapping):
        full = node if "name" in node else {**methods.as_dict(method), **node}
        return methods.stored(full) if stored else methods.build(full, "stages.method")
    inner = getattr(method, "inner", None)
    if node != "inner" or not isinstance(inner, Method):
        raise ConfigError(
            f"A stage's method is `inner` (of a method that wraps another), fields or nothing, but is "
            f"{node!r} of {methods.name_of(method)}. Write {{name: {node}}} for another method."
        )
    return inner


_NEWER = {"protocol": ("unseen", "global_model", "own_classes", "cross", "validation"), "data": ("names", "content"),
          "clip": ("preprocess",)}  # fmt: skip
"""Fields that were added after results had been stored, by group; see `Method.newer`."""
_FORMER = {"clip": {"tf32": False}, "data": {"split_seed": 1}, "partition": {"balanced": True}}
"""Removed fields with the value that they had, so that the ids of cells do not change."""


def as_dict(run: RunSpec) -> dict[str, Any]:
    """The canonical plain dict of a run, which `to_run` reads; `stages` is empty for one stage by the protocol."""
    return {name: asdict(getattr(run, name)) for name in _SPECS} | _trained(run)


def identity(run: RunSpec) -> str:
    """The id of a cell: a digest of 16 hex digits of its canonical configuration.

    Paths do not count, so that results move with their files: `data.root` is left out, and for weights, the folder of a
    model and an exported split stands what they contain; the path only if it cannot be read.
    """
    node = {name: vars(getattr(run, name)) for name in _SPECS if name != "clients"} | _trained(run, newer=False)
    if clients := _in_effect(run.clients):
        node["clients"] = clients
    node["data"] = {name: value for name, value in node["data"].items() if name != "root"}
    rates = node["optim"]["groups"]
    node["optim"] = {**node["optim"], "groups": {name: rate for name, rate in rates.items() if rate is not None}}
    for group, values in _FORMER.items():
        node[group] = {**node[group], **values}
    for group, names in _NEWER.items():
        usual = vars(_SPECS[group]())
        newer = [name for name in names if node[group][name] == usual[name]]
        node[group] = {name: value for name, value in node[group].items() if name not in newer}
    node["clip"] = {**node["clip"], "name": model_content(run.clip.name), "pretrained": _content(run.clip.pretrained)}
    node["partition"] = {**node["partition"], "file": _content(run.partition.file)}
    return digest(json.dumps(node, sort_keys=True, separators=(",", ":")))


def _in_effect(clients: ClientsSpec) -> dict[str, Any]:
    """The fields of `clients` that have an effect; none if all clients arrive and are benign."""
    node = asdict(clients)
    if clients.malicious.attack != "backdoor":
        del node["malicious"]["backdoor"]
    return {name: value for name, value in node.items() if (value["share"] if isinstance(value, dict) else value)}


def _content(path: str | None) -> str | None:
    """The digest of a file's contents; the value itself if it names no file that can be read."""
    return path and (digest_of(local(path)) or path)


def _trained(run: RunSpec, *, newer: bool = True) -> dict[str, Any]:
    """`method` and `stages` of a run's plain dict; `newer` as in `methods.as_dict`."""
    shown = [methods.as_dict(stage.method, newer=newer) for stage in run.stages]
    stages = [{"method": m, "rounds": s.rounds, "epochs": s.epochs} for m, s in zip(shown, run.stages, strict=True)]
    if run.stages == (Stage(run.method, run.protocol.rounds, run.protocol.epochs),):
        stages = []
    return {"method": methods.as_dict(run.method, newer=newer), "stages": stages}


def set_field(node: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a field of a composed dict in place by its dotted name.

    Raises:
        ConfigError: there is no such field.
    """
    path, _, last = dotted.rpartition(".")
    here = get_field(node, path) if path else node
    if not isinstance(here, dict) or (last not in here and path not in MAPPINGS):
        raise no_field(dotted, node)
    here[last] = value


def no_field(dotted: str, node: Mapping[str, Any]) -> ConfigError:
    """`ConfigError` for a field that a composed dict lacks; for a method's field, it names those of the method."""
    path, _, last = dotted.rpartition(".")
    method = get_field(node, path) if path.split(".")[0] == "method" else None
    if isinstance(method, Mapping) and "name" in method:
        return methods.unknown_field(str(method["name"]), last, [name for name in method if name != "name"])
    if dotted in known_fields():
        return ConfigError(f"{dotted} holds for a whole study and cannot vary between its cells. Set {dotted}=VALUE.")
    candidates = [name for name in known_fields() if name.partition(".")[0] in node]  # a run lacks those of studies
    candidates += [f"method.{dotted}"] * bool(methods.owners(dotted))
    whole = get_close_matches(dotted, [name for name in candidates if "." not in name], n=1, cutoff=0.8)  # seed: seeds
    first = list(dict.fromkeys([*whole, *nearest(dotted, candidates)]))
    return ConfigError(f"There is no field {dotted!r}. {did_you_mean(dotted, RUN_FIELDS, first)}")
