"""Task: towers, class names and clients' data of one seed, as a method sees them.

A `World` (towers, data set, cached features) is shared by all seeds and trials of a process; a `ClientTask` adds
one seed's split. Shapes as in `fpl_tune.method`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fpl_tune.clip import Towers, load_towers
from fpl_tune.clip.sentences import Position
from fpl_tune.data import Dataset, DataSpec, PartitionSpec, Pool, Split, features, load, split
from fpl_tune.data.augment import View
from fpl_tune.errors import ConfigError, unknown
from fpl_tune.method import Batch, Sizes, Table, unit

GENERIC_TEMPLATE = "a photo of a {}."


@dataclass
class ClipSpec:
    """The frozen towers and how class names become prompts."""

    name: str = "compact"
    """`compact` (shipped) or an open_clip model: RN50, ViT-B-16, ViT-B-32, ..."""
    pretrained: str | None = None
    """None, an open_clip tag such as `openai`, or the path of a local checkpoint."""
    dtype: str = "float32"
    """float32, bfloat16 or float16: the towers' arithmetic. What is learned stays float32."""
    tf32: bool = False
    """On CUDA: float32 matrix products in TF32, three digits for speed. Never without being asked for."""
    template: str = "generic"
    """Hand-written prompts: `generic` ("a photo of a {}."), `dataset` (the data set's own), or a text with {}."""
    class_position: str = "end"
    """Where the class name stands among the context tokens: end, middle or front."""


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


class _Prompter(Protocol):
    """What `Classes` needs of the towers; `Towers` has it, and so have the tests' doubles."""

    def sentences(self, names: Sequence[str], n_ctx: int, *, position: Any = "end") -> Any: ...


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

    def encode(self, context: Tensor, *, per_class: bool = False, deep: Tensor | None = None) -> Tensor:
        """Unit text features [..., K, D]; see `fpl_tune.method.Task.text`."""
        n_ctx = context.shape[-2]
        if n_ctx not in self._sentences:
            self._sentences[n_ctx] = self.towers.sentences(self.names, n_ctx, position=self.position)
        sentences = self._sentences[n_ctx]

        if torch.is_grad_enabled() and (context.requires_grad or (deep is not None and deep.requires_grad)):
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


class ClientData:
    """One split of one seed: which images each client holds, gathered into batches on demand.

    rows [N, R] points into the features; the last column is the spare row that padding points at.
    """

    def __init__(
        self,
        images: Tensor,
        index: Sequence[np.ndarray],
        label: Sequence[np.ndarray],
        *,
        towers: Towers | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        views: Sequence[Tensor] = (),
        second: Sequence[Tensor] = (),
    ) -> None:
        """images [n, ...] features, or uint8 pixels that `towers` normalise; index, label: N arrays, one per client,
        of rows of `images` and of class ids among the task's classes. views: random views, each shaped as `images`,
        that training draws from instead; second: those that `Batch.view` is drawn from."""
        self.images, self.towers, self.dtype = images, towers, dtype
        self.views, self.second = tuple(views), tuple(second)
        self.device = torch.device(device)
        self.same_for_all = len(index) > 1 and all(held is index[0] for held in index)
        self.size = torch.tensor([len(rows) for rows in index], device=self.device)
        width = int(self.size.max()) + 1 if len(index) else 1
        rows = torch.zeros(len(index), width, dtype=torch.int64)
        labels, mask = torch.zeros_like(rows), torch.zeros(len(index), width, dtype=torch.bool)
        for client, (held, truth) in enumerate(zip(index, label, strict=True)):
            rows[client, : len(held)] = torch.as_tensor(np.asarray(held))
            labels[client, : len(held)] = torch.as_tensor(np.asarray(truth))
            mask[client, : len(held)] = True
        self.rows, self.label, self.mask = rows.to(self.device), labels.to(self.device), mask.to(self.device)

    @property
    def spare(self) -> int:
        """Index of the spare last row of every client's table."""
        return self.rows.shape[1] - 1

    def widen(self, width: int) -> None:
        """Gives every client's table `width` rows, so that tables of several seeds lie side by side."""
        more = width - self.rows.shape[1]
        if more > 0:
            self.rows = F.pad(self.rows, (0, more))
            self.mask = F.pad(self.mask, (0, more))
            self.label = F.pad(self.label, (0, more))

    def batch(self, who: Tensor, index: Tensor, draw: Tensor | None = None) -> Batch:
        """who [C], index [C, B] in each client's own table -> Batch.

        draw [C, B]: large random numbers that choose among the views, in training; None: the images themselves.
        """
        client = who[:, None]
        rows = self.rows[client, index]
        seen = [] if draw is None else self.views
        return Batch(
            image=self._any(seen, rows, draw) if seen else self._gather(self.images, rows),
            label=self.label[client, index],
            mask=self.mask[client, index],
            index=index,
            view=None if draw is None or not self.second else self._any(self.second, rows, draw),
        )

    def table(self) -> Table:
        return Table(image=self._gather(self.images, self.rows), label=self.label, mask=self.mask)

    def _any(self, views: Sequence[Tensor], rows: Tensor, draw: Tensor | None) -> Tensor:
        """Each image from the view that its draw names."""
        assert draw is not None
        which = draw % len(views)
        image = self._gather(views[0], rows)
        for number in range(1, len(views)):
            image[which == number] = self._gather(views[number], rows[which == number])
        return image

    def _gather(self, images: Tensor, rows: Tensor) -> Tensor:
        found = images[rows.to(images.device)].to(self.device)
        if found.dtype == torch.uint8:
            assert self.towers is not None
            found = self.towers.normalise(found)
        return found.to(self.dtype)


@dataclass
class ClientTask:
    """One seed's task; implements `fpl_tune.method.Task`."""

    towers: Towers
    known: Classes
    train: ClientData
    val: ClientData
    tests: dict[str, tuple[Classes, ClientData]]
    domain: Tensor
    n_domains: int
    split_hash: str = ""
    primary: str = "test"

    def __post_init__(self) -> None:
        self.n_clients = len(self.train.rows)
        self.n_classes = len(self.known.names)
        self.embed_dim, self.text_width = self.towers.embed_dim, self.towers.text_width
        self.n_patches = self.towers.n_patches
        self.n_text_blocks, self.n_vision_blocks = self.towers.n_text_blocks, self.towers.n_vision_blocks
        self.vision_width = None if self.n_vision_blocks is None else self.towers.vision_width
        self.same_classes = all(classes.names == self.known.names for classes, _ in self.tests.values())
        self.scale = self.towers.scale
        self.dtype, self.device = self.train.dtype, self.train.device
        self.size = self.train.size

    @property
    def hand_text(self) -> Tensor:
        return self.known.hand_text().to(self.dtype)

    def text(self, context: Tensor, *, per_class: bool = False, deep: Tensor | None = None) -> Tensor:
        return self.known.encode(context, per_class=per_class, deep=deep)

    def words(self, text: str) -> Tensor:
        return self.towers.words(text).to(self.dtype)

    def see(
        self,
        pixels: Tensor,
        tokens: Tensor,
        *,
        deep: Tensor | None = None,
        place: Literal["front", "end"] = "front",
    ) -> tuple[Tensor, Tensor]:
        return self.towers.encode_prompted_images(pixels, tokens, deep=deep, place=place)

    def visual(self) -> nn.Module:
        return self.towers.model.visual

    def table(self, split: Literal["train", "val"]) -> Table:
        return {"train": self.train, "val": self.val}[split].table()

    def under(self, classes: Classes) -> ClientTask:
        """The same task with logits over other classes (novel classes at test time)."""
        if classes is self.known:
            return self
        return ClientTask(
            self.towers,
            classes,
            self.train,
            self.val,
            self.tests,
            self.domain,
            self.n_domains,
            self.split_hash,
        )


@dataclass
class World:
    """Towers, data set and cached features: the same for all seeds and all trials that agree on the fields."""

    towers: Towers
    dataset: Dataset
    clip: ClipSpec
    train_images: Tensor
    test_images: Tensor
    dtype: torch.dtype
    views: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()
    _classes: dict[tuple[int, ...], Classes] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        clip: ClipSpec,
        data: DataSpec,
        needs: str,
        view: str | None = None,
        *,
        cache_dir: Path,
        device: str = "cpu",
        progress: Any = None,
    ) -> World:
        """Loads towers and data set, and the image features that `needs` names (from the cache where it holds them).

        view: kind of the second view that the method asks for (`Method.view`).
        """
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = clip.tf32
        towers = load_towers(clip.name, clip.pretrained, device=device, dtype=getattr(torch, clip.dtype))
        dataset = load(data)

        def seen(pool: Pool, look: View | None = None) -> Tensor:
            return features(pool, towers, needs=needs, cache_dir=cache_dir, progress=progress, view=look)

        return cls(
            towers,
            dataset,
            clip,
            seen(dataset.train),
            seen(dataset.test),
            torch.float32,
            views=[seen(dataset.train, View("crop", number)) for number in range(data.views)],
            second=[seen(dataset.train, View(view, number)) for number in range(max(1, data.views)) if view],
        )

    def classes(self, ids: np.ndarray) -> Classes:
        key = tuple(int(i) for i in ids)
        if key not in self._classes:
            names = tuple(self.dataset.classes[i] for i in key)
            template = {"generic": GENERIC_TEMPLATE, "dataset": self.dataset.template}.get(
                self.clip.template, self.clip.template
            )
            self._classes[key] = Classes(self.towers, names, template, cast(Position, self.clip.class_position))
        return self._classes[key]

    def task(self, data: DataSpec, partition: PartitionSpec, seed: int) -> ClientTask:
        """The task of one seed: its partition and few-shot draw."""
        drawn: Split = split(self.dataset, data, partition, seed)
        device = self.towers.device

        def clients(
            images: Tensor,
            index: Sequence[np.ndarray],
            label: Sequence[np.ndarray],
            ids: np.ndarray,
            **views: Sequence[Tensor],
        ) -> ClientData:
            place = np.zeros(len(self.dataset.classes), dtype=np.int64)
            place[ids] = np.arange(len(ids))
            held = [place[labels] for labels in label]
            return ClientData(images, index, held, towers=self.towers, dtype=self.dtype, device=device, **views)

        tests = {
            name: (self.classes(t.classes), clients(self.test_images, t.index, t.label, t.classes))
            for name, t in drawn.tests.items()
        }
        # Domains count those that somebody trains on: a held-out domain has no keys or prompts of its own.
        trained_domains, trained_domain = np.unique(drawn.domain, return_inverse=True)
        return ClientTask(
            towers=self.towers,
            known=self.classes(drawn.classes),
            train=clients(
                self.train_images,
                drawn.train,
                drawn.train_label,
                drawn.classes,
                views=self.views,
                second=self.second,
            ),
            val=clients(self.train_images, drawn.val, drawn.val_label, drawn.classes),
            tests=tests,
            domain=torch.as_tensor(trained_domain, device=device),
            n_domains=len(trained_domains),
            split_hash=drawn.hash,
            primary=next(iter(drawn.tests)),
        )


def check_clip(clip: ClipSpec) -> None:
    """Raises `ConfigError` for a template without its place for the class name, or an unknown place in the context."""
    if clip.class_position not in get_args(Position):
        raise unknown("clip.class_position", clip.class_position, get_args(Position))
    if clip.template not in ("generic", "dataset") and "{}" not in clip.template:
        raise ConfigError(
            "clip.template must be 'generic', 'dataset' or a text with {} for the class name, "
            f"but is {clip.template!r}."
        )


__all__ = [
    "Classes",
    "ClientData",
    "ClientTask",
    "ClipSpec",
    "PromptMemory",
    "Sizes",
    "World",
    "check_clip",
]
