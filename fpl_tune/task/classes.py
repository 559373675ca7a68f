"""Class names under the towers: prompts become text features, none twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fpl_tune.clip import Towers
from fpl_tune.clip.sentences import Position
from fpl_tune.method import unit

GENERIC_TEMPLATE = "a photo of a {}."


class PromptMemory:
    """Text features of contexts that carry no gradient, remembered by value, oldest forgotten first.

    Experts, anchors and the prompts of evaluation come back several times a round; encoding is what a round
    costs, comparing a digest of a few thousand numbers is not.
    """

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._features: OrderedDict[bytes, Tensor] = OrderedDict()

    def get(self, key: bytes) -> Tensor | None:
        found = self._features.get(key)
        if found is not None:
            self._features.move_to_end(key)
        return found

    def __getitem__(self, key: bytes) -> Tensor:
        return self._features[key]

    def put(self, key: bytes, value: Tensor) -> None:
        self._features[key] = value
        self._held += value.nbytes
        while self._held > self._limit and len(self._features) > 1:
            _, old = self._features.popitem(last=False)
            self._held -= old.nbytes


@dataclass
class Classes:
    """A list of class names under the towers: prompts tokenised once, prompt features remembered."""

    towers: Towers
    names: tuple[str, ...]
    template: str = GENERIC_TEMPLATE
    position: Position = "end"
    memory: PromptMemory = field(default_factory=PromptMemory)
    _sentences: dict[int, Any] = field(default_factory=dict)
    _hand: Tensor | None = None

    def hand_text(self) -> Tensor:
        """[K, D] unit features of the hand-written prompts."""
        if self._hand is None:
            texts = [self.template.format(name.replace("_", " ")) for name in self.names]
            self._hand = unit(self.towers.encode_text(texts))
        return self._hand

    def encode(
        self, context: Tensor, *, per_class: bool = False, deep: Tensor | None = None, remember: bool = True
    ) -> Tensor:
        """Unit text features [..., K, D]; see `fpl_tune.method.Task.text`."""
        n_ctx = context.shape[-2]
        if n_ctx not in self._sentences:
            self._sentences[n_ctx] = self.towers.sentences(self.names, n_ctx, position=self.position)
        sentences = self._sentences[n_ctx]

        learning = torch.is_grad_enabled() and (context.requires_grad or (deep is not None and deep.requires_grad))
        if learning or not remember:
            return unit(self.towers.encode_prompts(context, sentences, per_class=per_class, deep=deep))
        with torch.no_grad():
            return self._remembered(context, sentences, per_class, deep)

    def _remembered(self, context: Tensor, sentences: Any, per_class: bool, deep: Tensor | None) -> Tensor:
        """Row by row (prompt by prompt) from memory; what is missing is encoded as one batch, equal rows once."""
        n_own = 3 if per_class else 2
        lead = context.shape[:-n_own]
        rows = context.reshape(-1, *context.shape[-n_own:])
        deeper = None if deep is None else deep.expand(*lead, *deep.shape[-3:]).reshape(-1, *deep.shape[-3:])
        keys = _digests(rows, deeper, per_class)
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        missing = sorted(i for key, i in first.items() if self.memory.get(key) is None)
        fresh: dict[bytes, Tensor] = {}
        if missing:
            some = None if deeper is None else deeper[missing]
            features = unit(self.towers.encode_prompts(rows[missing], sentences, per_class=per_class, deep=some))
            fresh = {keys[i]: features[j] for j, i in enumerate(missing)}
        found = torch.stack([fresh[key] if key in fresh else self.memory[key] for key in keys])
        for key, value in fresh.items():
            self.memory.put(key, value.clone())  # a row of its own: a view would keep the whole batch alive
        return found.view(*lead, *found.shape[1:])


def _digests(rows: Tensor, deep: Tensor | None, per_class: bool) -> list[bytes]:
    """A digest of each row's numbers [R, ...], its deep prompts [R, J, l, d] included."""
    parts = [rows.detach().flatten(1).cpu()] + ([] if deep is None else [deep.detach().flatten(1).cpu()])
    shape = repr((tuple(rows.shape[1:]), per_class, None if deep is None else tuple(deep.shape[1:]))).encode()
    found = []
    for row in zip(*parts, strict=True):
        digest = hashlib.blake2b(shape, digest_size=16)
        for numbers in row:
            digest.update(numbers.contiguous().view(torch.uint8).numpy())
        found.append(digest.digest())
    return found
