"""The page of towers: all models of open_clip by what runs on them, read from models without weights."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

import torch

from fpl_tune.clip import image
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.clip.text import text_tower

SMALL = {"image_size": 32, "patch_size": 16, "width": 32, "head_width": 16, "layers": 1}
KINDS = {
    "packed": "causal: the shared beginning of sentences once",
    "plain": "bidirectional: whole sentences",
    "class": "class token: whole sentences, nothing inside the blocks",
    "hf": "Hugging Face: whole sentences, nothing inside the blocks",
}
HEAD = """# Towers

Written from the configurations of open_clip by `python docs/site/document.py`: what runs on each of its {n} models.
`clip.name=NAME` takes any of them, with a tag of open_clip or a file as `clip.pretrained`.

* **Text**: every text encoder takes a context at the end, in the middle or at the front of sentences. Causal ones
  compute the beginning that sentences share once (`fpl-tune bench text`). A bidirectional one has no such beginning,
  and its sentences run at the full length that it was trained with, see
  [speed](../explanation/speed.md#other-text-encoders).
* **Inside the text blocks**: deep prompts and branches, as in FedMaPLe, pFedMMA and FedLoRA. Elsewhere these methods
  are refused in one line.
* **Images**: all models have pooled features. *Patches* (FedOTP and others) need a ResNet or vision transformer of
  open_clip, *prompts* (visual prompts and branches in the image tower) a vision transformer with a class token. Image
  towers of timm, those with another pooling, and CoCa's attentional pooling have pooled features only.
* **Tokenizer**: CLIP's is part of open_clip. Of all others `tokenizer.json` and `tokenizer_config.json`, and of a text
  encoder of Hugging Face `config.json`, are read from the folder of the weights or of `local-dir:`, else from the Hub's
  cache or the Hub, with `pip install 'fpl-tune[hf]'`.
* A logit bias (SigLIP's) adds the same number to all classes and does not change a softmax. It is left out; the scale
  is used.

Beside these there are `compact`, which ships with the package and has everything, and `natural`: EfficientNet-Lite0 and
MiniLM, real weights that a package registry has and that are not CLIP's, with pooled features and contexts. The map
between them is fitted to ImageNet's class names, and kept in the cache folder (`fpl_tune/clip/natural.py`). What it is
good for, and how far the embedded world foretells it, is in [worlds](../explanation/world.md).

| Text | Inside the text blocks | Patches | Image prompts | Tokenizer | Models |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The page, a row for all models of a kind."""
    ensure_importable()
    import open_clip

    logging.disable(logging.CRITICAL)  # open_clip says that models have no weights
    rows = defaultdict[tuple[str, ...], list[str]](list)
    for name in open_clip.list_models():
        rows[_row(name, open_clip.get_model_config(name) or {})].append(name)
    logging.disable(logging.NOTSET)
    lines = [f"| {' | '.join(row)} | {', '.join(f'`{name}`' for name in names)} |" for row, names in rows.items()]
    order = {kind: number for number, kind in enumerate(KINDS.values())}
    lines.sort(key=lambda line: (order[line.split(" | ")[0].removeprefix("| ")], line))
    return HEAD.format(n=sum(map(len, rows.values()))) + "\n".join(lines) + "\n"


def _row(name: str, config: dict[str, Any]) -> tuple[str, ...]:
    import open_clip

    text, vision = {**config["text_cfg"], "layers": 2}, dict(config["vision_cfg"])  # more are alike
    of_timm, of_hf = "timm_model_name" in vision, "hf_model_name" in text
    if of_hf:  # its own configuration is Hugging Face's
        text = {"layers": 1, "width": 16, "heads": 2, "vocab_size": 10}
    vision = SMALL if of_timm else {**vision, "layers": 2} if isinstance(vision["layers"], int) else vision
    with torch.device("meta"):
        model = open_clip.create_model(name, load_weights=False, device="meta", text_cfg=text, vision_cfg=vision)
    tower = text_tower(name, model)
    packed = bool(tower.blocks) and tower.reading.causal
    kind = "hf" if of_hf else "packed" if packed else "plain" if tower.resblocks else "class"
    prompts = not of_timm and image.is_vit(model.visual)
    patches = not of_timm and image.sizes(model.visual)[1] is not None
    tokenizer = config["text_cfg"].get("hf_tokenizer_name", "CLIP's").replace(f"timm/{name}", "timm/ and the name")
    yes = {True: "yes", False: "–"}
    return KINDS[kind], yes[kind in ("packed", "plain")], yes[patches], yes[prompts], tokenizer
