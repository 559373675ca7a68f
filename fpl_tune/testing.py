"""Small worlds of the true architecture, for tests."""

from __future__ import annotations

from typing import Any, Literal

import torch

from fpl_tune.clip._torchvision import ensure_importable
from fpl_tune.clip.load import OpenClipTokenizer
from fpl_tune.clip.towers import Towers


def toy_towers(
    kind: Literal["vit", "resnet"] = "vit",
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    quick_gelu: bool = False,
    **text: Any,
) -> Towers:
    """The smallest open_clip CLIP with a ViT or a ResNet: 3 text blocks of width 32, embedding width 24.

    Weights are random, drawn from `seed`, spread so that every block matters. `text` changes single fields of
    the text tower (`no_causal_mask=True`, ...).
    """
    ensure_importable()
    from open_clip import SimpleTokenizer
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    tokenizer = OpenClipTokenizer(SimpleTokenizer(), 77)
    if kind == "vit":
        vision = CLIPVisionCfg(layers=3, width=32, head_width=8, patch_size=8, image_size=32)
    else:
        vision = CLIPVisionCfg(layers=(1, 1, 1, 1), width=8, head_width=32, image_size=64)
    words = CLIPTextCfg(**{"width": 32, "heads": 4, "layers": 3} | text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIP(24, vision, words, quick_gelu=quick_gelu)
        for key, value in model.named_parameters():
            if value.dim() == 1 and "logit" not in key:
                torch.nn.init.normal_(value, mean=1.0 if "weight" in key else 0.0, std=0.1)
    return Towers(model.to(dtype), tokenizer, name=f"toy-{kind}")
