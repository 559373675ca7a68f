"""Composition of runs and studies from YAML and overrides. Only this room imports Hydra, when something is composed.

A run configuration is composed from the groups in `conf` (clip, data, partition, optim, protocol, method);
a study file adds what it varies.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from fpl_tune import methods
from fpl_tune.config.fields import known_fields, no_field, set_field, to_run, to_study
from fpl_tune.config.files import check_references, check_study, no_option, parse
from fpl_tune.config.specs import RUN_FIELDS, RunSpec, Study, StudySpec
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import check_rule
from fpl_tune.core.nested import GROUPS, MAPPINGS, flatten, get_field, refuse_two_values
from fpl_tune.core.paths import shipped, study_file
from fpl_tune.core.spec import validated
from fpl_tune.core.yaml_files import read_mapping


def compose_run(overrides: Sequence[str] = ()) -> RunSpec:
    """A run from the command line's overrides.

    Raises:
        ConfigError: an unknown group, option, key or value.
    """
    plugins.trust(overrides)
    node = _compose("run", shipped("conf"), _homes(overrides))
    for name in node.keys() - RUN_FIELDS:
        if name in known_fields():
            raise ConfigError(f"{name!r} is a field of studies: a run does not have it.")
        raise no_field(name, node)
    return to_run(node)


def take_seeds(overrides: Sequence[str]) -> tuple[list[str], list[int]]:
    """Separates a run's seeds from its other overrides; one seed, 1, where none are given.

    Raises:
        ConfigError: not a number of seeds or a list of different ones.
    """
    given = parse([text for text in overrides if text.startswith("seeds=")])
    others = [text for text in overrides if not text.startswith("seeds=")]
    return others, fixed_seeds(given[-1].value() if given else 1)


def fixed_seeds(seeds: Any) -> list[int]:
    """The seeds of a run, which compares nothing.

    Raises:
        ConfigError: not a number of seeds or a list of different ones.
    """
    spec = validated(StudySpec, {"seeds": seeds}, "")
    if spec.declared_looks():
        raise ConfigError(
            f"seeds={spec.seeds} compares the cells of a study, but a run has one. Set a number of seeds."
        )
    return spec.seed_list()


def compose_study(name: str, overrides: Sequence[str] = ()) -> Study:
    """A study by its name, or by the path of its file.

    Raises:
        ConfigError: no such study, an unknown key, or a value of the wrong type.
    """
    plugins.trust(overrides)
    overrides, path = _homes(overrides), study_file(name)
    written = check_study(path)
    chosen = (pair for entry in written.get("defaults", []) if isinstance(entry, dict) for pair in entry.items())
    _register([f"method={name}" for group, name in chosen if re.fullmatch("(override )? */?method", str(group))])
    node = _compose(path.stem, path.resolve().parent, overrides)
    if node.get("scale") == "paper" and isinstance(node.get("paper_scale"), list) and node["paper_scale"]:
        overrides = [*node["paper_scale"], *overrides]
        node = _compose(path.stem, path.resolve().parent, overrides)
    _prefer_choices(node, overrides)
    _prefer_overrides(node, overrides)
    refuse_two_values({"axes": node.get("axes"), "search": node.get("search")}, path.name)
    for name in ("schema", "effective"):  # of a stored study
        node.pop(name, None)
    named = node.get("name")
    node["name"] = path.stem if named in (None, "study") else str(named)
    is_folder = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", node["name"])
    if not is_folder or isinstance(named, float):  # 1.10 would be 1.1
        raise ConfigError(
            f"A study's name holds letters, digits, '_', '-' and '.', 100 at most, but is {named!r}."
            f"{' Quote it.' if is_folder else ''}"
        )
    for field in node.keys() - {f.name for f in fields(StudySpec)}:
        raise no_field(field, node)
    spec = to_study(node)
    check_rule(spec.report.rule, "report.rule")
    return spec


def _homes(overrides: Sequence[str]) -> list[str]:
    """Quotes values that begin with `~`, which Hydra's grammar refuses and a shell does not expand after `=`."""
    return [re.sub(r"=(~[^']*)$", r"='\1'", text) for text in overrides]


@cache
def choose(group: str, option: str) -> dict[str, Any]:
    """The parts of a composed run that an option of a group sets, by name. Copy before changing.

    Raises:
        ConfigError: the group has no such option.
    """
    path, chosen = shipped("conf", f"{group}/{option}.yaml"), {"name": option}
    if path.stem == option and path.is_file():
        chosen = read_mapping(path, "An option")
    elif group != "method" or (":" not in option and option not in methods.catalogue()):
        raise no_option(group, option)
    if group != "method":
        return {group: {**_defaults(RunSpec)[group], **chosen}}
    parts = chosen if "method" in chosen else {"method": chosen}  # the former: `@package _global_`
    return {"method": methods.as_dict(methods.build(parts["method"])), "stages": parts.get("stages", [])}


def _prefer_choices(node: dict[str, Any], overrides: Sequence[str]) -> None:
    """Lets an option that an override chooses replace the study file's fields of that group, in place.

    Hydra merges the file over the chosen option: `method=promptfl` would keep the file's `method.d_gating`, and
    `protocol=quick` the file's rounds. Overrides of single fields are applied again after the choice.
    """
    given = [(o.key_or_group, o.value()) for o in parse(overrides) if not o.is_delete()]
    for group, option in given:
        if group in GROUPS and isinstance(option, str):
            node.update(deepcopy(choose(group, option)))
        elif group == "method" and isinstance(option, dict):
            node.update(method=deepcopy(option), stages=[])
    for dotted, value in given:
        if dotted.split(".")[0] in GROUPS and "." in dotted:
            set_field(node, dotted, value)


def _prefer_overrides(node: dict[str, Any], overrides: Sequence[str]) -> None:
    """Lets an override of an axis or range, in place, replace the file's that names its field with dots, `method.lam`.

    Hydra puts `axes.method.lam` beside it, inside `method`.
    """
    for key in {override.key_or_group for override in parse(overrides) if not override.is_delete()}:
        for part in ("axes", "search.space"):
            field = key.removeprefix(f"{part}.")
            inside, _, last = field.rpartition(".")
            if field != key and inside and field in (written := get_field(node, part)):
                written[field] = get_field(written, inside).pop(last)
                if not flatten(written[group := field.partition(".")[0]]):
                    del written[group]


def _compose(name: str, folder: Path, overrides: Iterable[str]) -> dict[str, Any]:
    import hydra  # half a second, which reading a study's store does without
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    _register(overrides := [str(text) for text in overrides])
    parse(overrides)
    overrides = [word for text in overrides for word in _forced(text)]
    GlobalHydra.instance().clear()  # another application's, which may have been left open
    # Hydra 1.3 asks which behaviour is meant; 1.4 has one, and warns where it is named.
    base = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
    try:
        with hydra.initialize_config_dir(str(folder), job_name="fpl_tune", **base):
            found = hydra.compose(name, overrides=[*overrides, _searched()])
        written: Any = OmegaConf.to_container(found, resolve=False)
        check_references(written, f"{name}.yaml")
        resolved: Any = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
        return {str(key): value for key, value in resolved.items()}
    except ConfigError:
        raise
    except Exception as problem:  # Hydra and OmegaConf raise many types for invalid files and overrides
        full = " ".join(f"{problem} {problem.__cause__ or ''}".split())
        if option := re.search(r"Could not find '(\w+)/([^']+)'", full):
            raise no_option(*option.groups()) from None
        raise ConfigError(f"{name}.yaml cannot be composed: {textwrap.shorten(full, 300)}") from None


def _forced(override: str) -> list[str]:
    """Sets a field whether or not YAML names it: unknown fields are refused when the specification is built.

    A mapping such as `method={name: private, inner: {name: fedpgp}}` takes the place of the group's option.
    """
    key, _, value = override.partition("=")
    if key in MAPPINGS and value.replace(" ", "") == "{}":  # Hydra merges mappings: nothing would change
        return [f"~{key}", f"++{override}"]
    if key == "method" and value.lstrip().startswith("{"):
        return ["~method", f"++{override}"]
    return [override] if key in GROUPS or key[:1] in ("+", "~") else [f"++{override}"]


def _searched() -> str:
    """Hydra's search path besides the study's own folder: the groups, and the shipped studies."""
    folders = ["pkg://fpl_tune.config.conf"]
    if (studies := shipped("studies")).is_dir():
        folders.append("'file://" + str(studies).replace("'", "\\'") + "'")
    return f"hydra.searchpath=[{','.join(folders)}]"


def _register(overrides: Sequence[str]) -> None:
    """Registers the defaults, and an option for every method without YAML and every class that an override names."""
    _register_defaults()
    named = [text.removeprefix("method=") for text in overrides if re.match("method=[^{]*:", text)]
    for name in [*methods.catalogue(), *named]:
        methods.find(name)
        if not shipped("conf", f"method/{name}.yaml").is_file():
            _register_method(name)


@cache  # Hydra 1.4 warns of a second registration, and 1.5 refuses it
def _register_defaults() -> None:
    from hydra.core.config_store import ConfigStore

    for name, kind in (("run_defaults", RunSpec), ("study_defaults", StudySpec)):
        ConfigStore.instance().store(name=name, node=_defaults(kind))


@cache
def _register_method(name: str) -> None:
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(group="method", name=name, node={"name": name})


@cache
def _defaults(kind: type[RunSpec]) -> dict[str, Any]:
    """The fields of a run or study as YAML holds them; method and stages are left to the chosen method."""
    return {**json.loads(json.dumps(asdict(kind()))), "method": {}, "stages": []}
