"""From logits to metrics per client."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean, harmonic_mean
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.core.metrics import SUCCESS
from fpl_tune.data.splits import UNKNOWN
from fpl_tune.method import Local, Method, State, among, join
from fpl_tune.simulation.task import Classes, ClientData, ClientTask

_ELEMENTS = 1 << 24  # of the largest tensor of a chunk: 64 MB in float32
_PIXEL_IMAGES = 256  # images a chunk, where the image tower runs
_BINS = 15  # of confidence


class Score(NamedTuple):
    """One set of images under every client's model."""

    accuracy: Tensor
    """[N], float64: share of the client's images that are classified rightly; nan for clients without images."""
    loss: Tensor
    """[N] mean cross-entropy"""
    macro_f1: Tensor
    """[N] mean F1 over the classes that the client's images have or are taken for; nan for clients without images."""
    macro_f1_present: Tensor
    """[N] the same over the classes that the images have, as Dassl's evaluator takes it."""
    ece: float
    """Expected calibration error in 15 bins of confidence (Guo et al. 2017), over the images of all clients."""
    seconds: float = math.nan
    """From deployed models to logits of all images, whose features are at hand unless the method reads pixels; one
    seed's share where several are scored side by side."""


NEWCOMERS = ("unseen", "global")
"""Test sets that are scored by the models which new clients receive."""
OWN = "own_classes"
"""The test set of which every client's images are scored among the classes of its own training images."""
PATCHED = "patched"
"""The test set whose accuracy is the success of a backdoor."""


@torch.no_grad()
def evaluate(
    method: Method,
    tasks: Sequence[ClientTask],
    states: Sequence[State],
    *,
    fresh: Sequence[State] = (),
    at_once: int | None = None,
) -> list[dict[str, Score]]:
    """Every client's deployed model on its validation and test images: per seed, a score by set name.

    fresh: by seed, the state before round 1, where there are test sets for new clients.
    at_once: clients of every seed that are deployed together; None: all, unless they are many and large.
    """
    sets: list[dict[str, tuple[Classes, ClientData]]] = [
        {"val": (t.known, t.validation or t.val)} | {n: held for n, held in t.tests.items() if n != UNKNOWN}
        for t in tasks
    ]
    keys = {name: (id(classes), name in NEWCOMERS, name == OWN) for name, (classes, _) in sets[0].items()}
    given: dict[tuple[int, bool, bool], list[tuple[ClientTask, State]]] = {}
    for name, key in keys.items():
        if key not in given:
            under = [task.under(s[name][0], own=name == OWN) for task, s in zip(tasks, sets, strict=True)]
            if name in NEWCOMERS:
                parts = zip(under, states, fresh, strict=True)
                given[key] = [(task, method.newcomers(task, state, new)) for task, state, new in parts]
            else:
                given[key] = list(zip(under, states, strict=True))
    counts: list[dict[str, list[Tensor]]] = [{name: [] for name in held} for held in sets]
    seconds = dict.fromkeys(sets[0], 0.0)
    everyone = torch.arange(tasks[0].n_clients, device=tasks[0].device)
    for clients in deploy_blocks(method, tasks, states, everyone, at_once):
        deployed = {key: [method.deploy(*pair, clients) for pair in pairs] for key, pairs in given.items()}
        for name, key in keys.items():
            began = clock(tasks[0].device)
            counted = _count(
                method, [task for task, _ in given[key]], deployed[key], [s[name][1] for s in sets], clients
            )
            seconds[name] += (clock(tasks[0].device) - began) / len(tasks)
            for seed, part in enumerate(counted):
                counts[seed][name].append(part)
    return [
        {name: _score(held[name][1], torch.cat(parts), seconds[name]) for name, parts in mine.items()}
        for held, mine in zip(sets, counts, strict=True)
    ]


_FEW, _DEPLOYED = 256, 1 << 28  # clients of all seeds that are deployed together in any case; bytes of more, with text


def deploy_blocks(
    method: Method, tasks: Sequence[ClientTask], states: Sequence[State], clients: Tensor, at_once: int | None = None
) -> Sequence[Tensor]:
    """The clients in blocks of those that are deployed together."""
    if at_once is None and len(tasks) * len(clients) > _FEW:
        one = method.deploy(tasks[0], states[0], clients[:1])
        size = sum(leaf.nbytes for tree in one for leaf in tree.values()) + 4 * tasks[0].n_classes * tasks[0].embed_dim
        at_once = max(1, _DEPLOYED // (len(tasks) * size))
    return clients.split(at_once or max(1, len(clients)))


def clock(device: torch.device) -> float:
    """Seconds, all that was asked of a GPU so far being done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


_DIAGNOSED = 64  # validation images per client that a diagnosis looks at


@torch.no_grad()
def diagnose(method: Method, task: ClientTask, state: State) -> dict[str, list[float]]:
    """`Method.diagnose` of the deployed models on validation images: means over clients, by `diagnosis/<name>`."""
    benign = task.val.sizes if task.liars is None else task.val.only(~task.liars[:, None].to(task.device)).sizes
    clients = torch.tensor([i for i, size in enumerate(benign) if size], device=task.device)
    if not len(clients):
        return {}
    columns = torch.arange(min(task.val.spare, _DIAGNOSED), device=task.device)
    diagnoses = [
        method.diagnose(task, method.deploy(task, state, some), task.val.batch(some, columns.expand(len(some), -1)))
        for some in deploy_blocks(method, [task], [state], clients)
    ]
    return {
        f"diagnosis/{n}": torch.cat([part[n] for part in diagnoses]).double().mean(0).tolist() for n in diagnoses[0]
    }


@torch.no_grad()
def detect(method: Method, task: ClientTask, state: State) -> dict[str, float]:
    """How well deployed models tell images of unknown classes from those of base classes: means over clients.

    Returns:
        `test/auroc` and `test/fpr95`; nothing where the protocol has no images of unknown classes.
    """
    if UNKNOWN not in task.tests:
        return {}
    holders = torch.tensor([i for i, size in enumerate(task.tests["base"][1].sizes) if size], device=task.device)
    found = []
    for clients in deploy_blocks(method, [task], [state], holders):
        local = method.deploy(task, state, clients)
        sides = (_certainty(method, task, local, task.tests[name][1], clients) for name in ("base", UNKNOWN))
        found.append(torch.stack(auroc_fpr95(*sides)))
    auroc, fpr95 = torch.cat(found, 1).mean(1).tolist()
    return {"test/auroc": auroc, "test/fpr95": fpr95}


def _certainty(method: Method, task: ClientTask, local: Local, data: ClientData, clients: Tensor) -> Tensor:
    """[C, n] how certain the clients' models are of each image of a set."""
    columns = torch.arange(data.spare, device=task.device).split(_chunk(method, task, len(clients)))
    batches = (data.batch(clients, some.expand(len(clients), -1)) for some in columns)
    return torch.cat([method.certainty(task, local, batch) for batch in batches], 1)


def auroc_fpr95(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """Area under the ROC curve, and the rate of false positives where at least 95 % are true ones.

    Args:
        known: [C, n] certainties of images of known classes, the positives.
        unknown: [C, m] those of unknown classes.

    Returns:
        Both [C].
    """
    ranked = known.double().sort(1).values
    less, no_more = (torch.searchsorted(ranked, unknown.double(), right=right) for right in (False, True))
    auroc = 1 - (less + no_more).double().mean(1) / (2 * known.shape[1])
    threshold = ranked[:, known.shape[1] - math.ceil(0.95 * known.shape[1])]
    return auroc, (unknown >= threshold[:, None]).double().mean(1)


def _chunk(method: Method, task: ClientTask, rows: int) -> int:
    """Images of each client that are scored at once."""
    widest = max(task.embed_dim * (task.n_patches or 1 if method.needs == "patches" else 1), task.n_classes)
    return max(1, (_PIXEL_IMAGES if method.needs == "pixels" else _ELEMENTS // widest) // rows)


def _count(
    method: Method,
    tasks: Sequence[ClientTask],
    locals_: Sequence[Local],
    data: Sequence[ClientData],
    clients: Tensor,
) -> list[Tensor]:
    """Counts and sums of one set of every seed, some clients of all seeds as rows of one batch.

    Returns:
        By seed, a row for each client: right images, loss and both F1, then `_BINS` of confidence. One row stands for
        all clients of the set if they have it and their models in common.
    """
    distinct = [_distinct(local, held, clients) for local, held in zip(locals_, data, strict=True)]
    pairs = zip(locals_, distinct, strict=True)
    local = Local.joined([part if len(positions) == len(clients) else part.at(positions) for part, positions in pairs])
    rows = [clients[positions] for positions in distinct]
    total, width = sum(len(r) for r in rows), max(held.spare for held in data)
    chunk = _chunk(method, tasks[0], total)
    device = tasks[0].device
    owned = [task.counts[r] > 0 for task, r in zip(tasks, rows, strict=True) if task.own_classes]
    loss = torch.zeros(total, device=device)
    # Images by class, as predicted, and right ones; the last column is of logits behind those of the classes.
    counts = torch.zeros(3, total, tasks[0].n_classes + 1, device=device)
    gaps = torch.zeros(total, _BINS, device=device)  # by bin: sum of confidence minus rightness
    for first in range(0, width, chunk):
        columns = torch.arange(first, min(first + chunk, width), device=device)
        parts = [
            held.batch(r, columns.clamp(max=held.spare).expand(len(r), -1)) for held, r in zip(data, rows, strict=True)
        ]
        batch = join(parts)
        logits = method.logits(tasks[0], local, batch)
        if owned:
            logits = among(logits, torch.cat(owned))
        nll = F.cross_entropy(logits.flatten(0, 1), batch.label.flatten(), reduction="none").view_as(batch.label)
        loss += torch.where(batch.mask, nll, 0).sum(1)
        predicted = logits.argmax(-1)
        right = (predicted == batch.label) & batch.mask
        seen = ((batch.label, batch.mask), (predicted, batch.mask), (predicted, right))
        for table, (classes, which) in zip(counts, seen, strict=True):
            table.scatter_add_(1, classes.clamp(max=tasks[0].n_classes), which.to(table.dtype))
        taken, true = logits.gather(-1, torch.stack([predicted, batch.label], -1)).unbind(-1)
        confidence = (taken - true - nll).exp()
        into = (confidence * _BINS).long().clamp(0, _BINS - 1)  # NaN, which has diverged, is below 0
        gaps.scatter_add_(1, into, torch.where(batch.mask, confidence - right.to(confidence.dtype), 0).to(gaps.dtype))
    counts = counts[..., :-1]
    either = counts[0] + counts[1]
    f1 = (2 * counts[2] / either.clamp(min=1)).sum(1)  # a class that no image has adds 0
    both = [f1 / (of > 0).sum(1).clamp(min=1) for of in (either, counts[0])]
    sums = torch.cat([torch.stack([counts[2].sum(1), loss, *both], 1), gaps], 1).cpu()  # read from the device at once
    parts = sums.split([len(r) for r in rows])
    apart = len(clients) < tasks[0].n_clients  # of further blocks, whose models may differ
    return [part.expand(len(clients), -1) for part in parts] if apart else list(parts)


def _score(data: ClientData, sums: Tensor, seconds: float) -> Score:
    """The score of a set from what `_count` has found."""
    held = torch.tensor(data.sizes, dtype=sums.dtype)
    size = held if len(sums) == len(held) else held.max()[None]  # one row stands for all who have images
    right, loss, f1, present = sums[:, :4].T
    accuracy, mean_loss, f1, present = (
        torch.where(held > 0, values, math.nan)
        for values in (right.double() / size.clamp(min=1), loss / size.clamp(min=1), f1, present)
    )
    ece = sums[:, 4:].double().sum(0).abs().sum() / size.sum().clamp(min=1)
    return Score(accuracy, mean_loss, f1, present, ece.item(), seconds)


def _distinct(local: Local, data: ClientData, clients: Tensor) -> Tensor:
    """Places of the clients to evaluate: one stands for all where all deploy the same model on the same images."""
    positions = torch.arange(len(clients), device=data.device)
    if not data.same_for_all:
        return positions
    leaves = [*local.params.values(), *local.buffers.values()]
    alike = not leaves or bool(torch.stack([(leaf == leaf[:1]).all() for leaf in leaves]).all())
    return data.size[clients].argmax()[None] if alike else positions


def summarise(scores: Mapping[str, Score], primary: str) -> dict[str, float]:
    """Metrics of one seed and round. `val/acc_mean` and `test/acc_mean` are unweighted means over clients.

    The primary test set is called `test`; others keep their name. With sets `base` and `novel`, `test/harmonic_mean`
    is that of the mean accuracies over clients on the client's own, all base and all novel classes (FedPGP, Table 1),
    and `test/base_novel_harmonic_mean` that of the latter two (KgCoOp, PromptSRC). `test/cross/acc_mean` is the mean
    over other data sets. That of `PATCHED` is `attack/success`.
    """
    metrics: dict[str, float] = {}
    for name, score in scores.items():
        room = "val" if name == "val" else "test" if name == primary else f"test/{name}"
        accuracy = score.accuracy[~score.accuracy.isnan()].double()
        if not len(accuracy):
            continue
        if name == PATCHED:
            metrics[SUCCESS] = accuracy.mean().item()
            continue
        metrics[f"{room}/acc_mean"] = accuracy.mean().item()
        metrics[f"{room}/acc_std"] = accuracy.std(unbiased=False).item()
        metrics[f"{room}/acc_min"] = accuracy.min().item()
        metrics[f"{room}/acc_worst10"] = accuracy.sort().values[: max(1, len(accuracy) // 10)].mean().item()
        metrics[f"{room}/loss"] = score.loss[~score.loss.isnan()].double().mean().item()
        for kind in ("macro_f1", "macro_f1_present"):
            values = getattr(score, kind)
            metrics[f"{room}/{kind}"] = values[~values.isnan()].double().mean().item()
        metrics[f"{room}/ece"] = score.ece
    if others := [metrics[f"test/{name}/acc_mean"] for name in scores if name.startswith("cross/")]:
        metrics["test/cross/acc_mean"] = fmean(others)
    if {"base", "novel"} <= scores.keys():
        two = [metrics["test/base/acc_mean"], metrics["test/novel/acc_mean"]]
        metrics["test/harmonic_mean"] = harmonic_mean([metrics["test/acc_mean"], *two])
        metrics["test/base_novel_harmonic_mean"] = harmonic_mean(two)
    return metrics
