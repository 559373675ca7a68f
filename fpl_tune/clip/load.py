"""Towers by name: the shipped compact CLIP, open_clip's models, OpenAI's and open_clip's checkpoints."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fpl_tune import plugins
from fpl_tune.clip import checkpoint
from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.clip.towers import OPENAI_MEAN, OPENAI_STD, Towers
from fpl_tune.errors import ConfigError, EnvironmentProblem, did_you_mean, unknown

COMPACT = "compact"


@dataclass(frozen=True)
class OpenClipTokenizer:
    """open_clip's byte-pair tokenizer in the shape `fpl_tune.clip.sentences.Tokenizer` asks for."""

    tokenizer: Any
    n_positions: int

    @property
    def sot(self) -> int:
        return self.tokenizer.sot_token_id

    @property
    def eot(self) -> int:
        return self.tokenizer.eot_token_id

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(self.tokenizer.clean_fn(text))


def load_towers(
    name: str,
    pretrained: str | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Towers:
    """The frozen towers called `name`.

    Args:
        name: `compact` (weights shipped with the package), an open_clip model (RN50, ViT-B-16, ViT-B-32), or towers
            that another package brings (`fpl_tune.plugins`).
        pretrained: a tag of open_clip (`openai`, ...), or the path of a checkpoint in OpenAI's or open_clip's
            layout (see `fpl_tune.clip.checkpoint`); None gives random weights drawn from `seed`, and warns.

    Raises:
        ConfigError: unknown name or tag, a text tower that takes no context, a checkpoint that does not fit.
        EnvironmentProblem: weights that cannot be downloaded or read.
    """
    if name == COMPACT:
        if pretrained is not None:
            raise ConfigError(f"The compact towers bring their own weights; leave out pretrained={pretrained!r}.")
        from fpl_tune.clip import compact

        model, tokenizer = compact.load()
        model = model.to(device=device, dtype=dtype)
        return Towers(model, tokenizer, name=name, mean=compact.MEAN, std=compact.STD)
    if name in plugins.names("towers"):
        return plugins.load("towers", name)(pretrained, device=device, dtype=dtype, seed=seed)
    ensure_importable()
    import open_clip

    if name not in open_clip.list_models():
        raise unknown("model", name, [COMPACT, *plugins.names("towers"), *open_clip.list_models()])
    tokenizer = _tokenizer(name)
    model = _model(name, pretrained, seed)
    mean = getattr(model.visual, "image_mean", None) or OPENAI_MEAN
    std = getattr(model.visual, "image_std", None) or OPENAI_STD
    return Towers(model.to(device=device, dtype=dtype), tokenizer, name=name, mean=mean, std=std)


def _model(name: str, pretrained: str | None, seed: int) -> Any:
    import open_clip

    if pretrained is None:
        warnings.warn(f"{name} has random weights (seed {seed}): its accuracies mean nothing.", stacklevel=3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _created(name)
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained in tags:
        return _downloaded(name, pretrained)
    path = Path(pretrained).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"pretrained={pretrained!r} is neither a file nor a tag of {name}. {did_you_mean(pretrained, tags)}"
        )
    return checkpoint.model(name, path)


def _created(name: str, **options: Any) -> Any:
    import open_clip

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # open_clip repeats through the root logger what is said here
    try:
        return open_clip.create_model(name, pretrained_text=False, **options)
    finally:
        root.setLevel(level)


def _downloaded(name: str, tag: str) -> Any:
    import open_clip

    quick = bool((open_clip.get_pretrained_cfg(name, tag) or {}).get("quick_gelu", False))
    try:
        return _created(name, pretrained=tag, force_quick_gelu=quick)
    except (OSError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"The weights {tag!r} of {name} could not be fetched ({_first_line(error)}): "
            "connect the machine, or give the path of a checkpoint as `pretrained`."
        ) from error


def _tokenizer(name: str) -> OpenClipTokenizer:
    import open_clip

    config = open_clip.get_model_config(name) or {}
    text = config.get("text_cfg", {})
    if "multimodal_cfg" in config or any(text.get(key) for key in ("hf_model_name", "hf_tokenizer_name")):
        raise ConfigError(
            f"The text tower or tokenizer of {name!r} is not CLIP's, so a context cannot be put into its "
            "sentences: use a CLIP-style model such as RN50, ViT-B-16, ViT-B-32 or compact."
        )
    return OpenClipTokenizer(open_clip.SimpleTokenizer(), text.get("context_length", 77))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
