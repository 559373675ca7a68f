"""Towers by name: the shipped compact CLIP, open_clip's models, OpenAI's and open_clip's checkpoints."""

from __future__ import annotations

import logging
import os
import queue
import threading
import urllib.error
import urllib.request
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
_ANSWER = 8  # seconds that the Hugging Face Hub has to answer before weights are refused


@dataclass(frozen=True)
class OpenClipTokenizer:
    """open_clip's byte-pair tokenizer in the shape of `fpl_tune.clip.sentences.Tokenizer`."""

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
    quick_gelu: bool | str = "auto",
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Towers:
    """The frozen towers called `name`.

    Args:
        name: `compact` (weights shipped with the package), an open_clip model (RN50, ViT-B-16, ViT-B-32), or towers
            that another package brings (`fpl_tune.plugins`).
        pretrained: a tag of open_clip (`openai`, ...), or the path of a checkpoint in OpenAI's or open_clip's
            layout (see `fpl_tune.clip.checkpoint`); None gives random weights drawn from `seed`, and warns. `compact`
            takes a file that `make weights` wrote; None is the shipped one.
        quick_gelu: whether an open_clip model has QuickGELU; `auto` takes what the name, the tag or the file says.

    Raises:
        ConfigError: unknown name or tag, a text tower that takes no context, a checkpoint that does not fit or does
            not state its activation.
        EnvironmentProblem: weights that cannot be downloaded or read.
    """
    wanted = None if quick_gelu == "auto" else bool(quick_gelu)
    if wanted is not None and (name == COMPACT or name in plugins.names("towers")):
        raise ConfigError(f"The activation of {name!r} is part of its towers; leave out clip.quick_gelu={quick_gelu}.")
    if name == COMPACT:
        from fpl_tune.clip import compact

        model, tokenizer = compact.load(None if pretrained is None else Path(os.path.expanduser(pretrained)))
        return Towers(_cast(model, device, dtype), tokenizer, name=name, mean=compact.MEAN, std=compact.STD)
    if name in plugins.names("towers"):
        return plugins.load("towers", name)(pretrained, device=device, dtype=dtype, seed=seed)
    ensure_importable()
    import open_clip

    if name not in open_clip.list_models():
        raise unknown("model", name, [COMPACT, *plugins.names("towers"), *open_clip.list_models()])
    tokenizer = _tokenizer(name)
    model = _model(name, pretrained, seed, wanted)
    mean = getattr(model.visual, "image_mean", None) or OPENAI_MEAN
    std = getattr(model.visual, "image_std", None) or OPENAI_STD
    return Towers(_cast(model, device, dtype), tokenizer, name=name, mean=mean, std=std)


def _cast(model: Any, device: str | torch.device, dtype: torch.dtype) -> Any:
    """The model in another arithmetic, its scale in float32 at least: in bfloat16, 100 would be 98.9."""
    scale = model.logit_scale.detach().clone()
    model = model.to(device=device, dtype=dtype)
    if dtype in (torch.float16, torch.bfloat16):
        model.logit_scale.data = scale.to(device)
    return model


def _model(name: str, pretrained: str | None, seed: int, quick: bool | None) -> Any:
    import open_clip

    if pretrained is None:
        warnings.warn(f"{name} has random weights (seed {seed}): its accuracies mean nothing.", stacklevel=3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _created(name, quick)
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained in tags:
        return _tagged(name, pretrained, quick)
    path = Path(os.path.expanduser(pretrained))
    if not path.is_file():
        raise ConfigError(
            f"pretrained={pretrained!r} is neither a file nor a tag of {name}. {did_you_mean(pretrained, tags)}"
        )
    return checkpoint.model(name, path, quick)


def _created(name: str, quick: bool | None, **options: Any) -> Any:
    import open_clip

    if quick is not None:
        options["quick_gelu"] = quick
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # open_clip repeats through the root logger what is said here
    try:
        return open_clip.create_model(name, pretrained_text=False, **options)
    finally:
        root.setLevel(level)


def _tagged(name: str, tag: str, quick: bool | None) -> Any:
    """The model of one of open_clip's tags: from OpenAI's cache folder, the Hugging Face Hub's, or the network."""
    import open_clip

    config = open_clip.get_pretrained_cfg(name, tag)
    trained = bool(config.get("quick_gelu", False))
    quick = trained if quick is None else quick
    url, hub = config.get("url", ""), config.get("hf_hub", "").rstrip("/")
    kept = Path("~/.cache/clip").expanduser() / url.rpartition("/")[2]
    if url and kept.is_file():
        return checkpoint.model(name, kept, quick)
    if url:
        remedy = f"download {url} to {kept}, or anywhere and set clip.pretrained to its path"
    else:
        file = f"https://huggingface.co/{hub}/resolve/main/open_clip_model.safetensors"
        remedy = f"download {file} and set clip.pretrained to its path and clip.quick_gelu={str(trained).lower()}"
    if hub and not _on_disk(hub) and not _hub_answers():
        raise EnvironmentProblem(
            f"The weights {tag!r} of {name} are not on this machine and the Hugging Face Hub does not answer: {remedy}."
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "QuickGELU mismatch")  # judged before `quick` is applied
            return _created(name, quick, pretrained=tag)
    except (OSError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"The weights {tag!r} of {name} could not be fetched ({_first_line(error)}): {remedy}."
        ) from error


def _on_disk(hub: str) -> bool:
    """Whether the Hugging Face Hub's cache holds the weights of a repository."""
    from huggingface_hub import try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    return any(isinstance(try_to_load_from_cache(hub, name), str) for name in (HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME))


def _hub_answers() -> bool:
    """Whether the Hugging Face Hub can be reached: its own client retries for a minute before it gives up."""
    from huggingface_hub import constants

    answers: queue.Queue[bool] = queue.Queue()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_ANSWER).close()
        except OSError as error:
            answers.put(isinstance(error, urllib.error.HTTPError) and error.code < 500)  # 502 is a proxy's
        else:
            answers.put(True)

    if constants.HF_HUB_OFFLINE:
        return False
    threading.Thread(target=ask, daemon=True).start()  # resolving a host name has no time limit of its own
    try:
        return answers.get(timeout=_ANSWER)
    except queue.Empty:
        return False


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
