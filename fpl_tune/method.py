"""The interface of a federated prompt-learning method, and the few functions that its files share.

A method is a frozen dataclass of hyper-parameters with pure functions on explicit state: state in, state out. Every
method has five of them:
    init       the state before the first round
    start      what the clients of a round start from
    logits     what a client predicts
    merge      the state after a round; the one function in which clients meet
    traffic    how many numbers a client sends and receives
All else in `Method` has a default: the loss is the cross-entropy, and clients are evaluated with what they would start
from. `Reported` is for the few methods that tell reports more than accuracies.

The towers are frozen and shared, so a client axis is one more batch axis: the parameters of a client are its
slice of a leaf, the gradient of the summed losses is each client's own gradient, and an elementwise optimiser
on the stacked leaf is C independent optimisers. Seeds ride on the same axis.

Notation of shapes, here and in every method:
    N all clients, C rows of a cohort (clients, of one seed or of several side by side), B batch, K classes,
    l context tokens, d width of a context token, D width of the joint embedding, M patches, E experts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
    "Local",
    "Method",
    "Metric",
    "Positive",
    "Reported",
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
    "trees_like",
    "with_gradient",
]  # fmt: skip

Tree = dict[str, Tensor]


class State(NamedTuple):
    """The state between rounds, split by its readers. Nothing else survives a round."""

    shared: Tree
    """[...] every client downloads it."""
    personal: Tree
    """[N, ...] never leaves its client."""
    server: Tree
    """[...] never leaves the server: pools, keys."""


class Local(NamedTuple):
    """The state during a round. Every leaf has a leading cohort axis [C, ...]."""

    params: Tree
    """Moved by gradients, each client its own slice."""
    buffers: Tree
    """Anchors, experts, banks: moved only by what `Method.loss` returns, never by gradients."""

    def at(self, rows: slice | Tensor) -> Local:
        """Some clients."""
        return Local(*({name: leaf[rows] for name, leaf in tree.items()} for tree in self))

    @classmethod
    def joined(cls, parts: Sequence[Local]) -> Local:
        """Clients side by side; nothing is copied where there is one part."""
        if len(parts) == 1:
            return parts[0]
        kinds = zip(*parts, strict=True)
        return cls(*({name: torch.cat([tree[name] for tree in trees]) for name in trees[0]} for trees in kinds))


class Batch(NamedTuple):
    """One step's images, one row a client."""

    image: Tensor
    """[C, B, D] pooled features, [C, B, M, D] patch features or [C, B, 3, H, W] pixels, as `Method.needs` says;
    [C, B, 1 + M, w] tokens in place of pixels where `Method.image_blocks` lets blocks be passed before."""
    label: Tensor
    """[C, B] class ids, 0 where masked."""
    mask: Tensor
    """[C, B] bool, False for padding."""
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride] - a tuple has an `index` too
    """[C, B] row in the client's own table; padding points at a spare last row, never at a real one."""
    view: Tensor | None = None
    """A random view of the same images, shaped as `image`, where `Method.view` asks for one."""


def join(batches: Sequence[Batch]) -> Batch:
    """The batches of several cohorts side by side, along the cohort axis."""
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
    """Number of scalars that one client sends and receives in one round, by the name of the tensor.

    A value is an int (the same for every client) or an int64 tensor [C]. A scalar travels as float32 (4 bytes).
    """

    up: dict[str, int | Tensor]
    down: dict[str, int | Tensor]


class Sizes(Protocol):
    """The sizes of a task. They are known before images are read, so that `Method.check` can reject a task early."""

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
    """M; None where the image tower has no spatial features."""
    n_text_blocks: int
    n_vision_blocks: int | None
    """Transformer blocks of the towers; None for a ResNet."""
    same_classes: bool
    """Every test set runs over the training classes; False in base-to-novel."""
    participation: float | None
    """Share of the clients that train in a round, where every round draws them uniformly; None where it does not."""


class Task(Sizes, Protocol):
    """The task of one seed, as a method receives it: towers, classes and clients' data.

    `logits` and `loss` receive the cohorts of several seeds side by side. They may use only what all seeds share:
    sizes, towers, classes. Values that differ by client or seed are leaves of `Local.buffers`.
    """

    scale: float
    """s = exp(logit_scale), 100 for the released CLIP weights."""
    dtype: torch.dtype
    device: torch.device
    size: Tensor
    """[N] number of training images of each client."""
    domain: Tensor
    """[N] domain id of each client, 0 where there is one domain."""
    round: int
    """In a round, its number in the stage, counted from 1; else 0."""
    rounds: int
    """In a round, the number of rounds of the stage; else 0."""
    template: str
    """Hand-written sentence with {} for the class name."""
    own_classes: bool
    """True if clients are evaluated among the classes of their own training images alone."""

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

        `deep` [..., J, l, d] replaces the context tokens at the input of blocks 1..J. `tail` are frozen words behind
        the context. `names` stand in the place of the K class names, "" for none. `adapter` adds a branch to the
        blocks; contexts are then [C, l, d] or one [l, d] for all.
        Differentiable in all of them.
        Without gradients, features of contexts seen before are cached; a context that changes at every call, as in
        a step or by image, takes `cache=False`: to look it up, it would have to be read from the device.
        """
        ...

    def sentences(self, templates: Sequence[str], *, adapter: Adapter | None = None) -> Tensor:
        """Raw text features [m, K, D] of m templates, {} standing for the class name; [C, m, K, D] with `adapter`.

        "{}" gives the bare names. Without `adapter` they are computed once.
        """
        ...

    def words(self, text: str) -> Tensor:
        """[l, d] token embeddings of a text, to start a context from words."""
        ...

    def encode_images(
        self,
        images: Tensor,
        tokens: Tensor,
        *,
        deep: Tensor | None = None,
        place: Literal["front", "end"] = "front",
        cosine: bool = False,
        adapter: Adapter | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Images, as `Batch.image` holds them of pixels, through the image tower with prompt tokens [C, n, w].

        `deep` [C, J, n, w] replaces the tokens at the input of blocks 1..J, `adapter` adds a branch to the blocks.
        Returns raw features [C, B, D] and the last block's q_cls · k_token, raw or the cosine [C, B, heads, n].
        """
        ...

    def embed(self, pixels: Tensor) -> Tensor:
        """Patch embeddings with their positions [..., M, w] of pixels [..., 3, H, W], before the first LayerNorm."""
        ...

    def visual(self) -> nn.Module:
        """The frozen image tower, pixels [n, 3, H, W] -> raw features [n, D], for methods that train its weights."""
        ...

    def table(self, split: Literal["train", "val"]) -> Table:
        """All training or validation images of this seed's clients. There is no table of test images."""
        ...


class Reported:
    """Functions by which a method tells reports and other methods about its models. Few methods write any."""

    own_metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that `metrics` returns, so that `report.metric` and, with a direction, `search.objectives` can name
    them."""
    represents: ClassVar[Literal["images", "classes"] | None] = None
    """Whose features `representation` returns: `images`, or `classes` where training changes the text alone; None: it
    is not written."""

    def __init_subclass__(cls) -> None:
        """Adds the class's metrics to the table."""
        super().__init_subclass__()
        for metric in cls.own_metrics:
            add_metric(metric)

    def metrics(self, task: Task, state: State) -> dict[str, float]:
        """Metrics of a state besides accuracies, by name, such as `privacy/epsilon`. Default: none."""
        return {}

    def diagnose(self, task: Task, local: Local, batch: Batch) -> dict[str, Tensor]:
        """Diagnostics of deployed models on validation images: [C, n] shares by name. Default: none."""
        return {}

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        """Features by which models are compared, of any length: [C, B, D] of images or [C, K, D] of classes.

        `image` is `Batch.image`; features of classes do not depend on it. MOON can wrap methods that have this.
        """
        raise NotImplementedError


class Method(Reported, ABC):
    """Abstract base of all methods. A subclass is a frozen dataclass; its fields are hyper-parameters.

    Functions are pure. `clients` [C] holds client ids (int64). No function may mix rows of a cohort but `merge`.
    """

    needs: ClassVar[Literal["pooled", "patches", "pixels"]] = "pooled"
    """The content of `Batch.image`."""
    requires: ClassVar[tuple[Literal["vit", "same_classes"], ...]] = ()
    """Needs of the task: a vision transformer as image tower, test images of the training classes alone."""
    image_blocks: ClassVar[int | None] = None
    """With pixels, how many of the image tower's last blocks depend on what is learned; None: all. The others run once
    for an image: `Batch.image` then holds the tokens after them, which `Task.encode_images` alone takes."""
    learns: ClassVar[bool] = True
    """False where nothing is trained; such a run has one round."""
    view: ClassVar[str | None] = None
    """Kind of random view that `Batch.view` holds in training (`strong`: FedAPT's), or None."""
    batched: ClassVar[bool] = True
    """False where the clients of a step run one after another, so that its kernels grow with them."""
    newer: ClassVar[tuple[str, ...]] = ()
    """Fields that came after results were stored: while they have their default, a cell's id is what it was."""

    # The five functions that every method has, in the order in which a round calls them.

    @abstractmethod
    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        """The state before round 1; `before` is the last state of an earlier stage.

        If `before` has the same leaves, training continues from it; otherwise the method decides how to use it.
        """

    @abstractmethod
    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        """The leaves [C, ...] that the cohort `clients` [C] starts this round with."""

    @abstractmethod
    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """Logits [C, B, K] of a batch of B images a client over K classes; further columns are wrong answers."""

    @abstractmethod
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        """The server's step: the next state. Only what this function reads leaves the clients `clients` [C]."""

    @abstractmethod
    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """Scalars that each client of a cohort receives before and sends after training, given the state before."""

    # Functions that a method replaces where it differs.

    def check(self, sizes: Sizes) -> None:
        """Checks that a task has what the method needs. A method with rules of its own calls this first.

        Raises:
            ConfigError: it has not, or a hyper-parameter does not fit its sizes.
        """
        for name, (fits, need) in _REQUIREMENTS.items():
            if name in (self.needs, *self.requires) and not fits(sizes):
                raise ConfigError(f"{type(self).__name__} needs {need}")

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        """[C] losses, no term of which mixes clients, and the next `Local.buffers`. Default: cross-entropy."""
        return cross_entropy(self.logits(task, local, batch), batch), local.buffers

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        """The leaves [C, ...] that the clients `clients` [C] are evaluated with. Default: those of `start`."""
        return self.start(task, state, clients)

    def newcomers(self, task: Task, state: State, fresh: State) -> State:
        """The state with all clients as they would be if they joined now; `fresh` is that before round 1.

        Default: everyone's personal leaves are those of `fresh`.
        """
        return state._replace(personal=fresh.personal)

    def certainty(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """[C, B]: how certain deployed models are that the classes have the image's, to detect images of others.

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
    "same_classes": (
        lambda sizes: sizes.same_classes,
        "test images of the training classes, but test sets have other classes. Use a partition without novel classes "
        "and protocol.cross=[], or another method such as promptfl.",
    ),
}
"""Values of `Method.needs` and `Method.requires`: a test of the task, and the end of the message if it fails."""


_IGNORED = -100  # label of an image that pads


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """[C, B, K] -> [C]: mean cross-entropy of each client's real images."""
    label = torch.where(batch.mask, batch.label, _IGNORED)
    values = F.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="none", ignore_index=_IGNORED)
    return values.view_as(label).sum(1) / batch.mask.sum(1).clamp(min=1)


def new_context(task: Task, n_ctx: int, rng: Generator, *lead: int) -> Tensor:
    """[*lead, l, d] learnable context, N(0, 0.02²) as in CoOp; the same numbers on every device."""
    return (0.02 * torch.randn(*lead, n_ctx, task.text_width, generator=rng)).to(task.device, task.dtype)


def same_leaves(one: State, other: State) -> bool:
    """True if two states have leaves of the same names and shapes."""
    pairs = zip(one, other, strict=True)
    return all({n: v.shape for n, v in a.items()} == {n: v.shape for n, v in b.items()} for a, b in pairs)


def trees_like(state: State, trees: Mapping[str, Tree]) -> State:
    """A state rebuilt from stored trees, checked against the names and shapes of a fresh one.

    Raises:
        ConfigError: a leaf is missing, unexpected or of another shape.
    """
    rebuilt = {}
    for part, wanted in state._asdict().items():
        found = trees.get(part, {})
        if wanted.keys() != found.keys():
            raise ConfigError(f"stored {part} state has leaves {sorted(found)}, the method has {sorted(wanted)}")
        for name, leaf in wanted.items():
            if leaf.shape != found[name].shape:
                raise ConfigError(
                    f"stored {part}.{name} is {tuple(found[name].shape)}, the method has {tuple(leaf.shape)}"
                )
        rebuilt[part] = {name: keep(found[name].to(leaf.device, leaf.dtype)) for name, leaf in wanted.items()}
    return state._replace(**rebuilt)
