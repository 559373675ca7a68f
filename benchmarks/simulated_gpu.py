"""Steps on a GPU, counted on the simulated accelerator and predicted for an H200: no GPU is needed.

Launches are counted with all 12 blocks at a small width, and for few classes: neither changes their number. For the
prediction, every kernel's operations and bytes are counted at the true width and number of classes for two and three
clients, and continued to the cohort. In bf16, a kernel takes 4 microseconds and the longer of

* its operations at 43 % of the peak rate (989 TFLOP/s), those of attention at 107 TFLOP/s,
* the bytes that it reads and writes at 57 % of the bandwidth (4.8 TB/s), the second-level cache not counted.

Two numbers are fitted to steps that an H200 replayed with PyTorch 2.11 (10 and 100 classes, one and three seeds): the
4 microseconds, and a factor of 1.4 by which all three rates are lower than was assumed before: 60 %, 150 TFLOP/s
(FlashAttention-2's gradient reaches 214 on an H100 at 512 tokens; Shah et al. 2024, figure 6) and 80 %.

An eager step takes the longer of its kernels and of 50 microseconds a launch, most of which is Python's, as on the same
machine; a graphed one takes its kernels. Shares are of a matrix product's 750 TFLOP/s there. Kernels of processes that
share a GPU overlap where they do not fill it (NVIDIA's Multi-Process Service): two processes take at least as long as
one alone, and as the operations and bytes of both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpu_steps import Size, StepsOfRounds, text_towers
from simulated_device import Counts, Work, counting, simulated

from fpl_tune.bench.measure import BenchRow, OnProgress, Steps
from fpl_tune.clip.text import cost
from fpl_tune.core.formatting import counted
from fpl_tune.simulation.graphs import Graphs, capture

_RATE, _ATTENTION, _MATRIX = 0.43 * 989e12, 107e12, 750e12  # operations a second
_BANDWIDTH, _KERNEL, _LAUNCH = 0.57 * 4.8e12, 4e-6, 50e-6  # bytes a second; seconds
_N_CTX, _COHORT = 16, 10
_FEW = 10
"""Classes of a step whose kernels are short, as EuroSAT's."""


def simulate_gpu(progress: OnProgress | None = None, size: Size | None = None) -> list[BenchRow]:
    """Launches, synchronisations and copies of a step of pFedMoAP, and its predicted time (see this module).

    Where one seed reaches a share s of the matrix rate, three seeds take at least 3 s times as long
    (`seconds_over_one_seed_least`), and two processes gain at most 1/s.

    Args:
        progress: called as the counting advances.
        size: of the steps whose time is predicted.
    """
    size = size or Size()
    steps = Steps(4, progress)
    steps("launches of a step")
    seen = count_step()
    steps("text encoding")
    works = [_text_work(size, n) for n in (2, 3)]
    rows = [_row("text encoding", works, size, seeds) for seeds in (1, 3)]
    for classes in (size, size._replace(names=size.names[:_FEW])):
        steps(f"a step, {counted(len(classes.names), 'class', 'classes')}")
        works = [_work(classes, n) for n in (2, 3)]
        one, three = (_row("step", works, classes, seeds) | seen for seeds in (1, 3))
        for row in (one, three):
            launching = row["launches"] * _LAUNCH
            row["predicted_seconds"] = max(row["kernel_seconds"], launching)
            row["bound"] = "launches" if launching > row["kernel_seconds"] else "GPU"
        alone, filled = _predicted(works, _COHORT)
        one["packed_gain"] = 2 * alone / max(alone, 2 * filled)
        three["seconds_over_one_seed"] = three["kernel_seconds"] / alone
        three["seconds_over_one_seed_least"] = max(1.0, 3 * one["matrix_rate_share"])
        rows += [one, three]
    return rows


def _row(what: str, works: Sequence[Sequence[Work]], size: Size, seeds: int) -> BenchRow:
    """Predicted seconds of the kernels of a cohort, which a graphed step takes, and their share of the matrix rate."""
    towers = text_towers(size, torch.float32, torch.device("cpu"))
    operations = cost(towers.text, towers.sentences(size.names, _N_CTX), _COHORT * seeds).operations
    seconds = _predicted(works, _COHORT * seeds)[0]
    classes = counted(len(size.names), "class", "classes")
    return {
        "bench": f"{what}, RN50, {classes}, {counted(_COHORT, 'client')}, {counted(seeds, 'seed')}",
        "kernel_seconds": seconds,
        "matrix_rate_share": operations / seconds / _MATRIX,
    }


def count_step() -> BenchRow:
    """Counts of a step in the second round: those of a round of two steps minus those of a round of one step.

    `graphed_launches` is the count of a replayed step.
    """
    size = Size(names=Size().names[:3], width=32, embed=512)
    with simulated() as device:
        trial = StepsOfRounds(size, 2, torch.float32, device)
        trial.round(1)
        eager, graphed = (_difference(trial, graphs) for graphs in (None, Graphs(always=True)))
    found = {what: getattr(eager, what).total() for what in ("launches", "syncs", "copies")}
    return {**found, "graphed_launches": graphed.launches.total()}


def _difference(trial: StepsOfRounds, graphs: Graphs | None) -> Counts:
    """Counts of one more step of a round."""
    seen = []
    for steps in (2, 1, 2):  # a graph is recorded in the first round
        with counting() as counts:
            trial.round(steps, graphs)
        seen.append(counts)
    _, one, two = seen
    more = {what: getattr(two, what) - getattr(one, what) for what in ("launches", "syncs", "copies")}
    return Counts(**more)


def _work(size: Size, n_clients: int) -> list[Work]:
    """The kernels of a step at its true size, in order."""
    with simulated(idle=True) as device, counting() as seen:
        StepsOfRounds(size, 1, torch.bfloat16, device, n_clients).round(1, Graphs(always=True, check=False))
    return seen.graphs[0].works()


def _text_work(size: Size, n_prompts: int) -> list[Work]:
    """The kernels of encoding prompts and of their gradient."""

    def step() -> None:
        torch.autograd.grad(towers.encode_prompts(context, sentences), context, above)

    with simulated(idle=True) as device, counting() as seen:
        towers = text_towers(size, torch.bfloat16, device)
        sentences = towers.sentences(size.names, _N_CTX)
        context = torch.zeros(n_prompts, _N_CTX, size.width, device=device).requires_grad_()
        above = torch.zeros(n_prompts, len(sentences), size.embed, device=device)
        capture(step, device)
    return seen.graphs[0].works()


def _predicted(works: Sequence[Sequence[Work]], n_clients: int) -> tuple[float, float]:
    """Seconds of the kernels of many clients, from those of two and three.

    Returns:
        One kernel after the other, and if other processes filled the GPU wherever a kernel leaves room.
    """
    alone = filled = 0.0
    for two, three in zip(*works, strict=True):
        assert two.name == three.name
        operations, moved = (a + (n_clients - 2) * (b - a) for a, b in zip(two[1:], three[1:], strict=True))
        rate = _ATTENTION if "attention" in two.name else _RATE
        seconds = max(operations / rate, moved / _BANDWIDTH)
        alone, filled = alone + _KERNEL + seconds, filled + seconds
    return alone, filled
