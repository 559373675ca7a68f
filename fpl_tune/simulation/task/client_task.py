"""One seed's task as a method sees it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from fpl_tune.clip import Towers
from fpl_tune.method import Adapter, Table
from fpl_tune.simulation.task.classes import Classes
from fpl_tune.simulation.task.clients import ClientData


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
    participation: float | None = 1.0
    cohort: int = 0
    """0: all clients."""
    validation: ClientData | None = None
    """Images that models are validated on if these are not `val`, the clients' own."""
    own_classes: bool = False
    passed: int = 0
    """Blocks of the image tower that the images have passed; 0 for pixels."""
    slow: Tensor | None = None
    """[N] bool, on the CPU: clients that are slow; None: none."""
    liars: Tensor | None = None
    """[N] bool, on the CPU: malicious clients; None: none."""
    malicious: int = 0
    poisoned: ClientData | None = None
    """Training images in rounds of an attack on data; None: `train`."""

    def __post_init__(self) -> None:
        self.n_clients = len(self.train.rows)
        self.n_classes = len(self.known.names)
        self.cohort = self.cohort or self.n_clients
        self.embed_dim, self.text_width = self.towers.embed_dim, self.towers.text_width
        self.n_patches = self.towers.n_patches
        self.n_text_blocks, self.n_vision_blocks = self.towers.n_text_blocks, self.towers.n_vision_blocks
        self.vision_width = None if self.n_vision_blocks is None else self.towers.vision_width
        self.same_classes = all(classes.names == self.known.names for classes, _ in self.tests.values())
        self.scale = self.towers.scale
        self.dtype, self.device = self.train.dtype, self.train.device
        self.size = self.train.size
        self.template = self.known.template
        self.round = self.rounds = self._key = 0

    @property
    def counts(self) -> Tensor:
        """[N, K] training images by client and class."""
        counts = torch.zeros(self.n_clients, self.n_classes, dtype=torch.int64, device=self.device)
        return counts.scatter_add_(1, self.train.label, self.train.mask.long())

    def during(self, round_: int, rounds: int, key: int, *, attacked: bool = False) -> ClientTask:
        """The same task in a round, counted from 1, of a stage; `key` seeds what `rng` gives. In an attacked round,
        malicious clients have what they then train on."""
        task = copy(self)
        if attacked and task.poisoned is not None:
            task.train = task.poisoned
        task.round, task.rounds, task._key = round_, rounds, key
        return task

    def rng(self, purpose: str) -> Generator:
        return torch.Generator().manual_seed(self._key ^ zlib.crc32(purpose.encode()))

    @property
    def hand_text(self) -> Tensor:
        return self.known.hand_text.to(self.dtype)

    def encode_prompts(self, context: Tensor, **how: Any) -> Tensor:
        return self.known.encode(context, **how)

    def sentences(self, templates: Sequence[str], *, adapter: Adapter | None = None) -> Tensor:
        return self.known.templates(templates, adapter=adapter).to(self.dtype)

    def words(self, text: str) -> Tensor:
        return self.towers.words(text).to(self.dtype)

    def encode_images(self, images: Tensor, tokens: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        return self.towers.encode_prompted_images(images, tokens, passed=self.passed, **how)

    def embed(self, pixels: Tensor) -> Tensor:
        return self.towers.embed_images(pixels)

    def visual(self) -> nn.Module:
        return self.towers.model.visual

    def table(self, split: Literal["train", "val"]) -> Table:
        return {"train": self.train, "val": self.val}[split].table()

    def without(self, unseen: Tensor) -> ClientTask:
        """The same task, where the clients `unseen` (bool [N]) have no images but those of the test set `unseen`."""
        classes, main = self.tests[self.primary]
        seen = ~unseen[:, None]
        tests = {name: (k, data.only(seen)) for name, (k, data) in self.tests.items()}
        tests["unseen"] = (classes, main.only(~seen))
        return replace(self, train=self.train.only(seen), val=self.val.only(seen), tests=tests)

    def judged_without(self, liars: Tensor) -> ClientTask:
        """The same task, where models of the malicious clients `liars` (bool [N], on the CPU) are not tested."""
        benign = ~liars[:, None].to(self.device)
        tests = {name: (k, data.only(benign)) for name, (k, data) in self.tests.items()}
        return replace(self, tests=tests, validation=(self.validation or self.val).only(benign), liars=liars)

    def under(self, classes: Classes, *, own: bool = False) -> ClientTask:
        """The same task with logits over other classes (novel classes at test time), or over each client's own."""
        return self if classes is self.known and not own else replace(self, known=classes, own_classes=own)
