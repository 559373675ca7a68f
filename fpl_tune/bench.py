"""Benchmarks: what text encoding, a round, a trial and a study cost, beside the plain path in the same run.

The plain path is what a loop over clients with an unmodified CLIP does: one client after another, sentences of the
full context length through open_clip's own modules, the image encoder in the loop, nothing remembered. Times are the
best of several repetitions; a ratio compares two times of the same run. On a busy machine both are noisy.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fpl_tune import config
from fpl_tune.clip import Towers, load_towers
from fpl_tune.clip.sentences import Position
from fpl_tune.clip.text import cost
from fpl_tune.config import RunSpec
from fpl_tune.data import features
from fpl_tune.engine import Cohort, run_round
from fpl_tune.task import ClientData, ClientTask
from fpl_tune.trial import Trial

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
_TEST_BATCH = 100
PLAIN_STEPS = 2  # of the plain path are measured and scaled to the number of steps of a round


@dataclass(frozen=True)
class Measured:
    """One benchmark. Times in seconds; `ratio` = plain_seconds / seconds of the same run."""

    name: str
    seconds: float
    plain_seconds: float
    tokens: int
    operations: int
    matrix_rate_share: float
    peak_memory_bytes: int
    note: str
    text_share: float = 1.0
    """Share of the seconds that text encoding takes, forward and backward."""

    @property
    def ratio(self) -> float:
        return self.plain_seconds / self.seconds

    def row(self) -> dict[str, Any]:
        """For printing, in the documented order."""
        return {
            "bench": self.name,
            "seconds": self.seconds,
            "plain_seconds": self.plain_seconds,
            "ratio": self.ratio,
            "tokens": self.tokens,
            "operations": self.operations,
            "matrix_rate_share": self.matrix_rate_share,
            "text_share": self.text_share,
            "peak_memory_bytes": self.peak_memory_bytes,
            "note": self.note,
        }


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product, the best of five: the machine's measured ceiling."""
    n = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / best(lambda: a @ b, device, repeats=5)


def best(action: Callable[[], Any], device: torch.device, repeats: int = 3) -> float:
    """Seconds of the fastest of several calls, after one to warm up."""
    action()
    return min(once(action, device) for _ in range(repeats))


def once(action: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, for what takes too long to repeat."""
    _wait(device)
    began = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU where there is one, else the resident peak of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class _Meter:
    """Counts tokens and operations of every call of the towers' prompt encoder, and keeps one call of each kind."""

    def __init__(self) -> None:
        self.tokens = self.operations = 0
        self._kinds: dict[tuple[Any, ...], list[Any]] = {}

    @contextmanager
    def on(self, towers: Towers) -> Iterator[None]:
        original = towers.encode_prompts

        def counted(context: Tensor, sentences: Any, *, per_class: bool = False, **more: Any) -> Tensor:
            own = 3 if per_class else 2
            prompts = context.shape[:-own].numel()
            found = cost(towers.text, sentences, prompts, per_class=per_class, plain=more.get("plain", False))
            learning = torch.is_grad_enabled() and context.requires_grad
            self.tokens += found.tokens
            self.operations += found.forward + (found.backward if learning else 0)
            kind = (tuple(context.shape), per_class, learning)
            self._kinds.setdefault(kind, [0, context.detach(), sentences, {"per_class": per_class, **more}])[0] += 1
            return original(context, sentences, per_class=per_class, **more)

        towers.encode_prompts = counted  # type: ignore[method-assign]
        try:
            yield
        finally:
            del towers.encode_prompts

    def text_seconds(self, towers: Towers) -> float:
        """What all counted calls took, from one of each kind run again alone."""
        total = 0.0
        for (*_, learning), (times, context, sentences, more) in self._kinds.items():
            leaf = context.clone().requires_grad_(learning)

            def again(leaf: Tensor = leaf, sentences: Any = sentences, more: dict[str, Any] = more) -> None:
                encoded = towers.encode_prompts(leaf, sentences, **more)
                if leaf.requires_grad:
                    torch.autograd.grad(encoded.sum(), leaf)

            total += times * best(again, towers.device, repeats=2)
        return total


def bench_text(run: RunSpec, device: str = "cpu") -> list[Measured]:
    """Forward and backward of a cohort's contexts over Caltech101's 100 names; the plain path one client at a time."""
    dtype = getattr(torch, run.clip.dtype)
    towers = load_towers(run.clip.name, run.clip.pretrained, device=device, dtype=dtype)
    n_ctx, cohort = int(run.method.get("n_ctx", 16)), run.partition.n_clients or 10
    sentences = towers.sentences(CALTECH101, n_ctx, position=cast(Position, run.clip.class_position))
    where = towers.device
    weight = torch.randn(len(CALTECH101), towers.embed_dim, device=where)

    def step(clients: int, plain: bool) -> Callable[[], None]:
        context = (0.02 * torch.randn(clients, n_ctx, towers.text_width, device=where)).requires_grad_()

        def action() -> None:
            features = towers.encode_prompts(context, sentences, plain=plain)
            torch.autograd.grad((features.float() * weight).sum(), context)

        return action

    rate = matrix_rate(where, dtype)
    plain = best(step(1, True), where, repeats=1)
    found = []
    for clients in sorted({1, cohort}):
        seconds = best(step(clients, False), where)
        counted = cost(towers.text, sentences, clients)
        found.append(
            Measured(
                f"text {towers.name} {run.clip.dtype}, {clients} client{'s' if clients > 1 else ''}",
                seconds,
                plain * clients,
                counted.tokens,
                counted.operations,
                counted.operations / seconds / rate,
                peak_memory(where),
                f"forward and backward, {len(CALTECH101)} classes, {n_ctx} context tokens, "
                f"{1e-9 * rate:.0f} GFLOP/s measured, {torch.get_num_threads()} threads",
            )
        )
    return found


def bench_round(run: RunSpec, device: str = "cpu", *, cache_dir: Path) -> list[Measured]:
    """One round of one seed, training and evaluation, of any method; the second round, so that experts exist."""
    trial = Trial(run, [1], cache_dir=cache_dir, device=device)
    trial.step()
    where, towers = trial.world.towers.device, trial.world.towers
    meter = _Meter()
    began = time.perf_counter()
    with meter.on(towers):
        trial.step()
    _wait(where)
    seconds = time.perf_counter() - began
    plain, share = _plain_round(trial, cache_dir)
    rate = matrix_rate(where, towers.dtype)
    return [
        Measured(
            f"round {run.method['name']} {towers.name}",
            seconds,
            plain,
            meter.tokens,
            meter.operations,
            meter.operations / seconds / rate,
            peak_memory(where),
            f"{trial.tasks[0].n_clients} clients, {run.protocol.epochs} local epochs, "
            f"{trial.tasks[0].n_classes} classes; {share}",
            min(1.0, meter.text_seconds(towers) / seconds),
        )
    ]


def _plain_round(trial: Trial, cache_dir: Path) -> tuple[float, str]:
    """Seconds of the plain path for the same round, from a few measured steps and test batches of one client."""
    method, task = trial.stages[0].method, trial.tasks[0]
    towers, world = task.towers, trial.world
    if method.needs == "pixels":
        raise config.ConfigError(
            "bench round compares image encoding in and out of the loop; this method needs pixels."
        )
    patches = method.needs == "patches"

    class InLoop:
        """Pixels to features, every time they are asked for."""

        def normalise(self, images: Tensor) -> Tensor:
            return towers.encode_images(towers.normalise(images), patches=patches)

    pixels = [
        features(pool, towers, needs="pixels", cache_dir=cache_dir)
        for pool in (world.dataset.train, world.dataset.test)
    ]

    def plain_data(data: ClientData, images: Tensor) -> ClientData:
        rows = [r[m].cpu().numpy() for r, m in zip(data.rows, data.mask, strict=True)]
        labels = [r[m].cpu().numpy() for r, m in zip(data.label, data.mask, strict=True)]
        return ClientData(images, rows, labels, towers=InLoop(), dtype=data.dtype, device=data.device)  # type: ignore[arg-type]

    plain = replace(task, train=plain_data(task.train, pixels[0]), known=_forgetful(task))
    batch, spec = trial.run.optim.batch, trial.run.optim
    sizes = task.size.tolist()
    client = max(range(task.n_clients), key=lambda c: sizes[c])
    few = min(sizes[client], PLAIN_STEPS * batch)
    plain.train.size = torch.full_like(plain.train.size, few)
    who = torch.tensor([client], device=task.device)
    round_ = partial(run_round, method, [plain], trial.states, [Cohort(1, 99, who)], epochs=1, spec=spec, block=1)
    deploy = torch.no_grad()(partial(method.deploy, plain, trial.states[0], who))
    per_client = once(torch.no_grad()(partial(method.start, plain, trial.states[0], who)), task.device)
    per_step = max(0.0, once(round_, task.device) - per_client) / -(-few // batch)
    steps = sum(-(-size // batch) for size in sizes) * trial.stages[0].epochs
    test = plain_data(task.tests[task.primary][1], pixels[1])
    index = torch.arange(min(_TEST_BATCH, int(test.size[client])), device=task.device)[None]

    local = deploy()
    test_batch = torch.no_grad()(lambda: method.logits(plain, local, test.batch(who, index)))
    per_batch = once(test_batch, task.device)
    seen = [int(n) for data in (task.val, task.tests[task.primary][1]) for n in data.size]
    batches = sum(-(-n // _TEST_BATCH) for n in seen)
    seconds = per_client * task.n_clients + per_step * steps + per_batch * batches
    return seconds, (
        f"plain: {per_client:.3g} s a client before its first step, {per_step:.3g} s a step x {steps}, "
        f"{per_batch:.3g} s a test batch x {batches}, each measured once"
    )


def _forgetful(task: ClientTask) -> Any:
    """The task's classes under the plain encoder, without memory."""

    class Plain:
        def __init__(self, known: Any) -> None:
            self.names, self._known = known.names, known
            self._towers: Towers = known.towers

        def hand_text(self) -> Tensor:
            return self._known.hand_text()

        def encode(self, context: Tensor, *, per_class: bool = False, deep: Tensor | None = None) -> Tensor:
            sentences = self._towers.sentences(self.names, context.shape[-2], position=self._known.position)
            raw = self._towers.encode_prompts(context, sentences, per_class=per_class, deep=deep, plain=True)
            return torch.nn.functional.normalize(raw, dim=-1)

    return Plain(task.known)


def bench_trial(run: RunSpec, device: str = "cpu", *, cache_dir: Path) -> list[Measured]:
    """A whole trial: all clients as one batch against a loop over clients, and three seeds against one."""

    def timed(seeds: list[int], block: int | None) -> tuple[float, _Meter, Towers]:
        trial = Trial(run, seeds, cache_dir=cache_dir, device=device, block=block)
        meter = _Meter()
        began = time.perf_counter()
        with meter.on(trial.world.towers):
            trial.run_all()
        _wait(trial.world.towers.device)
        return time.perf_counter() - began, meter, trial.world.towers

    warm = replace(run, protocol=replace(run.protocol, rounds=1))
    Trial(warm, [1], cache_dir=cache_dir, device=device).run_all()
    rate = matrix_rate(torch.device(device), torch.float32)
    loop = timed([1], 1)[0]
    found = []
    for seeds in ([1], [1, 2, 3]):
        seconds, meter, towers = timed(seeds, None)
        found.append(
            Measured(
                f"trial {run.method['name']} {run.clip.name}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}",
                seconds,
                loop * len(seeds),
                meter.tokens,
                meter.operations,
                meter.operations / seconds / rate,
                peak_memory(torch.device(device)),
                f"{run.protocol.rounds} rounds; plain: one client after another, one seed after another",
                min(1.0, meter.text_seconds(towers) / seconds),
            )
        )
    return found


def bench_study(run: RunSpec, *, trials: int = 20) -> list[dict[str, Any]]:
    """Overhead of the platform for each of many short trials, executed in the process."""
    from fpl_tune.study.runner import run_study

    spec, node = config.compose_study("lambda_sweep", ["method=zeroshot", "~method.d_gating", "~axes.method"])
    rates = [0.001 * (i + 1) for i in range(trials)]
    node["axes"], node["references"], node["seeds"], node["name"] = {"optim": {"lr": rates}}, [], 1, "bench"
    node["execution"]["executor"] = "inline"
    spec = config.to_study(node)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        outcome = run_study(spec, node, root=Path(folder))
        seconds = time.perf_counter() - began
    return [{"bench": "study", "trials": outcome.done, "seconds": seconds, "seconds_per_trial": seconds / trials}]
