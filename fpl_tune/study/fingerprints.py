"""Fingerprints of what a result depends on besides its configuration: source of the method, data, weights, versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fpl_tune import methods
from fpl_tune.clip.load import weights_print
from fpl_tune.config import RunSpec
from fpl_tune.core.contents import digest_of
from fpl_tune.core.errors import ConfigError, MissingData
from fpl_tune.core.files import digest
from fpl_tune.core.paths import local
from fpl_tune.core.sources import own_files, source_of
from fpl_tune.data import load
from fpl_tune.data.sources import SOURCES, source
from fpl_tune.data.spec import cross_data
from fpl_tune.method import Method
from fpl_tune.simulation.task import SharedData
from fpl_tune.study.versions import versions


class Fingerprints:
    """The fingerprints of runs at one time: data and weights are read once, however many runs share them.

    Args:
        planned: True if nothing is run, so that data may be missing: fingerprints are empty then, and no cell is stale.
    """

    def __init__(self, *, planned: bool = False) -> None:
        self._planned = planned
        self._read: dict[str, dict[str, Any]] = {}

    def __call__(self, run: RunSpec) -> dict[str, Any]:
        """The fingerprints of a run; see `fingerprints`."""
        key = json.dumps([vars(run.clip), vars(run.data), run.partition.file, run.protocol.cross], sort_keys=True)
        if key not in self._read:
            try:
                self._read[key] = fingerprints(run)
            except MissingData:
                if not self._planned:
                    raise
                self._read[key] = {}
        return self._read[key] and {**self._read[key], "method": method_source(run)}


def fingerprints(run: RunSpec, world: SharedData | None = None) -> dict[str, Any]:
    """Fingerprints of a run: `method` (source), `data` and `weights` (contents), and `versions`.

    The configuration is not among them: it is the cell's id.

    Args:
        run: the run.
        world: data and weights that a simulation of the run has loaded; None: as they are on disk now.
    """
    if world is None:
        others = [load(cross_data(run.data, name)) for name in run.protocol.cross]
        datasets = [load(run.data, run.partition.file), *others]
        weights = weights_print(run.clip.name, run.clip.pretrained)
    else:
        datasets = [world.dataset, *(other for other, _ in world.others.values())]
        weights = world.weights
    data = [dataset.fingerprint for dataset in datasets]
    data += [digest(source_of(source(run.data.name).loader))] if run.data.name not in SOURCES else []
    data += [digest_of(local(run.partition.file))] if run.partition.file else []
    return {"method": method_source(run), "data": " ".join(data), "weights": weights, "versions": versions()}


def method_source(run: RunSpec) -> str:
    """Digest of the code of all methods of a run, including wrapped ones; comments and layout do not count.

    Raises:
        ConfigError: a stored method whose plug-in cannot be imported.
    """
    return digest("\n".join(sorted({source_of(kind) for kind in _kinds_of(run)})), 6)


def code_of(run: RunSpec) -> dict[Path, Path]:
    """The files of a user's own methods and data set in a run, by their place in their project.

    Raises:
        ConfigError: a stored method whose plug-in cannot be imported.
    """
    things: list[Any] = [*_kinds_of(run)]
    things += [source(run.data.name).loader] if run.data.name not in SOURCES else []
    return {place: path for thing in things for place, path in own_files(thing).items()}


def _kinds_of(run: RunSpec) -> set[type[Method]]:
    """The classes of all methods of a run."""
    used = [run.method, *(stage.method for stage in run.stages)]
    return {kind for method in used for kind in _kinds(method)}


def _kinds(method: Method) -> set[type[Method]]:
    """The classes of a method and of the methods that it wraps, with their base classes."""
    if isinstance(method, methods.Absent):
        raise ConfigError(method.why)
    wrapped = [value for value in vars(method).values() if isinstance(value, Method)]
    own = {kind for kind in type(method).__mro__ if issubclass(kind, Method) and kind is not Method}
    return own.union(*map(_kinds, wrapped))
