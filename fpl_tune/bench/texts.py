"""Text encoding alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fpl_tune.bench.measure import Measured, Peak, Progress, Steps, best, matrix_rate
from fpl_tune.clip._openclip import imagenet_names
from fpl_tune.clip.allocator import keep_freed_memory
from fpl_tune.clip.text import cost
from fpl_tune.config import RunSpec
from fpl_tune.formatting import counted
from fpl_tune.formatting import size as formatted

# Caltech101's class names (a fact of the data set), so that text is measured on real lengths without the data.
CALTECH101 = tuple(
    (
        "face leopard motorbike accordion airplane anchor ant barrel bass beaver binocular bonsai brain "
        "brontosaurus buddha butterfly camera cannon car_side ceiling_fan cellphone chair chandelier "
        "cougar_body cougar_face crab crayfish crocodile crocodile_head cup dalmatian dollar_bill dolphin "
        "dragonfly electric_guitar elephant emu euphonium ewer ferry flamingo flamingo_head garfield gerenuk "
        "gramophone grand_piano hawksbill headphone hedgehog helicopter ibis inline_skate joshua_tree "
        "kangaroo ketch lamp laptop llama lobster lotus mandolin mayfly menorah metronome minaret nautilus "
        "octopus okapi pagoda panda pigeon pizza platypus pyramid revolver rhino rooster saxophone schooner "
        "scissors scorpion sea_horse snoopy soccer_ball stapler starfish stegosaurus stop_sign strawberry "
        "sunflower tick trilobite umbrella watch water_lilly wheelchair wild_cat windsor_chair wrench "
        "yin_yang"
    ).split()
)


def bench_text(run: RunSpec, device: str = "cpu", *, progress: Progress | None = None) -> list[Measured]:
    """Forward and backward of a cohort's contexts over class names alone; the plain path one client at a time.

    The names are Caltech101's, or with `data=imagenet` ImageNet's thousand; the plain path then encodes a hundred of
    them, and its time is scaled. A float32 run of few classes on a CPU is repeated in bfloat16, which some CPUs compute
    faster.
    """
    keep_freed_memory()
    sizes = sorted({1, run.partition.n_clients or 10})
    asked = _Cohorts(run, device, run.clip.dtype)
    few = len(asked.names) <= len(CALTECH101)
    other = "bfloat16" if run.clip.dtype == "float32" and device == "cpu" and few else None
    steps = Steps(12 + sum(sizes) * (1.6 if other else 1), progress)
    found = {}
    for n in sizes:
        steps(f"{counted(n, 'client')} in one batch", n)
        found[n] = asked.measured(n)
    steps("one client, the plain path", 12)
    plain = best(lambda: asked.gradient(1, plain=True), asked.device, repeats=1)
    plain *= len(asked.names) / len(asked.some)
    rows = [asked.row(n, found[n], plain, [_against_one(n, found)]) for n in sizes]
    if other is None:
        return rows
    exact = asked.gradient(sizes[-1])
    half = _Cohorts(run, device, other)
    off = ((half.gradient(sizes[-1]) - exact).norm() / exact.norm()).item()
    for n in sizes:
        steps(f"{counted(n, 'client')} in one batch, in {other}", 0.6 * n)
        measured = half.measured(n)
        said = f"clip.dtype={other} takes {measured[0] / found[n][0]:.2f} of float32's time, gradients {off:.1g} off"
        rows.append(half.row(n, measured, plain, [said, "plain path in float32"]))
    return rows


class _Cohorts:
    """Towers of one arithmetic and contexts of any number of clients."""

    def __init__(self, run: RunSpec, device: str, kind: str) -> None:
        self.kind, self.dtype = kind, getattr(torch, kind)
        self.towers = run.clip.load(device, kind)
        self.device = self.towers.device
        self.n_ctx = int(getattr(run.method, "n_ctx", 16))
        self.names = imagenet_names() if run.data.name == "imagenet" else CALTECH101
        self.some = self.towers.sentences(self.names[: len(CALTECH101)], self.n_ctx, position=run.clip.class_position)
        self.sentences = self.towers.sentences(self.names, self.n_ctx, position=run.clip.class_position)
        self.at_once = self.towers.text.prompts_at_once(self.sentences, self.dtype)
        self.rate = matrix_rate(self.device, self.dtype)
        self.before = Peak(self.device).bytes()

    def gradient(self, clients: int, *, plain: bool = False) -> Tensor:
        """Gradient with respect to the contexts [C, l, d] of a cohort, in blocks of as many clients as memory holds.

        It is equal in every arithmetic up to rounding.
        """
        rng = torch.Generator().manual_seed(clients)
        contexts = 0.02 * torch.randn(clients, self.n_ctx, self.towers.text_width, generator=rng)
        sentences = self.some if plain else self.sentences
        weight = torch.randn(len(sentences), self.towers.embed_dim, generator=rng).to(self.device)
        found = []
        for context in contexts.to(self.device).split(self.at_once):
            context.requires_grad_()
            features = self.towers.encode_prompts(context, sentences, plain=plain)
            found += torch.autograd.grad((features * weight).sum(), context)
        return torch.cat(found)

    def measured(self, clients: int) -> tuple[float, int]:
        """Seconds and peak memory in bytes."""
        peak = Peak(self.device)
        return best(lambda: self.gradient(clients), self.device), peak.bytes()

    def row(self, clients: int, measured: tuple[float, int], plain: float, notes: list[str]) -> Measured:
        seconds, peak = measured
        work = cost(self.towers.text, self.sentences, clients)
        self.rate = max(self.rate, matrix_rate(self.device, self.dtype))  # before and after: other load only lowers it
        said = (
            f"forward and backward, {len(self.names)} classes, {counted(self.n_ctx, 'context token')}, "
            f"{1e-9 * self.rate:.0f} GFLOP/s measured, {counted(torch.get_num_threads(), 'thread')}, "
            f"{formatted(peak - self.before)} above the loaded towers"
        )
        blocks = f"blocks of {counted(self.at_once, 'client')}" if clients > self.at_once else ""
        return Measured(
            f"text {self.towers.name} {self.kind}, {counted(clients, 'client')}",
            seconds,
            plain * clients,
            work.tokens,
            work.operations,
            work.operations / seconds / self.rate,
            1.0,
            peak,
            "; ".join([said, *filter(None, [blocks, *notes])]),
        )


def _against_one(n: int, found: dict[int, tuple[float, int]]) -> str:
    """The ratio of a loop over clients to one batch, both on the fast path, as a note."""
    return "" if n == 1 else f"one client after another: {n * found[1][0] / found[n][0]:.1f} times as long"
