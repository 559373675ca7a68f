"""Towers, data set and cached features: what all seeds and trials of a process share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator
from pydantic.dataclasses import dataclass as spec
from torch import Tensor

from fpl_tune.clip import Towers, load_towers
from fpl_tune.clip.allocator import keep_freed_memory
from fpl_tune.clip.sentences import Position
from fpl_tune.data import Dataset, DataSpec, PartitionSpec, Pool, Split, features, load, split
from fpl_tune.data.augment import View, views_of
from fpl_tune.spec import SPEC
from fpl_tune.task.classes import GENERIC_TEMPLATE, Classes
from fpl_tune.task.client_task import ClientTask
from fpl_tune.task.clients import ClientData


def _with_place(template: str) -> str:
    if template not in ("generic", "dataset") and "{}" not in template:
        raise ValueError("must be 'generic', 'dataset' or a text with {} for the class name")
    return template


@spec(frozen=True, config=SPEC)
class ClipSpec:
    """The frozen towers and how class names become prompts."""

    name: str = "compact"
    """`compact` (shipped) or an open_clip model: RN50, ViT-B-16, ViT-B-32, ..."""
    pretrained: str | None = None
    """None, an open_clip tag such as `openai`, or the path of a local checkpoint."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The towers' arithmetic. What is learned stays float32."""
    tf32: bool = False
    """On CUDA: float32 matrix products in TF32, three digits for speed. Never without being asked for."""
    template: Annotated[str, AfterValidator(_with_place)] = "generic"
    """Hand-written prompts: `generic` ("a photo of a {}."), `dataset` (the data set's own), or a text with {}."""
    quick_gelu: Literal["auto", True, False] = "auto"
    """auto: what the name, the tag or the checkpoint says; true or false where they do not."""
    class_position: Position = "end"
    """Where the class name stands among the context tokens."""

    def load(self, device: str = "cpu", dtype: str | None = None) -> Towers:
        """The towers, in `dtype` or the specified one; sets the process's TF32 mode."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        kind = getattr(torch, dtype or self.dtype)
        return load_towers(self.name, self.pretrained, quick_gelu=self.quick_gelu, device=device, dtype=kind)


@dataclass
class World:
    """Towers, data set and cached features: the same for all seeds and all trials that agree on the fields."""

    towers: Towers
    dataset: Dataset
    clip: ClipSpec
    train_images: Tensor
    test_images: Tensor
    dtype: torch.dtype
    views: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()
    _classes: dict[tuple[int, ...], Classes] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        clip: ClipSpec,
        data: DataSpec,
        needs: str,
        view: str | None = None,
        *,
        cache_dir: Path,
        device: str = "cpu",
        progress: Any = None,
    ) -> World:
        """Loads towers and data set, and the image features that `needs` names (from the cache where it holds them).

        view: kind of the second view that the method asks for (`Method.view`).
        """
        keep_freed_memory()
        towers = clip.load(device)
        dataset = load(data)

        def seen(pool: Pool, look: View | None = None) -> Tensor:
            return features(pool, towers, needs=needs, cache_dir=cache_dir, progress=progress, view=look)

        crops, others = views_of(data.views, view)
        return cls(
            towers,
            dataset,
            clip,
            seen(dataset.train),
            seen(dataset.test),
            torch.float32,
            views=[seen(dataset.train, look) for look in crops],
            second=[seen(dataset.train, look) for look in others],
        )

    def classes(self, ids: np.ndarray) -> Classes:
        key = tuple(int(i) for i in ids)
        if key not in self._classes:
            names = tuple(self.dataset.classes[i] for i in key)
            template = {"generic": GENERIC_TEMPLATE, "dataset": self.dataset.template}.get(
                self.clip.template, self.clip.template
            )
            self._classes[key] = Classes(self.towers, names, template, self.clip.class_position)
        return self._classes[key]

    def task(self, data: DataSpec, partition: PartitionSpec, seed: int) -> ClientTask:
        """The task of one seed: its partition and few-shot draw."""
        drawn: Split = split(self.dataset, data, partition, seed)
        device = self.towers.device

        def clients(
            images: Tensor,
            index: Sequence[np.ndarray],
            label: Sequence[np.ndarray],
            ids: np.ndarray,
            **views: Sequence[Tensor],
        ) -> ClientData:
            place = np.zeros(len(self.dataset.classes), dtype=np.int64)
            place[ids] = np.arange(len(ids))
            held = [place[labels] for labels in label]
            return ClientData(images, index, held, towers=self.towers, dtype=self.dtype, device=device, **views)

        tests = {
            name: (self.classes(t.classes), clients(self.test_images, t.index, t.label, t.classes))
            for name, t in drawn.tests.items()
        }
        # Domains count those that somebody trains on: a held-out domain has no keys or prompts of its own.
        trained_domains, trained_domain = np.unique(drawn.domain, return_inverse=True)
        return ClientTask(
            towers=self.towers,
            known=self.classes(drawn.classes),
            train=clients(
                self.train_images,
                drawn.train,
                drawn.train_label,
                drawn.classes,
                views=self.views,
                second=self.second,
            ),
            val=clients(self.train_images, drawn.val, drawn.val_label, drawn.classes),
            tests=tests,
            domain=torch.as_tensor(trained_domain, device=device),
            n_domains=len(trained_domains),
            split_hash=drawn.hash,
            primary=next(iter(drawn.tests)),
        )
