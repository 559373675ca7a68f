"""The tokens that have to be computed to encode the sentences of a prompt.

With a causal mask, a token depends on the tokens before it only. So the common beginning of all sentences of a prompt
(the *prefix*) is computed once per prompt, and the rest (the *suffix* of a class: name, full stop, EOT) once per class.
Without one, a token depends on its whole sentence: there is no prefix, and the suffix of a class is its sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_PER_ROW, _PER_KEY, _PER_SCORE = 130.0, 12.0, 0.18
"""Cost of a layer, forward and backward, in reads of d numbers: of a row, whose products are 24 d² operations and whose
other kernels read or write about 50; of a key in a block; of a score. At the rates of
`benchmarks/simulated_gpu.py`, for CLIP's d = 512."""
_SIZES = range(16, 129)
"""Rows of a block: attention of a larger one computes more scores that are masked."""


class Reading(NamedTuple):
    """How a text tower reads sentences."""

    causal: bool = True
    filled: tuple[int, int] | None = None
    """Tokens of every sentence, and the id that fills it up as one more token that all see; None: as long as it is."""
    pooled: Literal["end", "first", "last", "all"] = "end"
    """The token whose output counts: EOT, the first or last of all, or all of them."""


CAUSAL = Reading()


class SuffixGroup(NamedTuple):
    """Consecutive classes whose suffixes have the same length."""

    start: int  # row of the first token of the first suffix
    n_classes: int
    length: int  # tokens of each suffix, the last being EOT


class Packing(NamedTuple):
    """The rows of a layout as B blocks of L: a suffix lies in one block, and rows without a token pad.

    Every block sees n + L keys: those of the prefix, then its own.
    """

    n_blocks: int
    n_keys: int  # n + L
    mask: Tensor  # [B, L, n + L and more], 0 where a row attends to a key and -inf where it does not


class Layout(NamedTuple):
    """The R rows to compute per prompt: the prefix, then all suffixes, the shortest first.

    Rows `context` hold context token `slot` (of class `owner`, where contexts are a class's own), all others the
    vocabulary's `ids`. `ends` are the rows of the tokens whose output counts, `inverse[k]` the place of class k among
    them.
    """

    reading: Reading
    n_prefix: int
    groups: tuple[SuffixGroup, ...]
    """Classes by length, where rows are not in blocks."""
    ids: Tensor  # [R]
    positions: Tensor  # [R]
    context: Tensor  # rows
    slot: Tensor
    owner: Tensor
    ends: Tensor  # [K]
    inverse: Tensor  # [K]
    means: Tensor | None  # [K, R] weights of rows in the mean of a sentence, where all of its tokens count
    packing: Packing | None
    """How rows lie in blocks; None: group by group, without rows that pad."""
    in_order: bool  # whether `slot` lists each context token once, in order
    at: int | None  # first of the context's rows where they follow one another, else None
    kept: list[Any]  # a tower, and what it made of this layout

    @property
    def n_tokens(self) -> int:
        """R, the rows of a prompt that are run through the blocks."""
        return len(self.ids)

    def to(self, device: torch.device, dtype: torch.dtype) -> Layout:
        """The same layout, its indices on `device` and its mask in `dtype`."""
        moved = {k: v.to(device) for k, v in self._asdict().items() if isinstance(v, Tensor)}
        packing = self.packing and self.packing._replace(mask=self.packing.mask.to(device, dtype))
        means = None if self.means is None else self.means.to(device, dtype)
        return self._replace(**moved | {"means": means}, packing=packing, kept=[])


def lay_out(slots: Sequence[tuple[int, ...]], *, per_class: bool, blocks: bool, reading: Reading) -> Layout:
    """The layout of sentences.

    Args:
        slots: the tokens of each sentence, as in `Sentences.slots`.
        per_class: every class has a context of its own.
        blocks: rows lie in blocks, as `fpl_tune.clip.attention` wants them on accelerators.
        reading: how the tower reads them.
    """
    counted = [{"first": 0, "last": -1}.get(reading.pooled, len(sentence) - 1) for sentence in slots]
    if reading.filled is not None:
        length, pad = reading.filled
        slots = [(*sentence, *[pad] * (length - len(sentence))) for sentence in slots]
    n_prefix = _n_shared(slots, per_class) if reading.causal else 0
    order = sorted(range(len(slots)), key=lambda k: len(slots[k]))
    lengths = [len(slots[k]) - n_prefix for k in order]
    size = _size(n_prefix, lengths) if blocks else 0
    starts, n_rows = _starts(n_prefix, lengths, size)
    rows = [(0, 0, 0)] * n_rows  # token, position, class
    rows[:n_prefix] = [(slots[0][position], position, 0) for position in range(n_prefix)]
    for k, start, length in zip(order, starts, lengths, strict=True):
        places = range(n_prefix, n_prefix + length)
        rows[start : start + length] = [(slots[k][position], position, k) for position in places]
    groups = []
    for length, members in groupby(zip(lengths, starts, strict=True), key=lambda pair: pair[0]):
        firsts = [start for _, start in members]
        groups.append(SuffixGroup(firsts[0], len(firsts), length))
    context = [row for row, (token, _, _) in enumerate(rows) if token < 0]
    slot = [-1 - rows[row][0] for row in context]
    ends = [
        start + range(length)[counted[k] - n_prefix] for k, start, length in zip(order, starts, lengths, strict=True)
    ]
    return Layout(
        reading,
        n_prefix,
        () if blocks else tuple(groups),
        ids=torch.tensor([max(token, 0) for token, _, _ in rows]),
        positions=torch.tensor([position for _, position, _ in rows]),
        context=torch.tensor(context, dtype=torch.long),
        slot=torch.tensor(slot, dtype=torch.long),
        owner=torch.tensor([rows[row][2] for row in context], dtype=torch.long),
        ends=torch.tensor(ends),
        inverse=torch.tensor(order).argsort(),
        means=_means(order, starts, lengths, n_rows) if reading.pooled == "all" else None,
        packing=_packing(n_prefix, starts, lengths, size, n_rows, reading.causal) if blocks else None,
        in_order=slot == sorted({-1 - token for token in slots[0] if token < 0}),
        at=context[0] if context and context == list(range(context[0], context[0] + len(context))) else None,
        kept=[],
    )


def _n_shared(slots: Sequence[tuple[int, ...]], per_class: bool) -> int:
    """Tokens of the common beginning of all sentences, EOT excepted."""
    n = 0
    for column in zip(*(sentence[:-1] for sentence in slots), strict=False):
        if len(set(column)) > 1 or (per_class and column[0] < 0):
            break
        n += 1
    return n


def _means(order: Sequence[int], starts: Sequence[int], lengths: Sequence[int], n_rows: int) -> Tensor:
    means = torch.zeros(len(order), n_rows, dtype=torch.float64)
    for k, start, length in zip(order, starts, lengths, strict=True):
        means[k, start : start + length] = 1 / length
    return means


def _packing(
    n_prefix: int, starts: Sequence[int], lengths: Sequence[int], size: int, n_rows: int, causal: bool
) -> Packing:
    mask = torch.full((n_rows, n_prefix + size), -math.inf)
    mask[torch.arange(n_rows), n_prefix + torch.arange(n_rows) % size] = 0.0  # a row that pads sees itself
    mask[:n_prefix] = -math.inf
    mask[:n_prefix, :n_prefix].masked_fill_(torch.ones(n_prefix, n_prefix).tril() > 0, 0.0)
    for start, length in zip(starts, lengths, strict=True):
        own, first = slice(start, start + length), n_prefix + start % size
        mask[own, :n_prefix] = 0.0
        mask[own, first : first + length] = torch.full((length, length), -math.inf).triu(1) if causal else 0.0
    # Rows of a multiple of 16 numbers, as CUDA's kernels read them: else they copy the mask at every call.
    mask = F.pad(mask.view(-1, size, n_prefix + size), (0, -(n_prefix + size) % 16))
    return Packing(len(mask), n_prefix + size, mask)


def _size(n_prefix: int, lengths: Sequence[int]) -> int:
    """Rows of a block such that a layer costs least."""
    sizes = sorted({max(size, *lengths) for size in _SIZES})
    return min(sizes, key=lambda size: _cost(_starts(n_prefix, lengths, size)[1], n_prefix, size))


def _starts(n_prefix: int, lengths: Sequence[int], size: int) -> tuple[list[int], int]:
    """First rows of the suffixes, and the number of rows: whole blocks of `size` rows, if it is not 0. The prefix may
    be split between blocks, a suffix may not."""
    row, starts = n_prefix, []
    for length in lengths:
        if size and row % size + length > size:
            row += -row % size
        starts.append(row)
        row += length
    return starts, row + (-row % size if size else 0)


def _cost(n_rows: int, n_prefix: int, size: int) -> float:
    """Of a layer whose rows lie in blocks of `size`."""
    return n_rows * _PER_ROW + n_rows // size * (n_prefix + size) * (_PER_KEY + _PER_SCORE * size)
