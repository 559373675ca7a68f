"""Composition of runs and studies from YAML and overrides. Hydra is only imported when something is composed.

A run configuration is composed from the groups in `conf` (clip, data, partition, optim, protocol, method);
a study file adds what it varies.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fpl_tune import methods
from fpl_tune.config.fields import known_fields, no_field, to_run, to_study
from fpl_tune.config.files import check_study, no_option
from fpl_tune.config.overrides import Given, Override, apply, parse
from fpl_tune.config.specs import RUN_FIELDS, RunSpec, Study, StudySpec
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.metrics import check_rule
from fpl_tune.core.nested import GROUPS, reject_two_values
from fpl_tune.core.paths import config_dir, option_files, output_folder, shipped, study_file
from fpl_tune.core.spec import validated
from fpl_tune.core.yaml_files import read_mapping


def compose_run(overrides: Sequence[Given] = ()) -> RunSpec:
    """Composes a run from overrides: strings `"key=value"`, or mappings of dotted names to Python values.

    Raises:
        ConfigError: an unknown group, option, key or value.
    """
    given = _trusted(overrides)
    _register([])
    node = _overridden(_merged_run(), given, "run.yaml")
    for name in node.keys() - RUN_FIELDS:
        if name in known_fields():
            raise ConfigError(f"{name!r} is a field of studies: a run does not have it.")
        raise no_field(name, node)
    return to_run(node)


def take_seeds(overrides: Sequence[Given]) -> tuple[list[Override], list[int]]:
    """Separates a run's seeds from its other overrides. Without any, there is one seed, 1.

    Raises:
        ConfigError: not a number of seeds or a list of different ones.
    """
    given = _trusted(overrides)
    seeds = [override.value for override in given if override.field == "seeds"]
    return [override for override in given if override.field != "seeds"], fixed_seeds(seeds[-1] if seeds else 1)


def fixed_seeds(seeds: Any) -> list[int]:
    """The seeds of a run, for which `until_decided` is rejected: it compares nothing.

    Raises:
        ConfigError: not a number of seeds or a list of different ones.
    """
    spec = validated(StudySpec, {"seeds": seeds}, "")
    if spec.declared_looks():
        raise ConfigError(
            f"seeds={spec.seeds} compares the cells of a study, but a run has one. Set a number of seeds."
        )
    return spec.seed_list()


def compose_study(name: str, overrides: Sequence[Given] = ()) -> Study:
    """Composes a study by its name, or by the path of its file, with overrides as for `compose_run`.

    Raises:
        ConfigError: no such study, an unknown key, or a value of the wrong type.
    """
    given, path = _trusted(overrides), study_file(name)
    plugins.look_beside(path.parent)
    content = check_study(path)
    _register(content.get("defaults", []))
    folder = path.resolve().parent
    merged = _merged_study(path.stem, folder, content)
    if folder.parent == output_folder() and path.name == "study.yaml":
        merged["name"] = folder.name  # goes on where it is stored, also if the folder was renamed
    for field in [override.field for override in given if override.field.startswith("let.")]:
        if (value := field.split(".")[1]) not in (known := merged.get("let") or {}):
            raise unknown("value of let", value, known)
    node = _overridden(merged, given, path.name)
    if node.get("scale") == "paper" and isinstance(node.get("paper_scale"), list) and node["paper_scale"]:
        node = _overridden(merged, [*parse(map(str, node["paper_scale"])), *given], path.name)
    reject_two_values({"axes": node.get("axes"), "search": node.get("search")}, path.name)
    for name in ("schema", "effective"):  # of a stored study
        node.pop(name, None)
    named = node.get("name")
    node["name"] = path.stem if named in (None, "study") else str(named)
    is_folder = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", node["name"])
    if not is_folder or isinstance(named, float):  # YAML reads 1.10 as 1.1
        raise ConfigError(
            f"A study's name has letters, digits, '_', '-' and '.', at most 100, but is {named!r}."
            f"{' Quote it.' if is_folder else ''}"
        )
    for field in node.keys() - {f.name for f in fields(StudySpec)}:
        raise no_field(field, node)
    spec = to_study(node)
    check_rule(spec.report.rule, "report.rule")
    return spec


def _trusted(overrides: Sequence[Given]) -> list[Override]:
    """Parses overrides of the user. The modules that they name may therefore be imported."""
    given = parse(overrides)
    plugins.trust(override.text for override in given)
    return given


def choose(group: str, option: str) -> dict[str, Any]:
    """The fields of a composed run that an option of a group sets, by name. Copy before changing.

    Raises:
        ConfigError: the group has no such option.
    """
    return _chosen(group, option, option_files(group).get(option))


@cache
def _chosen(group: str, option: str, path: Path | None) -> dict[str, Any]:
    chosen = {"name": option}
    if path is not None:
        chosen = read_mapping(path, "An option")
    elif group != "method" or (":" not in option and option not in methods.catalogue()):
        raise no_option(group, option)
    if group != "method":
        return {group: _over(_defaults(RunSpec)[group], chosen)}
    parts = chosen if "method" in chosen else {"method": chosen}  # the former: `@package _global_`
    return {"method": methods.as_dict(methods.build(parts["method"])), "stages": parts.get("stages", [])}


def _over(usual: dict[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The usual fields with those of an option, also of nested specifications."""
    nested = [name for name in chosen if usual.get(name) and isinstance(usual[name], dict)]
    return {**usual, **chosen, **{name: _over(usual[name], chosen[name]) for name in nested}}


def choose_in(node: dict[str, Any], group: str, option: Any) -> None:
    """Replaces all fields of a group in a composed dict with an option's; a method may be a mapping with its name.

    Raises:
        ConfigError: the group has no such option.
    """
    by_name = isinstance(option, str)
    node.update(deepcopy(choose(group, option) if by_name else {"method": option, "stages": []}))


@cache
def _merged_run() -> dict[str, Any]:
    return _merged("run", shipped("conf"))


def _merged_study(name: str, folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """`_merged` of a study with this content.

    Hydra takes a tenth of a second, so that a list of shipped defaults is merged once in a process.
    """
    if "defaults" not in content:  # a stored study
        return dict(content)
    *others, last = content["defaults"] or [None]
    shipped_alone = last == "_self_" and all(isinstance(entry, dict) or entry == "/study" for entry in others)
    if shipped_alone and not any((folder / own).exists() for own in (*GROUPS, "study.yaml", "study_defaults.yaml")):
        from omegaconf import OmegaConf

        with suppress(Exception):  # Hydra reports it below, with the file that the user knows
            changes = {key: value for key, value in content.items() if key != "defaults"}
            node: Any = OmegaConf.to_container(
                OmegaConf.merge(_merged_defaults(json.dumps(others), config_dir()), changes)
            )
            return node
    return _merged(name, folder)


@cache
def _merged_defaults(defaults: str, own: Path | None) -> dict[str, Any]:
    """What Hydra merges for a list of defaults in JSON: shipped ones, and options in the folder `own`."""
    with TemporaryDirectory() as folder:
        Path(folder, "defaults.yaml").write_text(f'{{"defaults": {defaults}}}', encoding="utf-8")
        return _merged("defaults", Path(folder))


def _merged(name: str, folder: Path) -> dict[str, Any]:
    """A file merged over the options of its defaults list by Hydra, with its references."""
    import hydra  # takes half a second, which reading a study's store does not need
    from omegaconf import OmegaConf

    # Hydra 1.3 needs the version of its behaviour; 1.4 has only one, and warns if it is given.
    base = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
    with _in_one_line(f"{name}.yaml"), _fresh_hydra():
        hydra.initialize_config_dir(str(folder), job_name="fpl_tune", **base)
        node: Any = OmegaConf.to_container(hydra.compose(name, overrides=[_searched()]), resolve=False)
        return node


@contextmanager
def _fresh_hydra() -> Iterator[None]:
    """Clears Hydra's global state, and then restores that of the application, such as one under `@hydra.main`."""
    from hydra import version
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import JobRuntime

    mine, job = GlobalHydra.instance(), JobRuntime.instance()
    versions: Any = getattr(version, "VersionBase", GlobalHydra).instance()  # Hydra 1.4 has none
    states, name = [(one, dict(vars(one))) for one in (mine, versions)], job.get("name")
    mine.clear()
    try:
        yield
    finally:
        for one, state in states:
            vars(one).update(state)
        job.set("name", name)


def _overridden(merged: dict[str, Any], overrides: Sequence[Override], file: str) -> dict[str, Any]:
    """A copy of a merged file with overrides, in which references are resolved last."""
    from omegaconf import OmegaConf

    node = deepcopy(merged)
    # Options come first, regardless of their order: they bring the fields that others set.
    for override in overrides:
        if override.field in GROUPS:
            choose_in(node, override.field, override.value)
    apply(node, [override for override in overrides if override.field not in GROUPS])
    with _in_one_line(file):
        resolved: Any = OmegaConf.to_container(OmegaConf.create(node), resolve=True, throw_on_missing=True)
        return {str(key): value for key, value in resolved.items()}


@contextmanager
def _in_one_line(file: str) -> Iterator[None]:
    """Turns the errors of Hydra and OmegaConf, which have many types, into a `ConfigError` of one line."""
    try:
        yield
    except Exception as problem:
        full = " ".join(f"{problem} {problem.__cause__ or ''}".split())
        if option := re.search(r"Could not find '(\w+)/([^']+)'", full):
            raise no_option(*option.groups()) from None
        if missing := re.search(r"Interpolation key '([^']+)' not found", full):
            raise ConfigError(f"{file} refers to ${{{missing[1]}}}, but has no such field. Write the value.") from None
        raise ConfigError(f"{file} cannot be composed: {textwrap.shorten(full, 300)}") from None


def _searched() -> str:
    """The override of Hydra's search path that adds the groups, the shipped studies and the user's own options to the
    study's own folder."""
    folders = ["pkg://fpl_tune.config.conf"]
    for folder in (shipped("studies"), config_dir()):
        if folder is not None and folder.is_dir():
            folders.append("'file://" + str(folder).replace("'", "\\'") + "'")
    return f"hydra.searchpath=[{','.join(folders)}]"


def _register(defaults: Sequence[Any]) -> None:
    """Registers the defaults, and an option for every method without YAML and for every class that `defaults` names."""
    _register_defaults()
    chosen = [pair for entry in defaults if isinstance(entry, dict) for pair in entry.items()]
    named = [name for group, name in chosen if str(group).endswith("method") and ":" in str(name)]
    files = option_files("method")
    for name in [*methods.catalogue(), *map(str, named)]:
        methods.find(name)
        if name not in files:
            _register_method(name)


@cache  # Hydra 1.4 warns of a second registration, and 1.5 rejects it
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
    """The default fields of a run or study, as in YAML; method and stages are set by the chosen method."""
    return {**json.loads(json.dumps(asdict(kind()))), "method": {}, "stages": []}
