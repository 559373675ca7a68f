"""Local CLIP checkpoints in OpenAI's or open_clip's layout, sizes read from their tensors."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import pickle
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from fpl_tune.clip.scripted import is_scripted, read_archive
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.formatting import size

State = dict[str, Tensor]
_UNREADABLE = (
    OSError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, EOFError, OverflowError, MemoryError,
    pickle.UnpicklingError, SafetensorError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_SLACK = 64 << 20  # bytes that an archive may unpack to beyond its own size
_OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")
_LARGEST_SCALE = math.log(100)
"""Where training clamps `logit_scale` (Radford et al. 2021, section 2.5): in half precision it reads 4.6055."""


def model(name: str, path: Path, quick_gelu: bool | None = None) -> Any:
    """The open_clip CLIP in float32 whose weights lie in `path`.

    The tensors of a CLIP with QuickGELU have the names and shapes of one with GELU. So the activation is `quick_gelu`,
    or what tells it: the name (`-quickgelu`), the classes in a TorchScript archive, OpenAI's entries for its sizes or
    mix of precisions, open_clip's configuration beside the file, or the name that a published file was given.
    Where the sizes differ from those of `name`, the tensors are right.

    Raises:
        EnvironmentProblem: the file cannot be read.
        ConfigError: the file is not a CLIP, has another kind of image tower than `name`, or nothing states its
            activation.
    """
    import open_clip

    state, stored = _read(path)
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
    if quick_gelu is None:
        quick_gelu = bool(config.get("quick_gelu")) or stored
    if quick_gelu is None:
        quick_gelu = _published_activation(path)
    if quick_gelu is None:
        raise ConfigError(
            f"{path} does not say whether its CLIP has QuickGELU or GELU: set clip.quick_gelu=true for weights of "
            "OpenAI or of a -quickgelu model, or clip.quick_gelu=false."
        )
    return _filled(open_clip.CLIP, state, config, sizes, quick_gelu, f"{path} has other sizes than {name}")


def _filled(clip: Any, state: State, config: dict[str, Any], sizes: dict[str, Any], quick: bool, note: str) -> Any:
    named = {key: config[key] for key in ("embed_dim", "vision_cfg", "text_cfg") if key in config}
    with torch.device("meta"):  # shapes only
        wanted = {key: value.shape for key, value in clip(**named).state_dict().items()}
    if wanted != {key: value.shape for key, value in state.items()}:
        warnings.warn(f"{note}; those of the file are used.", stacklevel=4)
        named = sizes
    candidate = clip(**named, quick_gelu=quick)
    try:
        candidate.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigError(f"The checkpoint does not fill a CLIP: {' '.join(str(error).split())[:200]}") from error
    return candidate


def _read(path: Path) -> tuple[State, bool | None]:
    """Float32 tensors of a checkpoint by name, and whether they have QuickGELU; None where it is not stored."""
    try:
        content, quick = _content(path)
    except _UNREADABLE as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "weights_only" in first or "Weights only" in first:  # PyTorch's text goes on to advise reading code
            first = "it holds more than tensors and plain values"
        raise EnvironmentProblem(f"The checkpoint {path} cannot be read ({first}): is the file whole?") from error
    state: Any = content
    while isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{path} holds no table of tensors: give the file that open_clip or OpenAI saved.")
    state = {key.removeprefix("module."): value for key, value in state.items()}
    precisions = {value.dtype for value in state.values() if value.is_floating_point()}
    mixed = torch.float16 in precisions and len(precisions) > 1
    if quick is None and (mixed or any(key in state for key in _OPENAI_SIZES)):
        quick = True
    derived = (*_OPENAI_SIZES, "attn_mask")  # archives expose the mask, which a model makes from its sizes
    state = {key: value for key, value in state.items() if key.rpartition(".")[2] not in derived}
    return {key: _single(key, value) for key, value in state.items()}, quick


def _single(key: str, value: Tensor) -> Tensor:
    """A tensor in float32; a scale of 100 that half precision rounded to 100.03 is 100 again."""
    if not value.is_floating_point():
        return value
    narrow = value.dtype in (torch.float16, torch.bfloat16)
    if key == "logit_scale" and narrow and bool(value == torch.tensor(_LARGEST_SCALE).to(value.dtype)):
        return torch.full_like(value, _LARGEST_SCALE, dtype=torch.float32)
    return value.float()


def _content(path: Path) -> tuple[Any, bool | None]:
    """The content of a file, and whether its archive's code has QuickGELU; None where there is no code."""
    _check_size(path)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path), None
    if not is_scripted(path):
        return torch.load(path, map_location="cpu", weights_only=True), None
    if not _is_openai(path):
        tensors, classes = read_archive(path)
        return tensors, "QuickGELU" in classes or "GELU" not in classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(str(path), map_location="cpu").state_dict(), True


def _check_size(path: Path) -> None:
    """Raises `ValueError` for an archive that unpacks to much more than its size: PyTorch does not compress."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > path.stat().st_size + _SLACK:
            raise ValueError(f"its {size(path.stat().st_size)} unpack to {size(unpacked)}")


def _is_openai(path: Path) -> bool:
    """Whether this very file is one of OpenAI's, whose addresses carry its SHA-256: its code may run."""
    import open_clip

    known = {open_clip.get_pretrained_url(name, "openai") for name in open_clip.list_openai_models()}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = hashlib.sha256(content).hexdigest()
    return any(found in url.split("/") for url in known)


def _published_activation(path: Path) -> bool | None:
    """Whether a published file has QuickGELU, by open_clip's configuration beside it or by the name it was given."""
    import open_clip

    beside = path.parent / "open_clip_config.json"  # as a repository on the Hugging Face Hub has it
    if beside.is_file():
        try:
            return bool(json.loads(beside.read_text(encoding="utf-8"))["model_cfg"].get("quick_gelu", False))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EnvironmentProblem(
                f"{beside} cannot be read ({type(error).__name__}): remove it and set clip.quick_gelu, or fetch it "
                "again."
            ) from error
    names = {path.name, path.stem, *(part.replace("--", "/").removeprefix("models/") for part in path.parts)}
    for name, tag in open_clip.list_pretrained():
        config = open_clip.get_pretrained_cfg(name, tag)
        hub = config.get("hf_hub", "").rstrip("/")
        given = {hub, hub.rpartition("/")[2]}
        if tag != "openai":  # whose files have names that anybody gives: RN50.pt
            given.add(config.get("url", "").rpartition("/")[2])
        if names & (given - {""}):
            return bool(config.get("quick_gelu", False))
    return True if "quickgelu" in path.name.lower() else None


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
