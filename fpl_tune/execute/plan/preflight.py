"""Checks before a study starts: methods fit their tasks, and runs fit the machine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fpl_tune import methods
from fpl_tune.clip import Towers
from fpl_tune.clip.load import weights_here
from fpl_tune.config import RunSpec, Study
from fpl_tune.core.device import cores, fixed_settings, is_out_of_memory, memory
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted, few_images
from fpl_tune.core.paths import cache_root
from fpl_tune.core.tensors import large_leaves_in
from fpl_tune.data import Dataset, load, outline
from fpl_tune.data.cache import features_name, rows_cached
from fpl_tune.data.published import Counted
from fpl_tune.data.transform import pools_and_views
from fpl_tune.execute.gpus import gpus_here
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.execute.plan.machine import CORES, REFERENCE, Machine
from fpl_tune.method import State
from fpl_tune.search import halving
from fpl_tune.simulation import attacks, bounds
from fpl_tune.simulation.bounds import Memory
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.costs import Known, known
from fpl_tune.simulation.dummy import cost_key, dummy_task, towers_to_plan
from fpl_tune.simulation.task import ClientTask, towers_for
from fpl_tune.simulation.worlds import needs_of, patch_of, threads_of

_PASSES = 3
"""Number of forward passes that take as long as a training step."""
CONTEXT_BYTES = 1200 << 20
"""GPU memory of a process besides its tensors: the CUDA context and its libraries (0.87 to 0.95 GB on an H200), and
cuBLAS's workspaces (about 0.13 GB there)."""
SLACK = 2.0
"""GPU memory reserved per estimated byte. A step in a CUDA graph shares no memory: evaluation, and the recording of
another step, need additional memory. On an H200, PyTorch's allocator kept 1.6 to 2.0 times the estimate of large
trials."""
SMALLEST = 0.05
"""Smallest share of a GPU: at most twenty trials on one."""
_STEP, _PER_BYTE, _GPU = 0.5e-3, 4e-9, 0.05
"""Typical seconds of one client's step on a core: a constant, and per byte that is kept for gradients; and the share of
this time that a GPU takes. Measured on methods from prompts to whole models; errors of a factor of two are common."""
_READ, _CORE_RATE = 4e-3, 30e9
"""Typical seconds of a core to read and shrink a photograph, and operations a second of a core in an image tower."""


class Loaded:
    """Towers, data sets and tasks of a study, each loaded once, and estimates of its runs.

    Args:
        complete: False to plan without weights and images, from their sizes alone; see `outline`.
    """

    def __init__(self, *, complete: bool = True) -> None:
        self._listed = load if complete else outline
        self._towers = partial(towers_for, dtype="float32") if complete else towers_to_plan
        self._cache: dict[str, Any] = {}
        self.checked: set[object] = set()
        """Cost keys of runs that were checked, and pairs of a task and a context length whose sentences were."""

    def _once(self, make: Callable[[], Any], *key: Any) -> Any:
        text = json.dumps(key, sort_keys=True)
        if text not in self._cache:
            self._cache[text] = make()
        return self._cache[text]

    def towers_of(self, run: RunSpec) -> Towers:
        key = (run.clip.name, run.clip.pretrained, run.clip.quick_gelu, run.clip.preprocess)
        return self._once(lambda: self._towers(run.clip), "towers", key)

    def dataset_of(self, run: RunSpec) -> Dataset:
        return self._once(
            lambda: self._listed(run.data, run.partition.file), "data", vars(run.data), run.partition.file
        )

    def missing(self, runs: Iterable[RunSpec]) -> str:
        """A sentence that names the weights and images of runs that are not on this machine; empty if all are."""
        weights = [f"weights of {r.clip.name}" for r in runs if not self._once(
            partial(weights_here, r.clip.name, r.clip.pretrained), "here", r.clip.name, r.clip.pretrained)]  # fmt: skip
        images = [f"images of {r.data.name}" for r in runs if isinstance(self.dataset_of(r).train, Counted)]
        missing = list(dict.fromkeys([*weights, *images]))
        if not missing:
            return ""
        return (
            f"Not on this machine: {', '.join(missing)}. The plan takes sizes from open_clip's configuration, and "
            "numbers of classes and images as published."
        )

    def encoding(self, run: RunSpec, cache_dir: Path, device: str | Machine) -> dict[str, tuple[int, float]]:
        """The images that a run encodes before its first round: their number and typical seconds, by name of the file
        in the cache. Those that are in the cache are left out; the content of images and weights is not compared."""
        (needs, view, last), towers = needs_of(run), self.towers_of(run)
        blocks, found = towers.blocks_below(last), dict[str, tuple[int, float]]()
        for pool, look in pools_and_views(self.dataset_of(run), run.data.views, view, patch_of(run)):
            name = features_name(pool, towers, needs, blocks=blocks, view=look)
            if not rows_cached(cache_dir, name, len(pool)):
                per_image = self._once(partial(_operations, towers, needs, blocks), "pass", towers.name, needs, blocks)
                found[name] = len(pool), len(pool) * _seconds_of_image(per_image, device, run.clip.dtype)
        return found

    def task_of(self, run: RunSpec) -> ClientTask:
        """A task of the run's data and partition with seed 1, whose images take no memory."""
        key = (
            *(vars(group) for group in (run.clip, run.data, run.partition, run.protocol)),
            str(run.clients),
            needs_of(run),
        )
        return self._once(lambda: dummy_task(run, self.towers_of(run), self.dataset_of(run), self._listed), "task", key)

    def memory_of(self, run: RunSpec, seeds: int = 1) -> Memory:
        """The estimated memory of a trial; runs with the same cost key take the same memory."""
        return self.known(run).memory.of_seeds(seeds)

    def known(self, run: RunSpec) -> Known:
        """Costs and memory of a run."""
        return known(run, self.towers_of(run), self.dataset_of(run))

    def typical_pace(self, run: RunSpec, device: str | Machine) -> float:
        """Typical seconds of a round of one seed, from its training steps, their memory, and its evaluations."""
        task, batch = self.task_of(run), run.optim.batch
        stages = [stage for stage in run.stages if stage.method.learns]
        epochs = sum(stage.rounds * stage.epochs for stage in stages) / max(1, run.rounds)
        steps = run.protocol.participation * epochs * sum(-(-n // batch) for n in task.train.sizes)
        # A model is tested by a pass over its images, or over its prompts if the images are cached features.
        (_, estimate, personal), passes = self.known(run), 0.0
        for classes, images in ((task.known, task.validation or task.val), *task.tests.values()):
            models = [max(images.sizes)] if images.same_for_all and not personal else images.sizes
            prompts = len(models) * len(classes.names) / task.n_classes
            passes += sum(models) / batch if stages and stages[0].method.needs == "pixels" else prompts
        tests = passes / _PASSES / run.protocol.eval_every
        if isinstance(device, Machine):
            deep = (steps + tests) / task.cohort
            return 0.01 + device.step_seconds(deep, steps + tests, estimate.step, run.clip.dtype)
        seconds = (steps + tests) * (_STEP + _PER_BYTE * estimate.step)
        return (0.01 + seconds) * (1 if device == "cpu" else _GPU)


def _operations(towers: Towers, needs: str, blocks: int) -> int:
    """Floating-point operations of the image tower's pass over an image; 0 if pixels are kept."""
    if needs == "pixels" and not blocks:
        return 0
    image = torch.zeros(1, 3, towers.image_size, towers.image_size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        towers.encode_images(image, patches=needs == "patches", blocks=blocks)
    return counter.get_total_flops()


def _seconds_of_image(operations: int, device: str | Machine, dtype: str) -> float:
    """Typical seconds until an image is read and has passed the tower."""
    if device == "cpu":
        return (_READ + operations / _CORE_RATE) / cores()
    gpu = device if isinstance(device, Machine) else Machine(REFERENCE)
    return max(_READ / CORES, gpu.image_seconds(operations, dtype))


def _initial_state(run: RunSpec, task: ClientTask) -> State:
    with torch.no_grad(), large_leaves_in(cache_root()):
        return checked(run.stages[0].method).init(task, torch.Generator().manual_seed(0), None)


def check(
    runs: Sequence[RunSpec],
    seeds: int = 1,
    setup: ExecutionContext | None = None,
    labels: Sequence[str] = (),
    *,
    validated: bool = False,
    complete: bool = True,
    machine: Machine | None = None,
) -> Loaded:
    """Checks that methods fit their tasks and runs fit the machine.

    Args:
        runs: the runs that are queued.
        seeds: number of seeds of each run.
        setup: the study's setup; None: unknown.
        labels: names of the runs, for messages; empty: there is one run.
        validated: True if validation metrics decide what runs, so that each run needs validation images.
        complete: False if weights and images may be missing.
        machine: another machine that the runs are planned for.

    Returns:
        The towers and data sets that were loaded for the checks.

    Raises:
        ConfigError: a run cannot start.
        EnvironmentProblem: weights or images are missing.
    """
    loaded = Loaded(complete=complete)
    here = setup.device if setup is not None and setup.address is None else None
    room = memory() if here == "cpu" else None
    gpu = max((free for _, free in gpus_here()), default=None) if here == "cuda" else None
    if machine is not None:
        room, gpu = None, machine.memory
    for run, label in zip_longest(runs, labels):
        try:
            _check(run, loaded, seeds, room, gpu)
            if validated:
                _check_validation(run, loaded.task_of(run))
        except ConfigError as problem:
            raise ConfigError(f"{label}: {problem}" if label else str(problem)) from None
    return loaded


def reads_validation(spec: Study) -> bool:
    """True if validation metrics decide what runs, as in a search or with a pruning rule."""
    return spec.search.sampler is not None or halving.resolved(spec).rule is not None


def coarse_sets(runs: Sequence[RunSpec], loaded: Loaded, metric: str) -> str:
    """Sentences on validation and test sets that are too small to compare by; empty if there are none.

    Args:
        runs: the runs that compete.
        loaded: their tasks.
        metric: the metric that is reported, whose test set counts beside the main one.
    """
    tasks = [loaded.task_of(run) for run in runs if run.data.val]
    text = few_images("Validation", min((sum((task.validation or task.val).sizes) for task in tasks), default=0))
    said = [f"{text} Raise data.shots or data.val."] if text else []
    by_task = {id(task): (task, run) for run in runs for task in [loaded.task_of(run)]}
    tests = [(held.images_held, name, task, run)
             for task, run in by_task.values() for name, (_, held) in task.tests.items()
             if name == task.primary or metric.startswith(f"test/{name}/")]  # fmt: skip
    for least, name, task, run in sorted(tests, key=lambda test: test[0])[:1]:
        text = few_images(f"The test set{'' if name == task.primary else f' {name}'}", least)
        said += [f"{text} {_more_tests(run, name)}"] if text else []
    return " ".join(said)


def _more_tests(run: RunSpec, name: str) -> str:
    """How a test set gets more images."""
    if left := [domain for domain in run.partition.held_out if domain not in run.data.whole_test]:
        return f"data.whole_test=[{','.join(left)}] also tests on their training images, which no client has."
    if name == "unseen":
        return "Raise protocol.unseen."
    if run.data.max_test is not None:
        return "Raise data.max_test."
    if run.data.name == "shapes":
        return "Raise data.test_per_class."
    return "Raise data.test_share, which data sets without an official split have."


def _check_validation(run: RunSpec, task: ClientTask) -> None:
    """Raises `ConfigError` if no client has a validation image: all metrics that decide would be NaN."""
    if not any((task.validation or task.val).sizes):
        most = counted(max(task.train.sizes, default=0), "image")
        raise ConfigError(
            f"A search and prune.rule need validation metrics, but with data.val={run.data.val:g} and "
            f"data.shots={run.data.shots} no client has a validation image; each trains on {most} at most. Raise "
            "data.val above 0, and give clients two images or more of a class (data.shots, data.train_per_class, fewer "
            "partition.n_clients); or set search.sampler=null and prune.rule=null."
        )


def _check(run: RunSpec, loaded: Loaded, seeds: int, room: int | None, gpu: int | None) -> None:
    """Checks a run. Runs with the same cost key differ only in numbers that a method's own check reads."""
    task, kind, n_ctx = loaded.task_of(run), cost_key(run), int(getattr(run.method, "n_ctx", 0))
    if (id(task), n_ctx) not in loaded.checked:
        loaded.checked.add((id(task), n_ctx))
        loaded.towers_of(run).sentences(loaded.dataset_of(run).classes, n_ctx)  # raises if one is too long
    for stage in run.stages:
        try:
            checked(stage.method).check(task)
        except ConfigError:
            raise
        except Exception:
            return  # a method's own error: the run reports it with its place
    if kind in loaded.checked:
        return
    loaded.checked.add(kind)
    try:
        state = _initial_state(run, task)
        estimate = None if gpu is None else loaded.memory_of(run)
    except Exception as problem:
        if not is_out_of_memory(problem):
            return  # a method's own error: the run reports it with its place
        raise ConfigError(
            f"The parameters of {methods.name_of(run.method)} do not fit into this machine's memory. Lower a size of "
            "the method, or the number of clients."
        ) from None
    attacks.check(run, task)
    bounds.check_state(state, seeds, room)
    if estimate is not None and gpu is not None:
        bounds.check_gpu(estimate, run, gpu - CONTEXT_BYTES)


def gpu_share(run: RunSpec, seeds: int, total: int) -> float:
    """Estimates the share of a GPU that a trial takes: the default of `execution.gpus`.

    Nothing is trained and no GPU is used. The estimate counts the CUDA context, towers, images, states, and the
    activations of the clients that are trained in parallel. Runs that differ only in floats (learning rates, λ) share
    one estimate.

    Args:
        run: the trial's configuration.
        seeds: number of seeds that are trained together.
        total: memory of the GPU in bytes.

    Returns:
        A share between `SMALLEST` and 1, in hundredths; 1 if the method fails.
    """
    try:
        with fixed_settings(threads_of(run)):
            peak = _loaded().memory_of(run, seeds).peak(int(bounds.BLOCK_SHARE * total))
    except Exception:  # a method's own error: the trial reports it with its place
        return 1.0
    return share_of(peak, total)


def share_of(peak: int, total: int) -> float:
    """The share of a GPU with so much memory that a trial with this estimated peak takes, in hundredths."""
    return min(1.0, max(SMALLEST, math.ceil(100 * reserved_bytes(peak) / total) / 100))


def reserved_bytes(peak: int) -> int:
    """GPU memory in bytes that a trial with this estimated peak reserves."""
    return int(SLACK * peak) + CONTEXT_BYTES


@cache
def _loaded() -> Loaded:
    """Towers, data sets and estimates that earlier calls of this process loaded."""
    return Loaded()
