"""The interface of federated prompt-learning methods, and functions that methods share.

A method is a frozen dataclass of hyper-parameters with pure functions on explicit state: state in, state out. Every
method has five of them:
    init       the state before the first round
    start      the leaves that the clients of a round start from
    logits     the predictions of clients
    merge      the state after a round; the only function that combines clients
    traffic    the numbers that a client sends and receives
All other functions of `Method` have a default: the loss is the cross-entropy, and clients are evaluated with the leaves
that they would start from. `Reported` is for the few methods that report more than accuracies.

The towers are frozen and shared, so a client axis is one more batch axis: the parameters of a client are its
slice of a leaf, the gradient of the summed losses is each client's own gradient, and an elementwise optimiser
on the stacked leaf is C independent optimisers. Seeds use the same axis.

Notation of shapes, here and in every method:
    N all clients, C rows of a cohort (clients, of one seed or of several seeds), B batch, K classes,
    l context tokens, d width of a context token, D width of the joint embedding, M patches, E experts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fpl_tune.core.adapter import Adapter
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import Metric, add_metric
from fpl_tune.core.seeds import derive, generator
from fpl_tune.core.spec import AtLeastOne, Decay, Fraction, Positive, Share, Weight, dataclass
from fpl_tune.core.tensors import (
    among,
    average,
    clipped,
    cosine_logits,
    count,
    fresh_leaves,
    in_place,
    keep,
    mean_over,
    normalize,
    replicate,
    require,
    scatter_rows,
    with_gradient,
)

__all__ = [
    "Adapter",
    "AtLeastOne",
    "Batch",
    "Decay",
    "Fraction",
    "Group",
    "Local",
    "Method",
    "Metric",
    "Positive",
    "Reported",
    "Requirement",
    "Share",
    "Sizes",
    "State",
    "Table",
    "Task",
    "Traffic",
    "Tree",
    "Weight",
    "among",
    "average",
    "clipped",
    "cosine_logits",
    "count",
    "cross_entropy",
    "dataclass",
    "derive",
    "fresh_leaves",
    "generator",
    "in_place",
    "join",
    "mean_over",
    "new_context",
    "normalize",
    "replicate",
    "require",
    "same_leaves",
    "scatter_rows",
    "sent_leaves",
    "trees_like",
    "with_gradient",
]  # fmt: skip

Tree = dict[str, Tensor]
Requirement = Literal["vit", "text_blocks", "same_classes"]


class State(NamedTuple):
    """The state between rounds. Nothing else is kept over rounds."""

    shared: Tree
    """[...] leaves that every client downloads."""
    personal: Tree
    """[N, ...] leaves that never leave their client."""
    server: Tree
    """[...] leaves that never leave the server, such as pools and keys. One that is computed from averages, such as a
    moment, has the name of the shared leaf behind a dot: `server.m.prompt`."""


class Local(NamedTuple):
    """The state during a round. Every leaf has a leading cohort axis [C, ...]."""

    params: Tree
    """Leaves that are trained by gradients, a slice for each client."""
    buffers: Tree
    """Anchors, experts and banks, which change only by the return value of `Method.loss`, never by gradients."""

    def at(self, rows: slice | Tensor) -> Local:
        """The state of some of the clients."""
        return Local(*({name: leaf[rows] for name, leaf in tree.items()} for tree in self))

    @classmethod
    def joined(cls, parts: Sequence[Local]) -> Local:
        """Joins clients along the cohort axis. A single part is not copied."""
        if len(parts) == 1:
            return parts[0]
        kinds = zip(*parts, strict=True)
        return cls(*({name: torch.cat([tree[name] for tree in trees]) for name in trees[0]} for trees in kinds))


class Batch(NamedTuple):
    """The images of one step, with one row per client."""

    image: Tensor
    """[C, B, D] pooled features, [C, B, M, D] patch features or [C, B, 3, H, W] pixels, as in `Method.needs`;
    [C, B, 1 + M, w] tokens in place of pixels if blocks are applied before, see `Method.image_blocks`."""
    label: Tensor
    """[C, B] class ids, 0 in padding."""
    mask: Tensor
    """[C, B] bool, False for padding."""
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride] - a tuple has an `index` too
    """[C, B] rows in the client's own table; padding refers to a spare last row, never to an image."""
    view: Tensor | None = None
    """A random view of the same images with the shape of `image`, if `Method.view` is set."""


def join(batches: Sequence[Batch]) -> Batch:
    """Joins the batches of several cohorts along the cohort axis."""
    views = [b.view for b in batches if b.view is not None]
    image, label, mask, index = (torch.cat(parts) for parts in zip(*(b[:4] for b in batches), strict=True))
    return Batch(image, label, mask, index, torch.cat(views) if views else None)


class Table(NamedTuple):
    """All images of one split, client by client."""

    image: Tensor
    """[N, R, ...] as `Batch.image`; R is the largest client's number of images plus one spare row."""
    label: Tensor
    """[N, R]"""
    mask: Tensor
    """[N, R] bool, False in padding and in the spare last row."""


class Traffic(NamedTuple):
    """Number of scalars that one client sends and receives in one round, by name of the tensor.

    A value is an int, if it is the same for every client, or an int64 tensor [C]. A scalar counts as float32 (4 bytes).
    """

    up: dict[str, int | Tensor]
    down: dict[str, int | Tensor]


class Group(NamedTuple):
    """A group of leaves that may have its own learning rate."""

    name: str
    """That of its leaf, or what stands before the first dot in the names of its leaves."""
    meaning: str
    rate: float | None = None
    """Its rate unless `optim.groups` sets another; None: `optim.lr`."""


class Sizes(Protocol):
    """The sizes of a task. They are available before images are read, so `Method.check` can reject a task early."""

    n_clients: int
    n_classes: int
    n_domains: int
    embed_dim: int
    """D"""
    text_width: int
    """d"""
    vision_width: int | None
    """Width of a token in the vision transformer; None for a ResNet."""
    n_patches: int | None
    """M; None if the image tower has no spatial features."""
    n_text_blocks: int
    """Transformer blocks that prompts and branches reach; 0 of a text tower of Hugging Face."""
    n_vision_blocks: int | None
    """Transformer blocks of the image tower; None for a ResNet."""
    same_classes: bool
    """True if all test sets have the training classes, as opposed to base-to-novel."""
    participation: float | None
    """Share of the clients that train in a round, if every round draws them uniformly, else None."""
    cohort: int
    """Number of clients of a round; of the rounds after the first one, which may have all."""
    malicious: int
    """Number of malicious clients among them, on average."""


class Task(Sizes, Protocol):
    """The task of one seed for a method: towers, classes and clients' data.

    `logits` and `loss` receive cohorts of several seeds, joined. They may use only sizes, towers and classes, which all
    seeds share. Values that differ by client or seed must be leaves of `Local.buffers`.
    """

    scale: float
    """s = exp(logit_scale), 100 for the released CLIP weights."""
    dtype: torch.dtype
    device: torch.device
    size: Tensor
    """[N] number of training images of each client."""
    domain: Tensor
    """[N] domain id of each client, 0 if there is only one domain."""
    round: int
    """Number of the current round in the stage, counted from 1; 0 outside of rounds."""
    rounds: int
    """Number of rounds of the stage; 0 outside of rounds."""
    template: str
    """Hand-written sentence with {} for the class name."""
    own_classes: bool
    """True if clients are evaluated among the classes of their own training images only."""

    @property
    def counts(self) -> Tensor:
        """[N, K] number of training images of each client and class."""
        ...

    def rng(self, purpose: str) -> Generator:
        """A CPU generator for `Method.start` and `Method.merge`, by seed, round and purpose."""
        ...

    @property
    def hand_text(self) -> Tensor:
        """[K, D] unit text features of the hand-written prompts."""
        ...

    def encode_prompts(
        self,
        context: Tensor,
        *,
        per_class: bool = False,
        deep: Tensor | None = None,
        tail: str = "",
        names: Sequence[str] | None = None,
        adapter: Adapter | None = None,
        cache: bool = True,
    ) -> Tensor:
        """Unit text features [..., K, D] of contexts [..., l, d] (or [..., K, l, d] if `per_class`).

        `deep` [..., J, l, d] replaces the context tokens at the input of blocks 1..J. `tail` are frozen words after the
        context. `names` replace the K class names; "" is an empty name. `adapter` adds a branch to the blocks; contexts
        are then [C, l, d], or [l, d] for all clients. The result is differentiable in all of them.

        Without gradients, features are cached by context. Pass `cache=False` for contexts that change at every call, as
        in steps or by image, since a look-up reads the context from the device.
        """
        ...

    def sentences(self, templates: Sequence[str], *, adapter: Adapter | None = None) -> Tensor:
        """Raw text features [m, K, D] of m templates with {} for the class name; [C, m, K, D] with `adapter`.

        The template "{}" gives the names alone. Without `adapter`, features are computed once.
        """
        ...

    def words(self, text: str) -> Tensor:
        """[l, d] token embeddings of a string, to start a context from words."""
        ...

    def encode_images(
        self,
        images: Tensor,
        tokens: Tensor,
        *,
        deep: Tensor | None = None,
        cosine: bool = False,
        adapter: Adapter | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Encodes images, as in `Batch.image` for pixels, by the image tower with prompt tokens [C, n, w].

        `deep` [C, J, n, w] replaces the tokens at the input of blocks 1..J, `adapter` adds a branch to the blocks.
        Returns raw features [C, B, D], and q_cls · k_token of the last block, or its cosine [C, B, heads, n].
        """
        ...

    def embed(self, pixels: Tensor) -> Tensor:
        """Patch embeddings with positions [..., M, w] of pixels [..., 3, H, W], before the first LayerNorm."""
        ...

    def visual(self) -> nn.Module:
        """The frozen image tower, pixels [n, 3, H, W] -> raw features [n, D], for methods that train its weights."""
        ...

    def table(self, split: Literal["train", "val"]) -> Table:
        """All training or validation images of this seed's clients. There is no table of test images."""
        ...


class Reported:
    """Functions by which a few methods give reports and other methods more information about their models."""

    own_metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that `metrics` returns. `report.metric` can name them, and `search.objectives` if they have a
    direction."""
    represents: ClassVar[Literal["images", "classes"] | None] = None
    """Features that `representation` returns: of `images`, or of `classes` if training changes text features only; None
    if it is not implemented."""

    def __init_subclass__(cls) -> None:
        """Adds the class's metrics to the table."""
        super().__init_subclass__()
        for metric in cls.own_metrics:
            add_metric(metric)

    def metrics(self, task: Task, state: State) -> dict[str, float]:
        """Further metrics of a state by name, such as `privacy/epsilon`. Default: none."""
        return {}

    def diagnose(self, task: Task, local: Local, batch: Batch) -> dict[str, Tensor]:
        """Diagnostics [C, n] of deployed models on validation images, by name. Default: none."""
        return {}

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        """Features for comparisons of models, of any length: [C, B, D] of images or [C, K, D] of classes.

        `image` is `Batch.image`; features of classes do not depend on it. MOON can wrap methods that implement this.
        """
        raise NotImplementedError


class Method(Reported, ABC):
    """Abstract base class of all methods. A subclass is a frozen dataclass whose fields are hyper-parameters.

    Functions are pure. `clients` [C] are client ids (int64). Only `merge` may mix rows of a cohort.

    Example:
        >>> import torch
        >>> import fpl_tune.method as fl
        >>> from fpl_tune.methods.promptfl import PromptFL
        >>> from fpl_tune.testing import toy_task
        >>> method, task = PromptFL(n_ctx=4), toy_task()  # a task of four clients on tiny towers
        >>> state = method.init(task, fl.generator("init"))
        >>> clients = torch.tensor([0, 2])  # the cohort of a round
        >>> local = method.start(task, state, clients)
        >>> local.params["prompt"].shape[:2]  # a context of four tokens for each of them
        torch.Size([2, 4])
        >>> after = method.merge(task, state, clients, local)  # nothing was trained: their average is the context
        >>> torch.testing.assert_close(after.shared["prompt"], state.shared["prompt"])
        >>> sent = method.traffic(task, state, clients).up["prompt"]
        >>> sent == 4 * task.text_width
        True
    """

    needs: ClassVar[Literal["pooled", "patches", "pixels"]] = "pooled"
    """The content of `Batch.image`."""
    requires: ClassVar[tuple[Requirement, ...]] = ()
    """Requirements: a vision transformer as image tower (`vit`), a text tower whose blocks prompts or branches reach
    (`text_blocks`), test images of training classes only (`same_classes`)."""
    image_blocks: ClassVar[int | None] = None
    """With pixels, number of the image tower's last blocks that depend on learned leaves; None for all. The others run
    once per image: `Batch.image` then has the tokens after them, which only `Task.encode_images` accepts."""
    learns: ClassVar[bool] = True
    """False if nothing is trained; such a run has one round."""
    view: ClassVar[str | None] = None
    """Kind of random view in `Batch.view` in training (`strong`: FedAPT's), or None."""
    batched: ClassVar[bool] = True
    """False if the clients of a step run one after another."""
    leaf_groups: ClassVar[tuple[Group, ...]] = ()
    """Groups of leaves that may have learning rates of their own."""
    newer: ClassVar[tuple[str, ...]] = ()
    """Fields that were added later. They do not change the id of a cell while they have their default."""

    # The five functions of every method, in the order in which a round calls them.

    @abstractmethod
    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        """The state before round 1; `before` is the last state of an earlier stage.

        If `before` has the same leaves, training continues from it; otherwise the method decides how to use it.
        """

    @abstractmethod
    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        """The leaves [C, ...] with which the cohort `clients` [C] starts this round."""

    @abstractmethod
    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """Logits [C, B, K] of a batch of B images per client over K classes; further columns are wrong answers."""

    @abstractmethod
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        """The server's step, which returns the next state. Only leaves that it reads leave `clients` [C]."""

    @abstractmethod
    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """Numbers of scalars that each client of a cohort receives and sends in a round that starts with `state`."""

    # Functions that a method may override.

    def check(self, sizes: Sizes) -> None:
        """Checks that a task meets the method's requirements. A method with further rules calls this first.

        Raises:
            ConfigError: it does not, or a hyper-parameter does not fit its sizes.
        """
        for name, (fits, need) in _REQUIREMENTS.items():
            if name in (self.needs, *self.requires) and not fits(sizes):
                raise ConfigError(f"{type(self).__name__} needs {need}")

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        """Losses [C], without terms that mix clients, and the next `Local.buffers`. Default: cross-entropy."""
        return cross_entropy(self.logits(task, local, batch), batch), local.buffers

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        """The leaves [C, ...] with which `clients` [C] are evaluated. Default: those of `start`."""
        return self.start(task, state, clients)

    def newcomers(self, task: Task, state: State, fresh: State) -> State:
        """The state as if all clients joined now; `fresh` is the state before round 1.

        Default: all personal leaves are those of `fresh`.
        """
        return state._replace(personal=fresh.personal)

    def certainty(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """[C, B] certainty of deployed models that an image belongs to the classes, to detect images of other classes.

        Default: the largest probability (Hendrycks and Gimpel, ICLR 2017).
        """
        return self.logits(task, local, batch).softmax(-1).amax(-1)


_REQUIREMENTS: dict[str, tuple[Callable[[Sizes], bool], str]] = {
    "patches": (
        lambda sizes: sizes.n_patches is not None,
        "patch features, which this image tower does not have. Use clip=compact, rn50, vit_b32 or vit_b16.",
    ),
    "vit": (
        lambda sizes: sizes.vision_width is not None,
        "a vision transformer, which this image tower is not. Use clip=compact, vit_b32 or vit_b16.",
    ),
    "text_blocks": (
        lambda sizes: sizes.n_text_blocks > 0,
        "a text tower whose blocks prompts and branches reach, as those of Hugging Face and CoCa do not let them. Use "
        "clip=compact, vit_b32 or vit_b16.",
    ),
    "same_classes": (
        lambda sizes: sizes.same_classes,
        "test images of the training classes, but test sets have other classes. Use a partition without novel classes "
        "and protocol.cross=[], or another method such as promptfl.",
    ),
}
"""Tests of a task for values of `Method.needs` and `Method.requires`, each with the end of the error message."""


_IGNORED = -100  # label of padding


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """[C, B, K] -> [C]: mean cross-entropy of each client's images, without padding."""
    label = torch.where(batch.mask, batch.label, _IGNORED)
    values = F.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="none", ignore_index=_IGNORED)
    return values.view_as(label).sum(1) / batch.mask.sum(1).clamp(min=1)


def new_context(task: Task, n_ctx: int, rng: Generator, *lead: int) -> Tensor:
    """[*lead, l, d] a learnable context, N(0, 0.02²) as in CoOp; the same numbers on every device."""
    return (0.02 * torch.randn(*lead, n_ctx, task.text_width, generator=rng)).to(task.device, task.dtype)


def same_leaves(one: State, other: State) -> bool:
    """True if two states have leaves with the same names and shapes."""
    pairs = zip(one, other, strict=True)
    return all({n: v.shape for n, v in a.items()} == {n: v.shape for n, v in b.items()} for a, b in pairs)


def sent_leaves(local: Local, up: Collection[str]) -> Local:
    """The leaves of floating-point numbers that clients send.

    A leaf whose name extends that of another leaf, such as the copy `gate.bias.ditto`, is sent only if `up` names it.

    Args:
        local: leaves of a cohort.
        up: names as in `Traffic.up`: of leaves, or of what stands before the first dot in the names of several.
    """
    leaves = {*local.params, *local.buffers}

    def is_sent(name: str) -> bool:
        group, *rest = name.split(".")
        copied = any(".".join([group, *rest[:i]]) in leaves for i in range(len(rest)))  # as in prompt.ditto
        return name in up or (group in up and not copied)

    kinds = ({n: leaf for n, leaf in kind.items() if leaf.is_floating_point() and is_sent(n)} for kind in local)
    return Local(*kinds)


def trees_like(state: State, trees: Mapping[str, Tree]) -> State:
    """Rebuilds a state from stored trees, which must have the names and shapes of a fresh state.

    Raises:
        ConfigError: a leaf is missing, unexpected or of another shape.
    """
    rebuilt = {}
    for kind, fresh in state._asdict().items():
        stored = trees.get(kind, {})
        if fresh.keys() != stored.keys():
            raise ConfigError(f"stored {kind} state has leaves {sorted(stored)}, the method has {sorted(fresh)}")
        for name, leaf in fresh.items():
            if leaf.shape != stored[name].shape:
                raise ConfigError(
                    f"stored {kind}.{name} is {tuple(stored[name].shape)}, the method has {tuple(leaf.shape)}"
                )
        rebuilt[kind] = {name: keep(stored[name].to(leaf.device, leaf.dtype)) for name, leaf in fresh.items()}
    return state._replace(**rebuilt)
