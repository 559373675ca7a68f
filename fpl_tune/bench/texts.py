"""Text encoding alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fpl_tune.bench.measure import Measured, Peak, Progress, Steps, best, matrix_rate
from fpl_tune.clip.allocator import keep_freed_memory
from fpl_tune.clip.text import cost
from fpl_tune.config import RunSpec
from fpl_tune.formatting import counted

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
    """Forward and backward of a cohort's contexts over Caltech101's 100 names; the plain path one client at a time.

    In the arithmetic that is asked for, and for a float32 run on a CPU in bfloat16 too, which is faster on some and is
    never chosen without being asked for.
    """
    keep_freed_memory()
    sizes = sorted({1, run.partition.n_clients or 10})
    asked = _Cohorts(run, device, run.clip.dtype)
    other = "bfloat16" if run.clip.dtype == "float32" and device == "cpu" else None
    steps = Steps(12 + sum(sizes) * (1.6 if other else 1), progress)
    found = {}
    for n in sizes:
        steps(f"{counted(n, 'client')} in one batch", n)
        found[n] = asked.measured(n)
    steps("one client, the plain path", 12)
    plain = best(lambda: asked.gradient(1, plain=True), asked.device, repeats=1)
    rows = [asked.row(n, found[n], plain, [_against_one(n, found)]) for n in sizes]
    if other is None:
        return rows
    exact = asked.gradient(sizes[-1])
    half = _Cohorts(run, device, other)
    off = ((half.gradient(sizes[-1]) - exact).norm() / exact.norm()).item()
    for n in sizes:
        steps(f"{counted(n, 'client')} in one batch, in {other}", 0.6 * n)
        seconds = half.measured(n)
        said = f"clip.dtype={other} takes {seconds[0] / found[n][0]:.2f} of float32's time, gradients {off:.1g} off"
        rows.append(half.row(n, seconds, plain, [said, "plain path in float32"]))
    return rows


class _Cohorts:
    """Towers of one arithmetic and contexts of any number of clients."""

    def __init__(self, run: RunSpec, device: str, kind: str) -> None:
        self.kind, self.dtype = kind, getattr(torch, kind)
        self.towers = run.clip.load(device, kind)
        self.device = self.towers.device
        self.n_ctx = int(getattr(run.method, "n_ctx", 16))
        self.sentences = self.towers.sentences(CALTECH101, self.n_ctx, position=run.clip.class_position)
        self.rate = matrix_rate(self.device, self.dtype)

    def gradient(self, clients: int, *, plain: bool = False) -> Tensor:
        """By the contexts [C, l, d] of a cohort, equal in every arithmetic but for its rounding."""
        rng = torch.Generator().manual_seed(clients)
        context = 0.02 * torch.randn(clients, self.n_ctx, self.towers.text_width, generator=rng)
        weight = torch.randn(len(CALTECH101), self.towers.embed_dim, generator=rng).to(self.device)
        context = context.to(self.device).requires_grad_()
        features = self.towers.encode_prompts(context, self.sentences, plain=plain)
        return torch.autograd.grad((features * weight).sum(), context)[0]

    def measured(self, clients: int) -> tuple[float, int]:
        """Seconds and peak memory in bytes."""
        peak = Peak(self.device)
        return best(lambda: self.gradient(clients), self.device), peak.bytes()

    def row(self, clients: int, measured: tuple[float, int], plain: float, notes: list[str]) -> Measured:
        seconds, peak = measured
        work = cost(self.towers.text, self.sentences, clients)
        said = (
            f"forward and backward, {len(CALTECH101)} classes, {counted(self.n_ctx, 'context token')}, "
            f"{1e-9 * self.rate:.0f} GFLOP/s measured, {counted(torch.get_num_threads(), 'thread')}"
        )
        return Measured(
            f"text {self.towers.name} {self.kind}, {counted(clients, 'client')}",
            seconds,
            plain * clients,
            work.tokens,
            work.operations,
            work.operations / seconds / self.rate,
            peak,
            "; ".join([said, *filter(None, notes)]),
        )


def _against_one(n: int, found: dict[int, tuple[float, int]]) -> str:
    """What one batch saves over a loop, both on the fast path."""
    return "" if n == 1 else f"one client after another: {n * found[1][0] / found[n][0]:.1f} times as long"
