"""Tiny towers with CLIP's architecture, which run in milliseconds, and tasks of random images for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.clip.tokenizer import OpenClipTokenizer
from fpl_tune.clip.towers import Towers
from fpl_tune.simulation.task import Classes, ClientData, ClientTask

TowerKind = Literal["vit", "resnet"]

EVERYONE = torch.arange(4)
"""Ids of the clients of a toy task."""


def toy_towers(
    kind: TowerKind = "vit",
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    quick_gelu: bool = False,
    embed: int = 24,
    **text: Any,
) -> Towers:
    """The smallest open_clip CLIP with a ViT or a ResNet: 3 text blocks of width 32, and embeddings of width `embed`.

    Weights are drawn from `seed`, with a spread such that every block matters. `text` changes fields of the text tower
    (`no_causal_mask=True`, ...).
    """
    ensure_importable()
    from open_clip import CLIP, CLIPTextCfg, CLIPVisionCfg, SimpleTokenizer

    tokenizer = OpenClipTokenizer(SimpleTokenizer(), 77)
    if kind == "vit":
        vision = CLIPVisionCfg(layers=3, width=32, head_width=8, patch_size=8, image_size=32)
    else:
        vision = CLIPVisionCfg(layers=(1, 1, 1, 1), width=8, head_width=32, image_size=64)
    words = CLIPTextCfg(width=32, heads=4, layers=3)
    vars(words).update(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIP(embed, vision, words, quick_gelu=quick_gelu)
        for key, value in model.named_parameters():
            if value.dim() == 1 and "logit" not in key:
                torch.nn.init.normal_(value, mean=1.0 if "weight" in key else 0.0, std=0.1)
    return Towers(model.to(dtype), tokenizer, name=f"toy-{kind}")


_NAMES = ("cat", "dog", "sea lion", "red star", "tree", "car")


@cache
def _toy_classes(
    kind: TowerKind, dtype: torch.dtype, n_classes: int, device: torch.device, tower: torch.dtype
) -> Classes:
    towers = toy_towers(kind, dtype=dtype)
    moved = Towers(towers.model.to(device, tower), towers.tokenizer, name=towers.name)
    return Classes(moved, _NAMES[:n_classes])


def toy_task(
    needs: Literal["pooled", "patches", "pixels"] = "pooled",
    *,
    kind: TowerKind = "vit",
    seed: int = 0,
    sizes: Sequence[int] = (9, 5, 7, 3),
    n_classes: int = 6,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
    tower: torch.dtype | None = None,
    views: int = 0,
) -> ClientTask:
    """A task of random images around a centre per class and domain, on toy towers that all toy tasks share.

    Each client has two validation images, three test images, and training images as in `sizes`. The second half of the
    clients is in a second domain.

    Args:
        needs: content of `Batch.image`.
        kind: the image tower.
        seed: seed of the images; the towers are the same for all seeds.
        sizes: number of training images of each client.
        n_classes: number of classes, at most 6.
        dtype: dtype of learned leaves, and of the towers unless `tower` is given.
        device: device of towers and tables; the CPU if None.
        tower: dtype of the towers.
        views: number of random views of each training image.
    """
    device = device or torch.device("cpu")
    classes = _toy_classes(kind, dtype, n_classes, device, tower or dtype)
    rng = torch.Generator().manual_seed(seed)
    towers, n_clients = classes.towers, len(sizes)
    domain = torch.arange(n_clients) * 2 // n_clients
    shape = {
        "pooled": (towers.embed_dim,),
        "patches": (towers.n_patches or 1, towers.embed_dim),
        "pixels": (3, towers.image_size, towers.image_size),
    }[needs]
    centres = torch.randn(2, n_classes, *shape, generator=rng)

    def clients(counts: Sequence[int]) -> ClientData:
        at = domain.repeat_interleave(torch.tensor(counts))
        labels = torch.randint(n_classes, (len(at),), generator=rng)
        images = (centres[at, labels] + 0.5 * torch.randn(len(at), *shape, generator=rng)).to(dtype)
        if needs == "pixels":
            images = (images * 40 + 128).clamp(0, 255).to(torch.uint8)
        cuts = np.cumsum(counts)[:-1]
        index, label = np.split(np.arange(len(at)), cuts), np.split(labels.numpy(), cuts)
        images = images.to(device)
        second = [images.roll(1, dims=-1), images.flip(-1)]
        drawn = [images.roll(number + 2, dims=-1) for number in range(views)]
        more = {"dtype": dtype, "device": device, "views": drawn, "second": second}
        return ClientData(images, index, label, towers=towers, **more)

    train, val, test = clients(sizes), clients([2] * n_clients), clients([3] * n_clients)
    return ClientTask(towers, classes, train, val, {"test": (classes, test)}, domain.to(device), 2)
