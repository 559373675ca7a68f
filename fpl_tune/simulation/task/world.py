"""Towers, data set and cached features: what all seeds and trials of a process share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpl_tune.clip import Towers, load_towers
from fpl_tune.clip.allocator import keep_freed_memory, trim
from fpl_tune.clip.load import weights_print
from fpl_tune.config.specs import ClipSpec
from fpl_tune.core.device import usable_bytes
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import Dataset, DataSpec, PartitionSpec, Split, features, split
from fpl_tune.data.transform import View, pools_and_views
from fpl_tune.simulation.task.classes import GENERIC_TEMPLATE, Classes
from fpl_tune.simulation.task.client_task import ClientTask
from fpl_tune.simulation.task.clients import ClientData


def towers_for(clip: ClipSpec, device: str = "cpu", dtype: str | None = None) -> Towers:
    """The towers of a specification, in `dtype` or the specified one; turns TF32 off for the process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # it keeps three digits of float32
    kind = getattr(torch, dtype or clip.dtype)
    options = {"quick_gelu": clip.quick_gelu, "preprocess": clip.preprocess}
    return load_towers(clip.name, clip.pretrained, **options, device=device, dtype=kind)


_Arrays = Sequence[np.ndarray]
_TABLES_SHARE = 0.25
"""Of an accelerator's memory, for tables of images."""


def _placed(tables: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Tables of images on the device, where they take little enough of its memory: a step then copies nothing. Larger
    ones stay on the CPU, and every step copies its images."""
    if device.type == "cpu" or sum(table.nbytes for table in tables) > _TABLES_SHARE * usable_bytes(device):
        return tables
    return [table.to(device) for table in tables]


@dataclass
class SharedData:
    """Towers, data set and cached features: the same for all seeds and all trials that agree on the fields."""

    towers: Towers
    dataset: Dataset
    clip: ClipSpec
    train_images: Tensor
    test_images: Tensor
    views: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()
    others: Mapping[str, tuple[Dataset, Tensor]] = field(default_factory=dict)
    """Other data sets that are tested on, by name, and the features of their test images."""
    passed: int = 0
    """Blocks of the image tower that the images have passed."""
    weights: str = ""
    """Digest of the files that the towers were read from."""
    patched: Sequence[Tensor] = ()
    """Training and test images with the patch of a backdoor; empty without one."""
    _classes: dict[tuple[str, ...], Classes] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        clip: ClipSpec,
        weights: str,
        dataset: Dataset,
        n_views: int,
        needs: str,
        view: str | None = None,
        cross: Mapping[str, Dataset] | None = None,
        image_blocks: int | None = None,
        patch: View | None = None,
        *,
        cache_dir: Path,
        device: str = "cpu",
        progress: Any = None,
    ) -> SharedData:
        """Loads towers, and the image features that `needs` names (from the cache where it holds them).

        weights: digest of the files of the towers, by `weights_print`.
        n_views: random views of each training image (`DataSpec.views`).
        view: kind of the second view that the method asks for (`Method.view`).
        cross: other data sets that are tested on, by name (`ProtocolSpec.cross`).
        image_blocks: the last blocks of the image tower that what is learned reaches (`Method.image_blocks`).
        patch: the view of images with the patch of a backdoor; None: there is none.

        Raises:
            EnvironmentProblem: data or weights are missing, or change while they are read.
        """
        keep_freed_memory()
        towers = towers_for(clip, device)
        if weights_print(clip.name, clip.pretrained) != weights:
            raise EnvironmentProblem(f"The weights {clip.pretrained} changed while they were read. Start again.")
        passed = towers.blocks_below(image_blocks)
        read = partial(features, towers=towers, needs=needs, blocks=passed, cache_dir=cache_dir, progress=progress)
        tables = [read(pool, view=look) for pool, look in pools_and_views(dataset, n_views, view, patch)]
        train, test, *views = _placed(tables, towers.device)
        views, patched = (views[:-2], views[-2:]) if patch is not None else (views, [])
        others = {name: (other, read(other.test)) for name, other in (cross or {}).items()}
        trim()  # what encoding images took
        return cls(
            towers, dataset, clip, train, test, views[:n_views], views[n_views:], others, passed, weights, patched
        )

    def classes(self, dataset: Dataset, ids: Sequence[int] | np.ndarray) -> Classes:
        names, template = tuple(dataset.classes[i] for i in ids), self.clip.template
        template = {"generic": GENERIC_TEMPLATE, "dataset": dataset.template}.get(template, template)
        key = (template, *names)
        if key not in self._classes:
            self._classes[key] = Classes(self.towers, names, template, self.clip.class_position)
        return self._classes[key]

    def task(self, data: DataSpec, partition: PartitionSpec, seed: int) -> ClientTask:
        """The task of one seed: its partition and few-shot draw."""
        drawn: Split = split(self.dataset, data, partition, seed)
        device = self.towers.device

        def clients(images: Tensor, index: _Arrays, label: _Arrays, ids: np.ndarray, **views: Any) -> ClientData:
            position = np.zeros(len(self.dataset.classes), dtype=np.int64)
            position[ids] = np.arange(len(ids))
            positions = [position[labels] for labels in label]
            return ClientData(images, index, positions, towers=self.towers, device=device, **views)

        views = {"views": self.views, "second": self.second, "patched": self.patched[0] if self.patched else None}
        tests = {
            name: (self.classes(self.dataset, t.classes), clients(self.test_images, t.index, t.label, t.classes))
            for name, t in drawn.tests.items()
        }
        for name, (other, images) in self.others.items():
            index, label = ([part] * drawn.n_clients for part in (np.arange(len(other.test)), other.test.label))
            everyone = ClientData(images, index, label, towers=self.towers, device=device)
            tests[f"cross/{name}"] = self.classes(other, range(len(other.classes))), everyone
        # Held-out domains have no keys or prompts of their own. All others count, even where no client of this seed's
        # split has most of its images from one, so that all seeds have states of one shape.
        training = {i for i, name in enumerate(self.dataset.domains) if name not in partition.held_out}
        domains = np.array(sorted(training | set(drawn.domain.tolist())))
        return ClientTask(
            towers=self.towers,
            known=self.classes(self.dataset, drawn.classes),
            train=clients(self.train_images, drawn.train, drawn.train_label, drawn.classes, **views),
            val=clients(self.train_images, drawn.val, drawn.val_label, drawn.classes),
            tests=tests,
            domain=torch.as_tensor(np.searchsorted(domains, drawn.domain), device=device),
            n_domains=len(domains),
            split_hash=drawn.hash,
            primary=next(iter(drawn.tests)),
            passed=self.passed,
        )
