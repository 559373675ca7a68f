"""Tokenised class names with slots for a learned context, and the tokens that have to be computed.

With a causal mask, a token depends on the tokens before it only. So the common beginning of all sentences of a prompt
(the *prefix*) is computed once per prompt, and the rest (the *suffix* of a class: name, full stop, EOT) once per class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.errors import ConfigError

Position = Literal["end", "middle", "front"]


class Tokenizer(Protocol):
    """The interface of a tokenizer. `encode` returns token ids without SOS and EOT."""

    @property
    def sot(self) -> int: ...

    @property
    def eot(self) -> int: ...

    @property
    def n_positions(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


class Group(NamedTuple):
    """Consecutive classes whose suffixes have the same length."""

    start: int  # row of the first token of the first suffix
    n_classes: int
    length: int  # tokens of each suffix, the last being EOT


class Packing(NamedTuple):
    """The tokens of a layout in B blocks of L slots; a suffix lies in one block, and what is left over pads.

    Every block sees n + L keys: those of the prefix, then its own.
    """

    n_blocks: int
    n_keys: int  # n + L
    rows: Tensor  # [B L] the row in each slot, 0 where it pads
    keys: Tensor  # [B (n + L)] the rows of the keys
    mask: Tensor  # [B, L, n + L and more], 0 where a slot attends to a key and -inf where it does not
    place: Tensor  # [R] the slot of each row
    own: Tensor  # [3 R] the query, key and value of each row in its own block, among all B L, B (n + L), B (n + L)
    ends: Tensor  # [K] the slots of the EOT tokens
    owner: Tensor  # [B L] the place of a slot's class among the EOT tokens
    is_end: Tensor  # [B L, 1], 1 where a slot holds an EOT token


class Layout(NamedTuple):
    """The R tokens to compute per prompt: the prefix, then all suffixes, group by group.

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
    packing: Packing
    in_order: bool  # whether `slot` lists each context token once, in order
    at: int | None  # first of the context's rows where they follow one another, else None
    kept: list[Any]  # a tower, and what it made of this layout

    @property
    def n_tokens(self) -> int:
        """R, the tokens of a prompt that are run through the blocks."""
        return len(self.ids)

    def to(self, device: torch.device, dtype: torch.dtype) -> Layout:
        """The same layout, its indices on `device` and its masks in `dtype`."""
        masks = {name: getattr(self.packing, name).to(dtype) for name in ("mask", "is_end")}
        return _moved(self, device)._replace(kept=[], packing=_moved(self.packing._replace(**masks), device))


@dataclass(frozen=True)
class Sentences:
    """K tokenised sentences `[SOS] context tail name ending [EOT]`.

    `slots[k]` lists the tokens of class k: a vocabulary id, or -1-j for context token j.
    """

    names: tuple[str, ...]
    n_ctx: int
    position: Position
    ending: str
    slots: tuple[tuple[int, ...], ...]
    tail: str = ""
    _layouts: dict[tuple[bool, torch.device, torch.dtype], Layout] = field(
        default_factory=dict, compare=False, repr=False
    )
    _parts: dict[tuple[int, bool, torch.device], list[tuple[Tensor, Sentences]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sentence, SOS and EOT included."""
        return tuple(len(slots) for slots in self.slots)

    def layout(self, *, per_class: bool, device: torch.device, dtype: torch.dtype = torch.float32) -> Layout:
        """The tokens to compute, with a context that all classes share or one context per class."""
        key = (per_class, device, dtype)
        if key not in self._layouts:
            self._layouts[key] = _layout(self.slots, per_class=per_class).to(device, dtype)
        return self._layouts[key]

    def parts(self, tokens: int, per_class: bool, device: torch.device) -> Sequence[tuple[Tensor, Sentences]]:
        """The classes, shortest names first, in parts of at most so many tokens to compute (but at least one class).

        Returns:
            The class ids of each part, on the device, and their sentences; the same objects at every call.
        """
        key = (tokens, per_class, device)
        if key not in self._parts:
            n_prefix = self.layout(per_class=per_class, device=device).n_prefix
            found: list[list[int]] = []
            held = tokens
            for k in sorted(range(len(self)), key=self.lengths.__getitem__):
                length = self.lengths[k] - n_prefix
                if held + length > tokens:
                    found.append([])
                    held = n_prefix
                found[-1].append(k)
                held += length
            several = len(found) > 1
            self._parts[key] = [
                (torch.tensor(part, device=device), self._of(part) if several else self)
                for part in (found if several else [range(len(self))])
            ]
        return self._parts[key]

    def _of(self, classes: Sequence[int]) -> Sentences:
        names, slots = (tuple(held[k] for k in classes) for held in (self.names, self.slots))
        return replace(self, names=names, slots=slots, _layouts={}, _parts={})


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
        ConfigError: no names, a negative `n_ctx`, an unknown position, or a sentence too long for the tower.
    """
    if position not in ("end", "middle", "front"):
        raise ConfigError(f"clip.class_position must be end, middle or front, but is {position!r}.")
    if n_ctx < 0:
        raise ConfigError(f"The number of context tokens must be at least 0, not {n_ctx}.")
    if not names:
        raise ConfigError("There are no class names to make sentences from; give at least one.")
    frozen = tokenizer.encode(tail) if tail else []
    slots = tuple(_slots(tokenizer, name, n_ctx, position, frozen, ending) for name in names)
    for name, sentence in zip(names, slots, strict=True):
        if len(sentence) > tokenizer.n_positions:
            raise ConfigError(
                f"The sentence of class {name!r} has {len(sentence)} tokens ({n_ctx} of them context), but "
                f"the text tower reads at most {tokenizer.n_positions}: shorten the name or the context (method.n_ctx)."
            )
    return Sentences(tuple(names), n_ctx, position, ending, slots, tail)


def _slots(
    tokenizer: Tokenizer, name: str, n_ctx: int, position: Position, tail: list[int], ending: str
) -> tuple[int, ...]:
    text = name.replace("_", " ")
    words = tokenizer.encode(text + ending)
    n_name = len(tokenizer.encode(text))
    context = [-1 - j for j in range(n_ctx)] + tail
    before = {"end": len(context), "middle": len(context) // 2, "front": 0}[position]
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
    lengths = [group.length for group in groups for _ in range(group.n_classes)]
    slot = [-1 - rows[row][0] for row in context]
    return Layout(
        n_prefix,
        tuple(groups),
        packing=_packing(n_prefix, lengths),
        ids=torch.tensor([max(slot, 0) for slot, _, _ in rows]),
        positions=torch.tensor([position for _, position, _ in rows]),
        context=torch.tensor(context, dtype=torch.long),
        slot=torch.tensor(slot, dtype=torch.long),
        at=context[0] if context and context == list(range(context[0], context[0] + len(context))) else None,
        kept=[],
        in_order=slot == sorted({-1 - token for token in slots[0] if token < 0}),
        owner=torch.tensor([rows[row][2] for row in context], dtype=torch.long),
        ends=torch.tensor(ends),
        inverse=torch.tensor(order).argsort(),
    )


_PER_HEAD = 64  # numbers in a row of a head, in CLIP's towers


def _packing(n_prefix: int, lengths: Sequence[int]) -> Packing:
    """The prefix's rows and suffixes of `lengths` in blocks of the size that moves the least memory."""
    sizes = sorted({max(size, *lengths) for size in range(16, 129, 16)})
    size = min(sizes, key=lambda size: _traffic(len(_starts(n_prefix, lengths, size)[1]), n_prefix, size))
    starts, blocks = _starts(n_prefix, lengths, size)
    n_blocks = len(blocks)
    mask = torch.full((n_blocks * size, n_prefix + size), -math.inf)
    mask[torch.arange(len(mask)), n_prefix + torch.arange(len(mask)) % size] = 0.0  # slots that pad
    rows, owner = torch.zeros(2, len(mask), dtype=torch.long)
    place = torch.zeros(n_prefix + sum(lengths), dtype=torch.long)
    place[:n_prefix] = torch.arange(n_prefix)
    mask[:n_prefix] = -math.inf
    mask[:n_prefix, :n_prefix].masked_fill_(torch.ones(n_prefix, n_prefix).tril() > 0, 0.0)
    row, ends = n_prefix, []
    for k, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        slots, first = slice(start, start + length), n_prefix + start % size
        place[row : row + length], owner[slots] = torch.arange(start, start + length), k
        mask[slots, :n_prefix] = 0.0
        mask[slots, first : first + length] = torch.full((length, length), -math.inf).triu(1)
        row += length
        ends.append(start + length - 1)
    rows[place] = torch.arange(len(place))
    is_end = torch.zeros(len(mask), 1)
    is_end[ends] = 1.0
    prefix = torch.arange(n_prefix).expand(n_blocks, -1)
    key = len(mask) + place + (place // size + 1) * n_prefix
    return Packing(
        n_blocks,
        n_prefix + size,
        rows,
        keys=torch.cat([prefix, rows.view(n_blocks, size)], dim=1).flatten(),
        # Rows of a multiple of 16 numbers, as CUDA's kernels read them: else they copy the mask at every call.
        mask=F.pad(mask.view(n_blocks, size, -1), (0, -(n_prefix + size) % 16)),
        place=place,
        own=torch.stack([place, key, key + n_blocks * (n_prefix + size)], 1).flatten(),
        ends=torch.tensor(ends),
        owner=owner,
        is_end=is_end,
    )


def _starts(n_prefix: int, lengths: Sequence[int], size: int) -> tuple[list[int], range]:
    """First slots of the suffixes, and the blocks: the prefix's rows may be split between blocks, a suffix may not."""
    slot, starts = n_prefix, []
    for length in lengths:
        if slot % size + length > size:
            slot += -slot % size
        starts.append(slot)
        slot += length
    return starts, range(-(-slot // size))


def _traffic(n_blocks: int, n_prefix: int, size: int) -> float:
    """Rows of a head that attention reads and writes: queries, keys, values, scores."""
    return n_blocks * (2 * size + (n_prefix + size) * (2 + 4 * size / _PER_HEAD))


def _moved(indices: Any, device: torch.device) -> Any:
    """A named tuple with its tensors on `device`."""
    return indices._replace(**{k: v.to(device) for k, v in indices._asdict().items() if isinstance(v, Tensor)})
