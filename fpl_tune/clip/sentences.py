"""Class names as sentences with room for a learned context, and which of their tokens are run once for all.

A tower with a causal mask computes a token from what stands before it. So whatever leads all sentences of a
prompt and is the same in all of them (the *prefix*) is run once per prompt, and only what follows (the
*suffix* of a class: name, full stop, EOT) once per class. Suffixes of equal length form a *group*: no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

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


class Run(NamedTuple):
    """Neighbouring tokens of one kind: of the vocabulary, or of the context.

    In a run of words, `start` and `stop` are positions in the sentence; in a run of context tokens they are
    indices into the context.
    """

    context: bool
    start: int
    stop: int


class Group(NamedTuple):
    """Classes whose sentences have the same length (so the same layout) after the prefix."""

    classes: tuple[int, ...]
    start: int  # position of the first token of the suffix
    length: int  # tokens of each suffix, the last being EOT
    runs: tuple[Run, ...]


class Layout(NamedTuple):
    """A way to run K sentences: `prefix` tokens once per prompt, then the suffixes, group by group."""

    prefix: tuple[Run, ...]
    n_prefix: int
    groups: tuple[Group, ...]

    @property
    def n_suffix(self) -> int:
        """Tokens of all suffixes together."""
        return sum(len(group.classes) * group.length for group in self.groups)

    @property
    def inverse(self) -> tuple[int, ...]:
        """For each class, its place in the order of the groups."""
        order = [k for group in self.groups for k in group.classes]
        return tuple(sorted(range(len(order)), key=order.__getitem__))


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

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sentence, SOS and EOT included."""
        return tuple(len(slots) for slots in self.slots)

    @cached_property
    def shared(self) -> Layout:
        """The layout for a context that all classes share."""
        return _layout(self.slots, per_class=False)

    @cached_property
    def per_class(self) -> Layout:
        """The layout for a context of each class's own: only what stands before it is shared."""
        return _layout(self.slots, per_class=True)


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
        raise ConfigError(
            f"The class name stands at 'end', 'middle' or 'front' of the context, not {position!r}."
        )
    if n_ctx < 0:
        raise ConfigError(f"The number of context tokens must be at least 0, not {n_ctx}.")
    if not names:
        raise ConfigError("There are no class names to make sentences from; give at least one.")
    slots = tuple(_slots(tokenizer, name, n_ctx, position, ending) for name in names)
    for name, sentence in zip(names, slots, strict=True):
        if len(sentence) > tokenizer.n_positions:
            raise ConfigError(
                f"The sentence of class {name!r} has {len(sentence)} tokens ({n_ctx} of them context), but "
                f"the text tower reads at most {tokenizer.n_positions}: shorten the name or the context."
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
    by_length: dict[tuple[bool, ...], list[int]] = {}
    for k, sentence in enumerate(slots):
        by_length.setdefault(tuple(slot < 0 for slot in sentence[n_prefix:]), []).append(k)
    groups = [
        Group(
            tuple(classes), n_prefix, len(kinds), _runs(slots[classes[0]], n_prefix, len(slots[classes[0]]))
        )
        for kinds, classes in sorted(by_length.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    return Layout(_runs(slots[0], 0, n_prefix), n_prefix, tuple(groups))


def _runs(sentence: Sequence[int], start: int, stop: int) -> tuple[Run, ...]:
    """The tokens `start` to `stop` of a sentence as runs of words and runs of context."""
    runs: list[Run] = []
    for position in range(start, stop):
        slot = sentence[position]
        first = -1 - slot if slot < 0 else position
        if runs and runs[-1].context == (slot < 0) and runs[-1].stop == first:
            runs[-1] = runs[-1]._replace(stop=first + 1)
        else:
            runs.append(Run(slot < 0, first, first + 1))
    return tuple(runs)
