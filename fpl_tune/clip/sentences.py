"""Tokenised class names with slots for a learned context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from fpl_tune.clip.layout import CAUSAL, Layout, Reading, lay_out
from fpl_tune.clip.tokenizer import Tokenizer
from fpl_tune.core.errors import ConfigError

Position = Literal["end", "middle", "front"]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sentences:
    """K tokenised sentences `[SOS] context tail name ending [EOT]`; some tokenizers have no SOS.

    `slots[k]` lists the tokens of class k: a vocabulary id, or -1-j for context token j.
    """

    names: tuple[str, ...]
    n_ctx: int
    slots: tuple[tuple[int, ...], ...]
    _layouts: dict[tuple[bool, torch.device, torch.dtype, bool, Reading], Layout] = field(
        default_factory=dict, compare=False, repr=False
    )
    _parts: dict[int, list[Sentences]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sentence, SOS and EOT included."""
        return tuple(len(slots) for slots in self.slots)

    def split(self, n: int) -> list[Sentences]:
        """The sentences, n at a time."""
        if n not in self._parts:
            starts = range(0, len(self), n)
            self._parts[n] = [Sentences(self.names[i : i + n], self.n_ctx, self.slots[i : i + n]) for i in starts]
        return self._parts[n]

    def layout(
        self,
        *,
        per_class: bool,
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        blocks: bool | None = None,
        reading: Reading = CAUSAL,
    ) -> Layout:
        """The tokens to compute, with a context that all classes share or one context per class.

        They lie in blocks on accelerators (see `fpl_tune.clip.attention`), unless `blocks` says otherwise.
        """
        blocks = device.type != "cpu" if blocks is None else blocks
        key = (per_class, device, dtype, blocks, reading)
        if key not in self._layouts:
            laid = lay_out(self.slots, per_class=per_class, blocks=blocks, reading=reading)
            self._layouts[key] = laid.to(device, dtype)
        return self._layouts[key]


def tokenise(
    tokenizer: Tokenizer,
    names: Sequence[str],
    n_ctx: int,
    *,
    position: Position = "end",
    tail: str = "",
    ending: str = ".",
) -> Sentences:
    """The sentences of K class names with `n_ctx` context tokens at the place CoOp gives them.

    `end` puts the name after the context, `front` before it, `middle` after its first half (CoOp, Zhou et al.
    2022, section 3.2). `tail` are frozen words that count as the end of the context (MaPLe, Khattak et al. 2023, which
    learns two of the four words "a photo of a"). Underscores become spaces. `n_ctx=0` leaves the plain sentence.

    Raises:
        ConfigError: a sentence is too long for the tower.
    """
    frozen = tokenizer.encode(tail, inside=n_ctx > 0) if tail else []
    slots = tuple(_slots(tokenizer, name, n_ctx, position, frozen, ending) for name in names)
    for name, sentence in zip(names, slots, strict=True):
        if len(sentence) > tokenizer.n_positions:
            raise ConfigError(
                f"The sentence of class {name!r} has {len(sentence)} tokens ({n_ctx} of them context), but "
                f"the text tower reads at most {tokenizer.n_positions}: shorten the name or the context (method.n_ctx)."
            )
    return Sentences(tuple(names), n_ctx, slots)


def _slots(
    tokenizer: Tokenizer, name: str, n_ctx: int, position: Position, tail: list[int], ending: str
) -> tuple[int, ...]:
    text = name.replace("_", " ")
    context = [-1 - j for j in range(n_ctx)] + tail
    before = {"end": len(context), "middle": len(context) // 2, "front": 0}[position]
    words = tokenizer.encode(text + ending, inside=before > 0)
    n_name = len(tokenizer.encode(text, inside=before > 0))
    middle = context[:before] + words[:n_name] + context[before:] + words[n_name:]
    return (*([] if tokenizer.sot is None else [tokenizer.sot]), *middle, tokenizer.eot)
