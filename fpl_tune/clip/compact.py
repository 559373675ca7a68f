"""The compact CLIP: an open_clip `CLIP` of 1.7 M parameters for the embedded world, with its weights.

`benchmarks/world/pretrain.py` trained the weights.
"""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from fpl_tune.clip._openclip import ensure_importable
from fpl_tune.core.errors import ConfigError
from fpl_tune.data.shapes import COLOURS, SHAPES, STYLES, TEXTURES
from fpl_tune.data.transform import Transform

if TYPE_CHECKING:
    from open_clip import CLIP

N_POSITIONS = 40  # start, 16 context tokens, a name spelled in up to 21 characters, full stop, end
EMBED_DIM = 96
WIDTH, N_LAYERS, HEAD_WIDTH, PATCH = 128, 4, 32, 8
PREPROCESSING = Transform(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

FRAMES = (
    "a photo of a {}.",
    "a picture of a {}.",
    "an image of the {}.",
    "{}.",
    "{}",
    "this is a {}.",
    "one {} in the middle",
    "my {}.",
    "the {} of the day",
)
STYLED = ("a {style} of a {}.", "{style} of the {}", "{}, {style}.", "a {} in {style} style.")
"""Sentences of the training captions; with the attributes of *Shapes*, they hold every word of the vocabulary."""


@functools.cache
def _vocabulary() -> list[str]:
    """Pieces of CLIP's byte-pair encoding by id, first the letters that stand for the 256 bytes. A tokenizer takes 13
    MB: `_pieces` uses open_clip's own."""
    ensure_importable()
    from open_clip import SimpleTokenizer

    return list(SimpleTokenizer().encoder)


def _pieces(text: str) -> list[str]:
    vocabulary = _vocabulary()
    from open_clip import tokenize

    ids = tokenize(text, context_length=2 + 4 * len(text.encode()))[0]  # one a byte of the cleaned text, padded
    end = int(ids.eq(len(vocabulary) - 1).nonzero()[-1])
    return [vocabulary[index] for index in ids[1:end].tolist()]


class CompactTokenizer:
    """CLIP's byte-pair encoding restricted to the pieces that the training captions use and the single bytes.

    A piece outside the vocabulary is spelled byte by byte, so that every text has an encoding. The end token has the
    largest id, by which open_clip finds it.
    """

    n_positions, pad = N_POSITIONS, 0

    def __init__(self) -> None:
        texts = [*FRAMES, *STYLED, *SHAPES, *COLOURS, *TEXTURES, *STYLES]
        pieces = {piece for text in texts for piece in _pieces(text.replace("{}", " "))}
        single = _vocabulary()[:256]
        inventory = [*single, *(byte + "</w>" for byte in single)]
        inventory += [*sorted(pieces - set(inventory)), "<start_of_text>", "<end_of_text>"]
        self.pieces = tuple(inventory)
        """Pieces of CLIP's byte-pair encoding by id."""
        self._ids = {piece: index for index, piece in enumerate(inventory)}

    @property
    def n_vocabulary(self) -> int:
        return len(self._ids)

    @property
    def sot(self) -> int:
        return self.n_vocabulary - 2

    @property
    def eot(self) -> int:
        return self.n_vocabulary - 1

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Ids of a text, without start and end tokens; the same wherever it stands."""
        del inside
        ids: list[int] = []
        for piece in _pieces(text):
            ids.extend(self._ids[part] for part in ([piece] if piece in self._ids else _spell(piece)))
        return ids


def _spell(piece: str) -> list[str]:
    stem = piece.removesuffix("</w>")
    return [*stem[:-1], stem[-1] + piece[len(stem) :]]


def build() -> tuple[CLIP, CompactTokenizer]:
    """The model with random weights (from torch's global generator) and its tokenizer."""
    ensure_importable()
    from open_clip import CLIP, CLIPTextCfg, CLIPVisionCfg

    tokenizer = CompactTokenizer()
    vision = CLIPVisionCfg(layers=N_LAYERS, width=WIDTH, head_width=HEAD_WIDTH, patch_size=PATCH, image_size=32)
    text = CLIPTextCfg(
        context_length=N_POSITIONS,
        vocab_size=tokenizer.n_vocabulary,
        width=WIDTH,
        heads=WIDTH // HEAD_WIDTH,
        layers=N_LAYERS,
    )
    return CLIP(EMBED_DIM, vision, text), tokenizer


def files(path: Path | None = None) -> list[Path]:
    """The file with the weights: `path`, or what ships with the package."""
    return [path or weights_path()]


def weights_path() -> Path:
    """The weights that ship with the package."""
    return Path(str(resources.files("fpl_tune.clip"))) / "weights" / "compact.safetensors"


def load(path: Path | None = None) -> tuple[CLIP, CompactTokenizer]:
    """The trained model (float32, evaluation mode) from `path` or the shipped weights, and its tokenizer.

    Raises:
        ConfigError: `path` is not a file, or not one of this model's weights.
    """
    model, tokenizer = build()
    path = path or weights_path()
    if not path.is_file():
        raise ConfigError(f"clip.pretrained={str(path)!r} is no file. Write one by `make weights`, or leave it out.")
    try:
        stored = load_file(path)
        model.load_state_dict({name: value.float() for name, value in stored.items()})
    except (SafetensorError, RuntimeError):
        raise ConfigError(
            f"{path} does not hold the compact CLIP's weights. Write the file by `make weights`, or leave out "
            "clip.pretrained."
        ) from None
    return model.eval(), tokenizer
