"""What can be refused before anything starts: methods that do not fit their task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from fpl_tune.clip import Towers, load_towers
from fpl_tune.config import RunSpec
from fpl_tune.data import Dataset, load, split
from fpl_tune.errors import ConfigError
from fpl_tune.study.job import Setup
from fpl_tune.trial import stages_of


@dataclass
class TaskSizes:
    """The sizes of a task; implements `fpl_tune.method.Sizes`."""

    n_clients: int
    n_classes: int
    n_domains: int
    embed_dim: int
    text_width: int
    vision_width: int | None
    n_patches: int | None
    n_text_blocks: int
    n_vision_blocks: int | None
    same_classes: bool


@dataclass
class Loaded:
    """Towers and data sets of a study, each loaded once."""

    _towers: dict[str, Towers] = field(default_factory=dict)
    _data: dict[str, Dataset] = field(default_factory=dict)

    def towers_of(self, run: RunSpec) -> Towers:
        key = json.dumps([run.clip.name, run.clip.pretrained])
        if key not in self._towers:
            self._towers[key] = load_towers(run.clip.name, run.clip.pretrained)
        return self._towers[key]

    def dataset_of(self, run: RunSpec) -> Dataset:
        key = json.dumps(asdict(run.data))
        if key not in self._data:
            self._data[key] = load(run.data)
        return self._data[key]


def check(runs: Sequence[RunSpec], setup: Setup) -> Loaded:
    """Raises `ConfigError` for the first run whose method does not fit its task; returns what it had to load."""
    loaded = Loaded()
    sizes: dict[str, TaskSizes] = {}
    for run in runs:
        key = json.dumps([asdict(run.clip), asdict(run.data), asdict(run.partition)], sort_keys=True)
        if key not in sizes:
            sizes[key] = _sizes(run, loaded)
        for stage in stages_of(run):
            stage.method.check(sizes[key])
            if stage.method.needs == "patches" and sizes[key].n_patches is None:
                raise ConfigError(
                    f"{run.method['name']} needs patch features, but {run.clip.name} has none. Choose another clip."
                )
    return loaded


def _sizes(run: RunSpec, loaded: Loaded) -> TaskSizes:
    tower, dataset = loaded.towers_of(run), loaded.dataset_of(run)
    dealt = split(dataset, run.data, run.partition, 1)
    return TaskSizes(
        dealt.n_clients,
        len(dealt.classes),
        len({int(d) for d in dealt.domain}),
        tower.embed_dim,
        tower.text_width,
        None if tower.n_vision_blocks is None else tower.vision_width,
        tower.n_patches,
        tower.n_text_blocks,
        tower.n_vision_blocks,
        all(set(test.classes) == set(dealt.classes) for test in dealt.tests.values()),
    )
