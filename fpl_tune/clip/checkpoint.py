"""Local CLIP checkpoints in OpenAI's or open_clip's layout, sizes read from their tensors."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpl_tune.clip.scripted import is_scripted, tensors
from fpl_tune.errors import ConfigError, EnvironmentProblem

State = dict[str, Tensor]
_OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")


def model(name: str, path: Path) -> Any:
    """The open_clip CLIP whose weights lie in `path`.

    A checkpoint is OpenAI's, so made with QuickGELU, if it is a scripted archive, names its sizes, or mixes
    half and single precision as OpenAI's do; any other follows the configuration of `name` (end it with
    `-quickgelu` for weights that need it). Where sizes differ from that configuration, the tensors are right.

    Raises:
        EnvironmentProblem: the file cannot be read.
        ConfigError: the file holds no CLIP, or one with another kind of image tower than `name`.
    """
    import open_clip

    state, openai = _read(path)
    config = open_clip.get_model_config(name) or {}
    try:
        sizes = _sizes(state)
    except (KeyError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"{path} holds no CLIP in OpenAI's or open_clip's layout (missing {error}): give the file that "
            "open_clip or OpenAI saved."
        ) from error
    if ("visual.proj" in state) == isinstance(config.get("vision_cfg", {}).get("layers"), list):
        kind = "a ViT" if "visual.proj" in state else "a ResNet"
        raise ConfigError(f"{path} holds {kind}, which {name} is not: give the name of the checkpoint's model.")
    quick = openai or bool(config.get("quick_gelu", False))
    return _filled(open_clip.model.CLIP, state, config, sizes, quick, f"{path} has other sizes than {name}")


def _filled(clip: Any, state: State, config: dict[str, Any], sizes: dict[str, Any], quick: bool, note: str) -> Any:
    named = {key: config[key] for key in ("embed_dim", "vision_cfg", "text_cfg") if key in config}
    candidate = clip(**named, quick_gelu=quick)
    wanted = {key: value.shape for key, value in candidate.state_dict().items()}
    if wanted != {key: value.shape for key, value in state.items()}:
        warnings.warn(f"{note}; those of the file are used.", stacklevel=4)
        candidate = clip(**sizes, quick_gelu=quick)
    try:
        candidate.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigError(f"The checkpoint does not fill a CLIP: {' '.join(str(error).split())[:200]}") from error
    return candidate


def _read(path: Path) -> tuple[State, bool]:
    """Tensors of a checkpoint by name, and whether they are OpenAI's."""
    try:
        content = _content(path)
    except (OSError, RuntimeError, ValueError, LookupError, pickle.UnpicklingError, EOFError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvironmentProblem(f"The checkpoint {path} cannot be read ({first}): is the file whole?") from error
    scripted = is_scripted(path)
    state: Any = content
    while isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{path} holds no table of tensors: give the file that open_clip or OpenAI saved.")
    state = {key.removeprefix("module."): value for key, value in state.items()}
    openai = scripted or any(key in state for key in _OPENAI_SIZES)
    precisions = {value.dtype for value in state.values() if value.is_floating_point()}
    openai = openai or (torch.float16 in precisions and len(precisions) > 1)
    state = {key: value for key, value in state.items() if key not in _OPENAI_SIZES}
    return {key: value.float() if value.is_floating_point() else value for key, value in state.items()}, openai


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if not is_scripted(path):
        return torch.load(path, map_location="cpu", weights_only=True)
    if not _published(path):
        return tensors(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(str(path), map_location="cpu").state_dict()


def _published(path: Path) -> bool:
    """Whether this very file is one of OpenAI's, whose addresses carry its SHA-256: its code may run."""
    from open_clip.pretrained import get_pretrained_url, list_pretrained

    known = {get_pretrained_url(*pair) for pair in list_pretrained() if pair[1] == "openai"}
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return any(found.hexdigest() in url.split("/") for url in known)


def _sizes(state: State) -> dict[str, Any]:
    """Arguments of open_clip's CLIP from the shapes of its tensors; heads are 64 wide, as all of OpenAI's."""
    width = state["ln_final.weight"].shape[0]
    text = {
        "context_length": state["positional_embedding"].shape[0],
        "vocab_size": state["token_embedding.weight"].shape[0],
        "width": width,
        "heads": max(1, width // 64),
        "layers": _count(state, "transformer.resblocks."),
    }
    vision = _vit(state) if "visual.proj" in state else _resnet(state)
    return {"embed_dim": state["text_projection"].shape[1], "vision_cfg": vision, "text_cfg": text}


def _vit(state: State) -> dict[str, Any]:
    width, _, patch, _ = state["visual.conv1.weight"].shape
    grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
    layers = _count(state, "visual.transformer.resblocks.")
    return {
        "layers": layers,
        "width": width,
        "head_width": min(64, width),
        "patch_size": patch,
        "image_size": patch * grid,
    }


def _resnet(state: State) -> dict[str, Any]:
    grid = round((state["visual.attnpool.positional_embedding"].shape[0] - 1) ** 0.5)
    width = state["visual.layer1.0.conv1.weight"].shape[0]
    layers = tuple(_count(state, f"visual.layer{stage}.") for stage in (1, 2, 3, 4))
    return {"layers": layers, "width": width, "patch_size": None, "image_size": 32 * grid}


def _count(state: State, prefix: str) -> int:
    """How many numbered modules there are under `prefix`."""
    return len({key.removeprefix(prefix).split(".")[0] for key in state if key.startswith(prefix)})
