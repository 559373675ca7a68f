"""Class names under the towers: prompts become text features, each encoded once."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fpl_tune.clip import Towers
from fpl_tune.clip.sentences import Position, Sentences
from fpl_tune.data.pool import digest_of_parts
from fpl_tune.method import Adapter, normalize

GENERIC_TEMPLATE = "a photo of a {}."


class PromptCache:
    """Text features of contexts that carry no gradient, cached by value; the oldest are dropped first.

    Experts, anchors and the prompts of evaluation come back several times a round; encoding is what a round
    costs, comparing a digest of a few thousand numbers is not.
    """

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._features: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, key: str) -> Tensor | None:
        features = self._features.get(key)
        if features is not None:
            self._features.move_to_end(key)
        return features

    def put(self, key: str, value: Tensor) -> None:
        self._features[key] = value
        self._held += value.nbytes
        while self._held > self._limit and len(self._features) > 1:
            _, old = self._features.popitem(last=False)
            self._held -= old.nbytes


@dataclass
class Classes:
    """A list of class names under the towers: prompts tokenised once, prompt features cached."""

    towers: Towers
    names: tuple[str, ...]
    template: str = GENERIC_TEMPLATE
    position: Position = "end"
    memory: PromptCache | None = field(default_factory=PromptCache)
    """None: nothing is cached but hand-written prompts."""
    plain: bool = False
    """Encode by open_clip's own modules and cache nothing: the reference."""
    at_once: int | None = None
    """Tokens that are encoded at once; None: as many as memory affords, see `Towers.encode_prompts`."""
    _sentences: dict[Any, Sentences] = field(default_factory=dict)
    _raw: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def hand_text(self) -> Tensor:
        """[K, D] unit features of the hand-written prompts."""
        return normalize(self.templates([self.template])[0])

    def templates(self, templates: Sequence[str], *, adapter: Adapter | None = None) -> Tensor:
        """Raw features [m, K, D], or [C, m, K, D] with `adapter`; see `fpl_tune.method.Task.sentences`."""
        texts = {template: [template.format(name.replace("_", " ")) for name in self.names] for template in templates}
        if adapter is None:
            missing = {template: texts[template] for template in texts if template not in self._raw}
            self._raw |= {template: self.towers.encode_text(texts) for template, texts in missing.items()}
            return torch.stack([self._raw[template] for template in templates])
        key = ("templates", *templates)
        if key not in self._sentences:
            whole = [text for template in templates for text in texts[template]]
            self._sentences[key] = self.towers.sentences(whole, 0, ending="")
        sentences = self._sentences[key]
        context = next(iter(adapter.leaf.values())).new_zeros(0, self.towers.text_width)
        features = self._features(context, sentences, str(key), adapter=adapter)
        return features.unflatten(1, (len(templates), len(self.names)))

    def encode(self, context: Tensor, *, tail: str = "", names: Sequence[str] | None = None, **how: Any) -> Tensor:
        """Unit text features [..., K, D]; see `fpl_tune.method.Task.encode_prompts`."""
        key = context.shape[-2], tail, *(names or ())
        if key not in self._sentences:
            names_of_classes = self.names if names is None else names
            self._sentences[key] = self.towers.sentences(names_of_classes, key[0], position=self.position, tail=tail)
        return normalize(self._features(context, self._sentences[key], repr(key[1:]), **how))

    def _features(
        self,
        context: Tensor,
        sentences: Sentences,
        label: str,
        *,
        per_class: bool = False,
        deep: Tensor | None = None,
        adapter: Adapter | None = None,
        cache: bool = True,
    ) -> Tensor:
        """Raw features [..., K, D].

        Rows without gradient are cached one by one (prompt by prompt) under its numbers and `label`; what is
        missing is encoded as one batch, equal rows once.
        """
        branch = [] if adapter is None else list(adapter.leaf.values())
        given = [context, *([] if deep is None else [deep]), *branch]
        learning = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in given)
        if learning or self.plain or not cache or self.memory is None:
            more = {
                "per_class": per_class,
                "deep": deep,
                "adapter": adapter,
                "plain": self.plain,
                "block": self.at_once,
            }
            return self.towers.encode_prompts(context, sentences, **more)
        n_own = 3 if per_class else 2
        lead = context.shape[:-n_own]
        if branch and not lead:
            lead = (len(branch[0]),)
        own_shape = context.shape[-n_own:]
        rows = context.expand(*lead, *own_shape).reshape(math.prod(lead), *own_shape)
        deeper = None if deep is None else deep.expand(*lead, *deep.shape[-3:]).reshape(-1, *deep.shape[-3:])
        kind = (per_class, label, deeper is not None, adapter and adapter.key)
        parts = [rows, *([] if deeper is None else [deeper]), *branch]
        keys = _digests(repr(kind), parts)
        cached = {key: value for key in keys if (value := self.memory.get(key)) is not None}
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in cached}
        missing = sorted(first.values())
        if missing:
            some = None if deeper is None else deeper[missing]
            own = None if adapter is None else adapter.each(lambda leaf: leaf[missing])
            features = self.towers.encode_prompts(rows[missing], sentences, per_class=per_class, deep=some, adapter=own)
            for i, value in zip(missing, features, strict=True):
                cached[keys[i]] = value
                self.memory.put(keys[i], value.clone())  # a row of its own: a view would keep the whole batch alive
        values = torch.stack([cached[key] for key in keys])
        return values.view(*lead, *values.shape[1:])


def _digests(label: str, parts: Sequence[Tensor]) -> list[str]:
    """A digest of each row's numbers in all parts [R, ...]."""
    shapes = repr((label, [tuple(part.shape[1:]) for part in parts]))
    flat = [part.detach().flatten(1).cpu().contiguous().view(torch.uint8).numpy() for part in parts]
    return [digest_of_parts([shapes, *(numbers.tobytes() for numbers in row)]) for row in zip(*flat, strict=True)]
