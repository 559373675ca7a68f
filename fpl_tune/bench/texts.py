"""Benchmark of text encoding."""

from __future__ import annotations

import torch

from fpl_tune.bench.measure import BenchRow, OnProgress, Peak, Steps, TowerMeter, best, once
from fpl_tune.clip._openclip import imagenet_names
from fpl_tune.clip.allocator import keep_freed_memory
from fpl_tune.config import RunSpec
from fpl_tune.core.formatting import counted, size
from fpl_tune.simulation.task import towers_for

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


def bench_text(run: RunSpec, device: str = "cpu", *, progress: OnProgress | None = None) -> list[BenchRow]:
    """Measures forward and backward passes of a cohort's contexts over class names; the plain path takes one client.

    The names are those of Caltech101, or with `data=imagenet` of ImageNet's thousand classes. The plain path then
    encodes a hundred of them, and its time is scaled.
    """
    keep_freed_memory()
    towers = towers_for(run.clip, device)
    names = imagenet_names() if run.data.name == "imagenet" else CALTECH101
    n_ctx, where = int(getattr(run.method, "n_ctx", 16)), towers.device
    sentences, some = (
        towers.sentences(chosen, n_ctx, position=run.clip.class_position)
        for chosen in (names, names[: len(CALTECH101)])
    )
    at_once = towers.text.prompts_at_once(sentences, towers.dtype)
    before = Peak(where).bytes()
    sizes = sorted({1, run.partition.n_clients or 10})
    steps = Steps(12 + sum(sizes), progress)

    def gradient(clients: int, *, plain: bool = False) -> None:
        """Gradient with respect to the contexts [C, l, d] of a cohort, in blocks of clients that fit into memory."""
        rng = torch.Generator().manual_seed(clients)
        contexts = 0.02 * torch.randn(clients, n_ctx, towers.text_width, generator=rng)
        for context in contexts.to(where).split(at_once):
            context.requires_grad_()
            features = towers.encode_prompts(context, some if plain else sentences, plain=plain)
            torch.autograd.grad(features.sum(), context)

    steps("one client, the plain path", 12)
    plain = best(lambda: gradient(1, plain=True), where, repeats=1) * len(names) / len(some)
    rows, alone = [], 0.0
    for n in sizes:
        steps(f"{counted(n, 'client')} in one batch", n)
        meter = TowerMeter(towers)
        with meter.on():
            gradient(n)
        meter.seconds = min(once(lambda n=n: gradient(n), where) for _ in range(3))  # the metered call was the warm-up
        alone = alone or meter.seconds
        note = (
            f"forward and backward, {len(names)} classes, {counted(n_ctx, 'context token')}, "
            f"{counted(torch.get_num_threads(), 'thread')}, {size(meter.peak_bytes - before)} above the loaded towers"
        )
        note += f"; blocks of {counted(at_once, 'client')}" if n > at_once else ""
        note += f"; one client after another: {n * alone / meter.seconds:.1f} times as long" if n > 1 else ""
        name = f"text {towers.name} {run.clip.dtype}, {counted(n, 'client')}"
        rows.append(meter.row(name, n * plain, note))
    return rows
