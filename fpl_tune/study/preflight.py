"""What can be refused before anything starts: methods that do not fit their task, trials that fit no memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fpl_tune import config
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


def check(runs: Sequence[RunSpec], setup: Setup) -> None:
    """Raises `ConfigError` for the first run whose method does not fit its task."""
    sizes: dict[str, TaskSizes] = {}
    towers: dict[str, Towers] = {}
    data: dict[str, Dataset] = {}
    for run in runs:
        key = json.dumps([asdict(run.clip), asdict(run.data), asdict(run.partition)], sort_keys=True)
        if key not in sizes:
            sizes[key] = _sizes(run, towers, data)
        for stage in stages_of(run):
            stage.method.check(sizes[key])
            if stage.method.needs == "patches" and sizes[key].n_patches is None:
                raise ConfigError(
                    f"{run.method['name']} needs patch features, but {run.clip.name} has none. Choose another clip."
                )


def _sizes(run: RunSpec, towers: dict[str, Towers], data: dict[str, Dataset]) -> TaskSizes:
    clip = json.dumps([run.clip.name, run.clip.pretrained])
    if clip not in towers:
        towers[clip] = load_towers(run.clip.name, run.clip.pretrained)
    listed = json.dumps(config.as_dict(run)["data"])
    if listed not in data:
        data[listed] = load(run.data)
    tower, dealt = towers[clip], split(data[listed], run.data, run.partition, 1)
    return TaskSizes(
        dealt.n_clients,
        len(dealt.classes),
        len(data[listed].domains),
        tower.embed_dim,
        tower.text_width,
        None if tower.n_vision_blocks is None else tower.vision_width,
        tower.n_patches,
        tower.n_text_blocks,
        tower.n_vision_blocks,
        all(set(test.classes) == set(dealt.classes) for test in dealt.tests.values()),
    )
