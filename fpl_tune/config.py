"""Typed configuration: Hydra at the door, plain dataclasses behind it. The only file that imports hydra.

A run configuration is composed from the groups in `fpl_tune/conf` (clip, data, partition, optim, protocol, method);
a study file adds what it varies. Below this file nobody sees a DictConfig.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fpl_tune import methods
from fpl_tune.data import DataSpec, PartitionSpec
from fpl_tune.data.registry import resolve
from fpl_tune.errors import ConfigError, did_you_mean, unknown
from fpl_tune.evaluate import CHOICES, HABITS
from fpl_tune.optim import OptimSpec
from fpl_tune.paths import shipped
from fpl_tune.task import ClipSpec, check_clip

GROUPS = ("clip", "data", "partition", "optim", "protocol", "method")


@dataclass
class ProtocolSpec:
    """The schedule of a simulation."""

    rounds: int = 10
    """Communication rounds."""
    epochs: int = 5
    """Local epochs per round."""
    participation: float = 1.0
    """Share of the clients that train in a round, drawn uniformly without replacement."""
    first_round_all: bool = False
    """All clients train in round 1 whatever the participation, as the released FedOTP and FedPGP do."""
    eval_every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""

    def check(self) -> None:
        for name in ("rounds", "epochs", "eval_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"protocol.{name} must be >= 1, but is {getattr(self, name)!r}.")
        if not 0 < self.participation <= 1:
            raise ConfigError(f"protocol.participation must lie in (0, 1], but is {self.participation!r}.")


@dataclass
class StageSpec:
    """One stage of a method that trains in several, and its schedule.

    method: None for the run's own, fields that differ from it, or another method with its `name`.
    """

    method: Any = None
    rounds: int = 1
    epochs: int = 1


@dataclass
class RunSpec:
    """One simulation without its seed: what a cell's identity is made of."""

    clip: ClipSpec = field(default_factory=ClipSpec)
    data: DataSpec = field(default_factory=DataSpec)
    partition: PartitionSpec = field(default_factory=PartitionSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    protocol: ProtocolSpec = field(default_factory=ProtocolSpec)
    method: Any = field(default_factory=dict)
    """{name: ..., hyper-parameters ...}"""
    stages: list[StageSpec] = field(default_factory=list)
    """Empty: one stage of `protocol.rounds` rounds."""


@dataclass
class SearchSpec:
    """How the method's own space is searched inside each cell of the axes; without a sampler nothing is searched."""

    sampler: str | None = None
    """grid, random, tpe, or None"""
    trials: int = 20
    """Trials in each axis cell, the published defaults included."""
    seconds: float | None = None
    """Or a budget of seconds in each axis cell."""
    space: dict[str, Any] = field(default_factory=dict)
    """Overrides of the space in search_spaces/<method>.yaml, by dotted field."""
    only: list[str] = field(default_factory=list)
    """Dotted fields searched; empty: the whole space."""
    objectives: list[str] = field(default_factory=lambda: ["val/acc_mean"])
    """Validation metrics (maximised) or costs (`comm/total_bytes`, `time/seconds`, minimised)."""
    constraints: list[str] = field(default_factory=list)
    """e.g. "comm/total_bytes <= 5e6" """
    batch: int = 4
    """Trials asked for at once: what is suggested does not depend on who finishes first."""
    seed: int = 0


@dataclass
class PruneSpec:
    """Early stopping of cells in rounds; off by default."""

    rule: str | None = None
    """halving (noise-aware successive halving), plateau (no gain for first_rung · reduction rounds), or None"""
    reduction: int = 3
    """One in so many goes on at each rung."""
    first_rung: int = 1
    """Round of the first rung."""
    smoothing: int = 1
    """Rounds averaged."""
    confidence: float = 1.0
    """Standard errors by which a cell must be behind to be stopped; 0 trusts every figure."""


@dataclass
class ExecutionSpec:
    """Where and how trials run. Never part of a cell's identity."""

    executor: str = "ray"
    """ray or inline"""
    address: str | None = None
    """Ray cluster: None starts one on this machine; `auto` or host:port joins one."""
    parallel: int | None = None
    """Trials at once; None: as many as the machine's cores and GPUs carry."""
    threads: int | None = None
    """CPU threads per trial; None: measured rule (one for the compact towers, all for large ones)."""
    gpus: float | None = None
    """GPUs per trial; None: a share from the memory estimate where there is a GPU, else 0."""
    device: str = "auto"
    """auto, cpu or cuda"""
    block: int | None = None
    """Clients (over all seeds) trained at once; None: as many as memory allows."""
    checkpoint_every: int = 5
    """Rounds between checkpoints."""
    retries: int = 1
    """Times a failed trial is tried again."""


@dataclass
class TrackingSpec:
    """MLflow."""

    enabled: bool = True
    uri: str | None = None
    """None: MLFLOW_TRACKING_URI, else SQLite in the output folder."""
    seeds: bool = False
    """A nested run per seed too."""


@dataclass
class ReportSpec:
    """What the report shows first."""

    metric: str = "test/acc_mean"
    rule: str = "final"
    x: str | None = None
    """Axis of the curve; None: the first numeric axis."""
    reference: str | None = None
    """Cell label that others are tested against."""
    paper: dict[str, Any] = field(default_factory=dict)
    """{table: ..., protocol: ..., expected: "...", defects: [...]}: the printed figures the study answers to."""


@dataclass
class StudySpec(RunSpec):
    """A study: a run, what varies, and how it is searched, run and reported."""

    name: str = "study"
    title: str = ""
    note: str = ""
    axes: dict[str, Any] = field(default_factory=dict)
    """Dotted field (or group) -> list of values; always gridded."""
    references: list[Any] = field(default_factory=list)
    """Overrides of cells shown as reference lines, e.g. {method: promptfl}."""
    seeds: Any = 3
    """Number of seeds (1..n) or a list of seeds."""
    scale: str = "small"
    """small (embedded world) or paper: a `paper` block of overrides in the study file replaces the small one."""
    paper_scale: list[str] = field(default_factory=list)
    """Overrides applied by scale=paper."""
    let: dict[str, Any] = field(default_factory=dict)
    """Values that the file names in several places as ${let.<name>}, e.g. what scale=paper changes inside axes."""
    search: SearchSpec = field(default_factory=SearchSpec)
    prune: PruneSpec = field(default_factory=PruneSpec)
    execution: ExecutionSpec = field(default_factory=ExecutionSpec)
    tracking: TrackingSpec = field(default_factory=TrackingSpec)
    report: ReportSpec = field(default_factory=ReportSpec)
    budget: str | None = None
    """e.g. 2h, 30m, 90s: what does not fit is dropped and named."""

    def seed_list(self) -> list[int]:
        """Seeds as a list: 1..n, or what was listed."""
        return list(range(1, self.seeds + 1)) if isinstance(self.seeds, int) else [int(s) for s in self.seeds]


RUN_FIELDS = tuple(f.name for f in fields(RunSpec))


# -- composing -----------------------------------------------------------------------------------------------


def _register() -> None:
    """Schemas, and a config of its own defaults for every method that has no YAML."""
    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunSpec)
    store.store(name="study_schema", node=StudySpec)
    for name, kind in methods.catalogue().items():
        if not shipped("conf", f"method/{name}.yaml").is_file():
            node = {"name": name, **methods.defaults(kind)}
            store.store(group="method", name=name, node={"method": node}, package="_global_")


def study_folders() -> list[Path]:
    """Where study files are looked for: `studies/` of the current folder, then the shipped ones."""
    return [folder for folder in (Path.cwd() / "studies", shipped("studies")) if folder.is_dir()]


def list_studies() -> dict[str, Path]:
    """Study name -> file; the current folder's first."""
    found: dict[str, Path] = {}
    for folder in study_folders():
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def compose_run(overrides: Sequence[str] = ()) -> RunSpec:
    """A run from the command line's overrides.

    Raises:
        ConfigError: an unknown group, option, key or value.
    """
    return to_run(_compose("run", shipped("conf"), overrides))


def compose_study(name: str, overrides: Sequence[str] = ()) -> tuple[StudySpec, dict[str, Any]]:
    """A study by its name, or by the path of its file. Returns the typed study and its plain dict."""
    known = list_studies()
    path = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if path is None or not path.is_file():
        raise unknown("study", name, known)
    node = _compose(path.stem, path.resolve().parent, overrides)
    if node["scale"] == "paper" and node["paper_scale"]:
        overrides = [*node["paper_scale"], *overrides]
        node = _compose(path.stem, path.resolve().parent, overrides)
    _prefer_choices(node, overrides)
    if node["scale"] not in ("small", "paper"):
        raise ConfigError(f"scale must be small or paper, but is {node['scale']!r}.")
    node["name"] = node["name"] if node["name"] != "study" else path.stem
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", node["name"]):
        raise ConfigError(
            f"A study's name holds letters, digits, '_', '-' and '.', 100 at most, but is {node['name']!r}."
        )
    spec = _typed(StudySpec, node)
    check(to_run(node))
    if spec.report.rule not in (*CHOICES, *HABITS):
        raise unknown("report.rule", spec.report.rule, (*CHOICES, *HABITS))
    return spec, node


def _prefer_choices(node: dict[str, Any], overrides: Sequence[str]) -> None:
    """Lets an option chosen from outside replace what the study's file says of that group, in place.

    Hydra lays the file over the chosen option: `method=promptfl` would keep the file's `method.d_gating`, and
    `protocol=quick` the file's rounds. Single fields given from outside are laid over the choice again.
    """
    given = [
        (o.key_or_group, o.value())
        for o in OverridesParser.create().parse_overrides(list(overrides))
        if not o.is_delete()
    ]
    for group, option in given:
        if group in GROUPS and isinstance(option, str):
            node.update(deepcopy(choose(group, option)))
    for dotted, value in given:
        if dotted.split(".")[0] in GROUPS and "." in dotted:
            set_field(node, dotted, value)


# Fields that take any key, without Hydra's `+`.
_OPEN = ("axes.", "optim.groups.", "search.space.", "report.paper.", "let.")


def _register_named(overrides: Sequence[str]) -> None:
    """Makes a class that is named as `method=package.module:Class` an option of the group."""
    for text in overrides:
        key, _, name = text.partition("=")
        if key == "method" and ":" in name:
            node = {"method": {"name": name, **methods.defaults(methods.find(name))}}
            ConfigStore.instance().store(group="method", name=name, node=node, package="_global_")


def _compose(name: str, folder: Path, overrides: Iterable[str]) -> dict[str, Any]:
    _register()
    _register_named(overrides := list(overrides))
    overrides = [f"++{text}" if text.startswith(_OPEN) else text for text in overrides]
    for text in overrides:
        try:
            OverridesParser.create().parse_override(text)
        except HydraException as problem:
            raise ConfigError(f"{text!r} is no override: {str(problem).splitlines()[0]} Write key=value.") from None
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(folder), version_base="1.3", job_name="fpl_tune"):
            found = hydra.compose(name, overrides=[*overrides, "hydra.searchpath=[pkg://fpl_tune.conf]"])
        return _plain(found)
    except (HydraException, OmegaConfBaseException) as problem:
        raise _readable(problem, folder / f"{name}.yaml") from None
    finally:
        GlobalHydra.instance().clear()


def _plain(node: DictConfig) -> dict[str, Any]:
    found = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    assert isinstance(found, dict)
    return {str(k): v for k, v in found.items()}


_KINDS = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false"}


def _readable(problem: Exception, path: Path) -> ConfigError:
    """Hydra's message in one line, with did-you-mean for keys and options."""
    text = str(problem)
    cause = problem.__cause__
    full = f"{text}\n{cause}" if cause else text
    if option := re.search(r"Could not find '(\w+)/([^']+)'", full):
        group, name = option.groups()
        return unknown(group, name, options(group))
    if key := re.search(r"Key '([^']+)' (?:is )?not in '?(\w+)'?", full):
        where = re.search(r"full_key: ([\w.\[\]]+)", full)
        dotted = where.group(1) if where else key.group(1)
        return ConfigError(f"There is no field {dotted!r}. {did_you_mean(dotted, known_fields(dotted))}")
    if override := re.search(r"Could not override '([^']+)'", full):
        dotted = override.group(1)
        return ConfigError(f"There is no field {dotted!r}. {did_you_mean(dotted, known_fields(dotted))}")
    if value := re.search(r"Value '(.*?)' of type '(\w+)' could not be converted to (\w+)", full):
        where = re.search(r"full_key: ([\w.\[\]]+)", full)
        wanted = _KINDS.get(value.group(3), value.group(3))
        return ConfigError(f"{where.group(1) if where else 'a field'} must be {wanted}, but is {value.group(1)!r}.")
    if isinstance(problem, ConfigCompositionException) and cause is not None:
        text = f"{text}: {cause}"
    return ConfigError(f"{path.name}: {' '.join(text.split())}")


def options(group: str) -> list[str]:
    """Names that a group offers: its YAML files, and for `method` every known method."""
    named = {path.stem for path in shipped("conf", group).glob("*.yaml")}
    return sorted(named | set(methods.catalogue()) if group == "method" else named)


def known_fields(near: str) -> list[str]:
    """Dotted names of all typed fields, and of the fields of methods if `near` is one of a method."""
    found: list[str] = []

    def walk(kind: type, prefix: str) -> None:
        for f in fields(kind):
            found.append(prefix + f.name)
            if f.default_factory is not None and is_dataclass(f.default_factory):
                walk(f.default_factory, f"{prefix}{f.name}.")  # type: ignore[arg-type]

    walk(StudySpec, "")
    if near.startswith(("method", "axes", "+method")):
        for kind in methods.catalogue().values():
            found.extend(f"method.{f.name}" for f in methods.hyper_parameters(kind))
    return sorted(set(found))


# -- from dicts to typed runs --------------------------------------------------------------------------------


def _typed(kind: type[Any], node: Mapping[str, Any]) -> Any:
    merged = OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.create(dict(node)))
    return OmegaConf.to_object(merged)


def to_run(node: Mapping[str, Any]) -> RunSpec:
    """The run of a composed dict: study fields dropped, the partition's open fields resolved.

    Raises:
        ConfigError: an unknown field or a value of the wrong type.
    """
    try:
        run: RunSpec = _typed(RunSpec, {k: v for k, v in node.items() if k in RUN_FIELDS})
    except OmegaConfBaseException as problem:
        raise _readable(problem, Path("configuration")) from None
    run.partition = resolve(run.data, run.partition)
    return run


def check(run: RunSpec) -> None:
    """Everything that can be refused without reading data. Raises `ConfigError`."""
    run.optim.check()
    run.protocol.check()
    check_clip(run.clip)
    methods.build(run.method)
    for stage in run.stages:
        methods.build(stage_method(run, stage), "stages.method")
        if stage.rounds < 1 or stage.epochs < 1:
            raise ConfigError(f"A stage has at least one round and one epoch, but is {stage!r}.")


def stage_method(run: RunSpec, stage: StageSpec) -> dict[str, Any]:
    """A stage's method: the run's own, the run's own with some fields changed, or (with a name) another one."""
    changes = dict(stage.method or {})
    return changes if "name" in changes else {**run.method, **changes}


def as_dict(run: RunSpec) -> dict[str, Any]:
    """Plain nested dict of a run, without the study's fields."""
    return {name: value for name, value in asdict(run).items() if name in RUN_FIELDS}


def identity(run: RunSpec) -> str:
    """8 hex digits of the canonical configuration: the id of a cell. Machine paths and seeds are no part of it."""
    node = as_dict(run)
    node["data"] = {k: v for k, v in node["data"].items() if k != "root"}
    text = json.dumps(node, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def set_field(node: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a field of a composed dict in place by its dotted name.

    Raises:
        ConfigError: there is no such field.
    """
    *path, last = dotted.split(".")
    here = node
    for part in path:
        if not isinstance(here.get(part), dict):
            raise ConfigError(f"There is no field {dotted!r}. {did_you_mean(dotted, known_fields(dotted))}")
        here = here[part]
    if last not in here and path[:2] != ["optim", "groups"]:
        raise ConfigError(f"There is no field {dotted!r}. {did_you_mean(dotted, known_fields(dotted))}")
    here[last] = value


def get_field(node: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """A field of a composed dict by its dotted name, or `default`."""
    here: Any = node
    for part in dotted.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return default
        here = here[part]
    return here


def to_study(node: Mapping[str, Any]) -> StudySpec:
    """The typed study of a composed or stored dict.

    Raises:
        ConfigError: an unknown field or a value of the wrong type.
    """
    try:
        return _typed(StudySpec, node)
    except OmegaConfBaseException as problem:
        raise _readable(problem, Path("study.yaml")) from None


@cache
def choose(group: str, option: str) -> dict[str, Any]:
    """What choosing an option of a group sets: top-level parts of a composed run by name. Copy before changing.

    Raises:
        ConfigError: the group has no such option.
    """
    if group == "method" and ":" in option:
        return {"method": {"name": option, **methods.defaults(methods.find(option))}, "stages": []}
    base = _compose("run", shipped("conf"), ())
    chosen = _compose("run", shipped("conf"), (f"{group}={option}",))
    brought = {"method", "stages"} if group == "method" else {group}
    return {name: value for name, value in chosen.items() if name in brought or value != base[name]}
