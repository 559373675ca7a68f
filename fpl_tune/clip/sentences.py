"""Class names as sentences with room for a learned context, and which of their tokens are run once for all.

A tower with a causal mask computes a token from what stands before it. So whatever leads all sentences of a
prompt and is the same in all of them (the *prefix*) is run once per prompt, and only what follows (the
*suffix* of a class: name, full stop, EOT) once per class. Suffixes of equal length form a *group*, so that
nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fpl_tune.errors import ConfigError

Position = Literal["end", "middle", "front"]


class Tokenizer(Protocol):
    """What the towers ask of a tokenizer. `encode` gives token ids without SOS and EOT."""

    @property
    def sot(self) -> int: ...

    @property
    def eot(self) -> int: ...

    @property
    def n_positions(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


class Group(NamedTuple):
    """Classes whose suffixes have the same length; their suffixes lie one after the other."""

    start: int  # row of the first token of the first suffix
    n_classes: int
    length: int  # tokens of each suffix, the last being EOT


class Layout(NamedTuple):
    """The R tokens that one prompt costs: the prefix, then all suffixes, group by group.

    Rows `context` hold context token `slot` (of class `owner`, where contexts are a class's own), all others the
    vocabulary's `ids`. `ends` are the rows of the EOT tokens, `inverse[k]` the place of class k among them.
    """

    n_prefix: int
    groups: tuple[Group, ...]
    ids: Tensor  # [R]
    positions: Tensor  # [R]
    context: Tensor  # rows
    slot: Tensor
    owner: Tensor
    ends: Tensor  # [K]
    inverse: Tensor  # [K]

    @property
    def n_tokens(self) -> int:
        """R, the tokens of a prompt that are run through the blocks."""
        return len(self.ids)

    def to(self, device: torch.device) -> Layout:
        """The same layout, its indices on `device`."""
        indices = {key: value.to(device) for key, value in self._asdict().items() if isinstance(value, Tensor)}
        return self._replace(**indices)


@dataclass(frozen=True)
class Sentences:
    """K tokenised sentences `[SOS] context name ending [EOT]`.

    `slots[k]` lists the tokens of class k: a vocabulary id, or -1-j for context token j.
    """

    names: tuple[str, ...]
    n_ctx: int
    position: Position
    ending: str
    slots: tuple[tuple[int, ...], ...]
    _layouts: dict[tuple[bool, torch.device], Layout] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sentence, SOS and EOT included."""
        return tuple(len(slots) for slots in self.slots)

    def layout(self, *, per_class: bool, device: torch.device) -> Layout:
        """How to run the sentences with a context that all classes share, or with one of each class's own."""
        key = (per_class, device)
        if key not in self._layouts:
            self._layouts[key] = _layout(self.slots, per_class=per_class).to(device)
        return self._layouts[key]


def tokenise(
    tokenizer: Tokenizer, names: Sequence[str], n_ctx: int, *, position: Position = "end", ending: str = "."
) -> Sentences:
    """The sentences of K class names with `n_ctx` context tokens at the place CoOp gives them.

    `end` puts the name after the context, `front` before it, `middle` after its first half (CoOp, Zhou et al.
    2022, section 3.2). Underscores become spaces. `n_ctx=0` leaves the plain sentence.

    Raises:
        ConfigError: no names, a negative `n_ctx`, an unknown position, or a sentence too long for the tower.
    """
    if position not in ("end", "middle", "front"):
        raise ConfigError(f"The class name stands at 'end', 'middle' or 'front' of the context, not {position!r}.")
    if n_ctx < 0:
        raise ConfigError(f"The number of context tokens must be at least 0, not {n_ctx}.")
    if not names:
        raise ConfigError("There are no class names to make sentences from; give at least one.")
    slots = tuple(_slots(tokenizer, name, n_ctx, position, ending) for name in names)
    for name, sentence in zip(names, slots, strict=True):
        if len(sentence) > tokenizer.n_positions:
            raise ConfigError(
                f"The sentence of class {name!r} has {len(sentence)} tokens ({n_ctx} of them context), but "
                f"the text tower reads at most {tokenizer.n_positions}: shorten the name or the context (method.n_ctx)."
            )
    return Sentences(tuple(names), n_ctx, position, ending, slots)


def _slots(tokenizer: Tokenizer, name: str, n_ctx: int, position: Position, ending: str) -> tuple[int, ...]:
    text = name.replace("_", " ")
    words = tokenizer.encode(text + ending)
    n_name = len(tokenizer.encode(text))
    context = [-1 - j for j in range(n_ctx)]
    before = {"end": n_ctx, "middle": n_ctx // 2, "front": 0}[position]
    middle = context[:before] + words[:n_name] + context[before:] + words[n_name:]
    return (tokenizer.sot, *middle, tokenizer.eot)


def _layout(slots: Sequence[tuple[int, ...]], *, per_class: bool) -> Layout:
    n_prefix = 0
    for column in zip(*(sentence[:-1] for sentence in slots), strict=False):
        if len(set(column)) > 1 or (per_class and column[0] < 0):
            break
        n_prefix += 1
    order = sorted(range(len(slots)), key=lambda k: len(slots[k]))
    groups: list[Group] = []
    rows = [(slots[0][position], position, 0) for position in range(n_prefix)]
    ends: list[int] = []
    for k in order:
        length = len(slots[k]) - n_prefix
        if groups and groups[-1].length == length:
            groups[-1] = groups[-1]._replace(n_classes=groups[-1].n_classes + 1)
        else:
            groups.append(Group(len(rows), 1, length))
        rows += [(slots[k][position], position, k) for position in range(n_prefix, len(slots[k]))]
        ends.append(len(rows) - 1)
    context = [row for row, (slot, _, _) in enumerate(rows) if slot < 0]
    return Layout(
        n_prefix,
        tuple(groups),
        ids=torch.tensor([max(slot, 0) for slot, _, _ in rows]),
        positions=torch.tensor([position for _, position, _ in rows]),
        context=torch.tensor(context, dtype=torch.long),
        slot=torch.tensor([-1 - rows[row][0] for row in context], dtype=torch.long),
        owner=torch.tensor([rows[row][2] for row in context], dtype=torch.long),
        ends=torch.tensor(ends),
        inverse=torch.tensor(order).argsort(),
    )
