"""A CLIP's weights with the names, shapes and vocabulary of checkpoints of OpenAI's code and its forks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fpl_tune.clip import Towers
from fpl_tune.clip.compact import CompactTokenizer
from fpl_tune.clip.tokenizer import OpenClipTokenizer
from fpl_tune.core.errors import ConfigError

POSITIONS = 77


@cache
def standard_tokenizer() -> OpenClipTokenizer:
    """CLIP's byte-pair encoding of 49,408 pieces. Reading them takes 0.1 s."""
    from fpl_tune.clip._openclip import ensure_importable

    ensure_importable()
    import open_clip

    return OpenClipTokenizer(open_clip.SimpleTokenizer(), POSITIONS)


def openai_state(towers: Towers, texts: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of a CLIP by OpenAI's names, in float32 on the CPU.

    A smaller vocabulary is scattered to the rows of CLIP's own, where the same pieces have the same embedding and all
    others are zero. Positions are padded to 77 with zeros, which come after the end token and have no effect.

    Args:
        towers: towers whose model is one of open_clip's plain CLIPs.
        texts: texts that must have the same encoding.

    Raises:
        ConfigError: the model is of another kind, or its tokenizer splits one of the texts into other pieces.
    """
    state = {name: value.detach().cpu().float() for name, value in towers.model.state_dict().items()}
    if "token_embedding.weight" not in state or not {"visual.proj", "visual.attnpool.c_proj.weight"} & state.keys():
        raise ConfigError(
            f"clip.name={towers.name} does not have OpenAI's layout. Export compact, RN50, ViT-B-16 or ViT-B-32."
        )
    state["positional_embedding"] = F.pad(
        state["positional_embedding"], (0, 0, 0, POSITIONS - len(state["positional_embedding"]))
    )
    standard, own = standard_tokenizer(), towers.tokenizer
    if isinstance(own, OpenClipTokenizer):
        return state
    if not isinstance(own, CompactTokenizer):
        raise ConfigError(f"The tokenizer of clip.name={towers.name} is not CLIP's. Export compact, RN50 or ViT-B-32.")
    places = [standard.tokenizer.encoder[piece] for piece in own.pieces]
    for text in texts:
        mine, theirs = [places[i] for i in own.encode(text)], standard.encode(text)
        if mine != theirs:
            raise ConfigError(
                f"{text!r} is {len(theirs)} pieces to CLIP's tokenizer, but {len(mine)} to that of clip.name="
                f"{towers.name}: a fork would read something else. Export other weights (clip=vit_b32 "
                "clip.pretrained=FILE), or name the classes by known words (data.names)."
            )
    embedding = state["token_embedding.weight"]
    whole = embedding.new_zeros(standard.eot + 1, embedding.shape[1])
    whole[places] = embedding
    state["token_embedding.weight"] = whole
    return state


def save_torchscript(state: dict[str, Tensor], path: Path) -> None:
    """Writes an archive without code whose `state_dict` is `state`, which `clip.load` reads like OpenAI's."""
    root = nn.Module()
    for name, value in state.items():
        *parents, leaf = name.split(".")
        node = root
        for parent in parents:
            children = dict(node.named_children())
            if parent not in children:
                node.add_module(parent, nn.Module())
            node = node.get_submodule(parent)
        if value.is_floating_point():
            node.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
        else:
            node.register_buffer(leaf, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        torch.jit.script(root).save(str(path))
