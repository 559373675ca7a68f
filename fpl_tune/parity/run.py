"""Computes fpl-tune's trace of one seed of a run, with the start and the batches of another trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fpl_tune import config
from fpl_tune.config import RunSpec
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.device import fixed_settings
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import cache_root
from fpl_tune.data import Dataset, Split, features, load, split
from fpl_tune.method import Local, Method, State, Task, Tree, derive, replicate
from fpl_tune.parity.trace import Trace
from fpl_tune.parity.weights import standard_tokenizer
from fpl_tune.simulation.batches import Cohort, Plan, passes, plan_round
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.simulation.task import ClientTask, SharedData
from fpl_tune.simulation.worlds import cohort_of, task_of, threads_of, world_of


class Clients:
    """The clients of one seed of a run, with names as in traces: their images by file, and the classes."""

    def __init__(self, run: RunSpec, seed: int) -> None:
        """Lists the images without reading them.

        Raises:
            ConfigError: the run has several stages or malicious clients.
        """
        if len(run.stages) > 1:
            raise ConfigError(
                f"A trace is of one stage, but the run has {len(run.stages)}. Compare its first stage alone."
            )
        if run.clients.malicious.share:
            raise ConfigError(
                "A trace is of benign clients, but some of the run are malicious. Set clients.malicious.share=0."
            )
        self.run, self.seed = run, seed
        self.dataset: Dataset = load(run.data, run.partition.file)
        self.split: Split = split(self.dataset, run.data, run.partition, seed)
        self.test = next(iter(self.split.tests.values()))
        self.classes = [self.dataset.classes[k] for k in self.split.classes]

    def files(self, side: str) -> list[list[str]]:
        """Names of the images of every client as in exported worlds: train, val or test, and the row."""
        rows = {"train": self.split.train, "val": self.split.val, "test": self.test.index}[side]
        pool = "test" if side == "test" else "train"
        return [[file_name(pool, row) for row in mine.tolist()] for mine in rows]

    def labels(self, side: str) -> list[list[int]]:
        """Labels of the images of every client, as indices of `classes`."""
        place = {k: i for i, k in enumerate(self.split.classes.tolist())}
        labels = {"train": self.split.train_label, "val": self.split.val_label, "test": self.test.label}[side]
        return [[place[k] for k in mine.tolist()] for mine in labels]

    def positions(self, given: Trace) -> list[list[int]]:
        """[T] indices of each step's images in the table of its client.

        Raises:
            ConfigError: a client trains on an image of another client.
        """
        own = [{name: i for i, name in enumerate(mine)} for mine in self.files("train")]
        by_step = []
        for (_, client, _), images in zip(given["steps"].tolist(), given["images"].tolist(), strict=True):
            if not 0 <= client < len(own):
                raise ConfigError(
                    f"Clients are counted from 0 to {len(own) - 1} here, but {client} trains in the trace."
                )
            table = own[client]
            positions = [image for image in images if image not in ("", -1)]
            if given["images"].dtype.kind == "U":
                positions = [Path(image).name for image in positions]
                lacking = next((image for image in positions if image not in table), None)
                if lacking is not None:
                    others = [c for c, mine in enumerate(own) if lacking in mine]
                    whose = f"which client {others[0]} has here" if others else "which no client has here"
                    raise ConfigError(f"Your split differs: client {client} trains on {lacking}, {whose}.")
                positions = [table[image] for image in positions]
            elif positions and not 0 <= min(positions) <= max(positions) < len(table):
                raise ConfigError(f"Your split differs: client {client} has {len(table)} training images here.")
            by_step.append(positions)
        return by_step


class SeedRun(Clients):
    """One seed of a run, ready to start: its clients, the method and the task."""

    def __init__(self, run: RunSpec, seed: int, *, cache_dir: Path | None = None, progress: Any = None) -> None:
        """Loads towers and encodes images.

        Raises:
            ConfigError: the run has several stages, or its method does not fit the sizes of the task.
        """
        super().__init__(run, seed)
        self.cache_dir = cache_dir or cache_root()
        world = world_of(run, cache_dir=self.cache_dir, progress=progress)
        if run.method.needs == "patches":
            world = self._exact(world)
        self.task: ClientTask = task_of(world, run, seed)
        stage = next(iter(run.stages))
        self.method: Method = checked(stage.method)
        self.method.check(self.task)
        self.epochs = stage.epochs

    def init(self, seed: int) -> State:
        """The state before round 1 as a run with this seed draws it."""
        return self.method.init(self.task, torch.Generator().manual_seed(derive("init", seed)))

    def drawn(self) -> list[str]:
        """The names `initial/<leaf>` of leaves that start at random."""
        one, other = self.init(self.seed), self.init(self.seed + 1)
        names = leaf_names(one).items()
        return [f"initial/{n}" for n, (k, leaf) in names if not getattr(one, k)[leaf].equal(getattr(other, k)[leaf])]

    def _exact(self, world: SharedData) -> SharedData:
        """The world with patch features of used images in float32, as the cache has them in half precision."""
        towers, tables = world.towers, []
        pools = ((self.dataset.train, [*self.split.train, *self.split.val]), (self.dataset.test, self.test.index))
        for pool, parts in pools:
            pixels = features(pool, towers=towers, needs="pixels", cache_dir=self.cache_dir)
            used = np.unique(np.concatenate(parts))
            table = torch.zeros(len(pool), towers.n_patches or 0, towers.embed_dim)
            for rows in torch.from_numpy(used).split(64):
                table[rows] = towers.encode_images(towers.normalise(pixels[rows]), patches=True).float()
            tables.append(table)
        return replace(world, train_images=tables[0], test_images=tables[1])


def file_name(side: str, row: int) -> str:
    """File name of an image of the data set's training or test pool in an exported world."""
    return f"{side}-{row:06d}.png"


def trace_of(
    run: RunSpec | Mapping[str, Any],
    seed: int = 1,
    *,
    given: Trace | None = None,
    cache_dir: Path | None = None,
    progress: Any = None,
) -> Trace:
    """Runs a configuration and records its trace, on the CPU in float32.

    Args:
        run: the configuration, with one stage, or overrides as for `fpl_tune.run`.
        seed: seed of the partition, and of start and batches unless `given` has them.
        given: a trace whose `initial/...`, `steps` and `images` replace fpl-tune's own draws. Only its rounds are run.
        cache_dir: folder of image features; the usual one if None.
        progress: called while images are encoded.

    Returns:
        All arrays of `fpl_tune.parity.trace.NAMES`.

    Raises:
        ConfigError: `given` has leaves, images or sizes that this run does not have.
    """
    run = as_run(run)
    with fixed_settings(threads_of(run)):
        return compute(SeedRun(run, seed, cache_dir=cache_dir, progress=progress), given or {})


def as_run(run: RunSpec | Mapping[str, Any]) -> RunSpec:
    """The run, composed from overrides if necessary."""
    return run if isinstance(run, RunSpec) else config.compose_run([run])


def compute(cell: SeedRun, given: Trace) -> Trace:
    """`trace_of` for a loaded run."""
    method, task, spec = cell.method, cell.task, cell.run.optim
    if "images" in given:
        spec = replace(spec, batch=given["images"].shape[1])
    trace = _described(cell)
    state = _started(cell.run.method, cell.init(cell.seed), given)
    everyone = torch.arange(task.n_clients)
    first = task.during(1, cell.run.rounds, derive("method", cell.seed, 1))
    learned = method.start(first, state, everyone[:1]).params
    names = leaf_names(state)
    trace |= {f"initial/{name}": _numbers(getattr(state, kind)[leaf]) for name, (kind, leaf) in names.items()}
    trace["accuracy/0"] = _accuracy(method, task, state)
    cohorts = _given_cohorts(cell, given) if "images" in given else None
    rounds = cell.run.rounds if cohorts is None else max(cohorts, default=0)
    steps, losses = list[dict[str, np.ndarray]](), list[float]()
    for number in range(1, (rounds if learned else 0) + 1):
        cohort = _own_cohort(cell, number) if cohorts is None else cohorts.get(number)
        if cohort is None or not len(cohort.clients):
            continue
        now = task.during(number, cell.run.rounds, derive("method", cell.seed, number))
        plan = plan_round([now], [cohort], [cohort.clients], cell.epochs, spec)
        steps.append(_steps(cell, cohort, plan, spec))
        if not losses:
            trace |= _first(method, now, state, cohort, plan)
        recorded = _LossRecorder(method)
        (state,), _ = run_round(
            cast(Method, recorded), [task], [state], [cohort], epochs=cell.epochs, spec=spec, block=1,
            stage=range(1, cell.run.rounds + 1),
        )  # fmt: skip
        losses += recorded.losses
        after = method.deploy(task, state, everyone).params
        trace |= {f"after/{number}/{name}": _numbers(leaf) for name, leaf in after.items()}
        trace |= {f"server/{number}/{name}": _numbers(leaf) for name, leaf in state.server.items()}
        trace[f"accuracy/{number}"] = _accuracy(method, task, state)
    if steps:
        trace |= {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
        trace["losses"] = np.array(losses)
    return trace


class _LossRecorder:
    """A method that records its loss in every step, in which clients train one after another."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.losses: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def loss(self, *args: Any) -> tuple[Tensor, Tree]:
        loss, buffers = self._method.loss(*args)
        self.losses.append(loss.sum().item())
        return loss, buffers


def _described(cell: SeedRun) -> Trace:
    """Classes, sentences and the clients' images."""
    trace: Trace = {"classes": np.array(cell.classes)}
    texts = sentences(cell)
    if texts:
        tokenizer = standard_tokenizer()
        rows = [[tokenizer.sot, *tokenizer.encode(text), tokenizer.eot] for text in texts]
        width = max(tokenizer.n_positions, *map(len, rows))
        trace["tokens"] = np.array([row + [0] * (width - len(row)) for row in rows])
    for side in ("train", "test"):
        trace |= {f"{side}/{client}": np.array(names, dtype=str) for client, names in enumerate(cell.files(side))}
    return trace


def sentences(cell: SeedRun) -> list[str]:
    """The sentence of every class, with X for the tokens of a context; [] if the context is not at the start."""
    n_ctx, clip = getattr(cell.run.method, "n_ctx", 0), cell.run.clip
    if n_ctx and clip.class_position != "end":
        return []
    template = "X " * n_ctx + "{}." if n_ctx else cell.task.template
    return [template.format(name.replace("_", " ")) for name in cell.classes]


def leaf_names(state: State) -> dict[str, tuple[str, str]]:
    """The kind (`shared`, `personal` or `server`) and leaf by name in `initial/<name>`.

    That is the name of the leaf, after its kind if a leaf of an earlier kind has the same one: `personal.prompt`.
    """
    names: dict[str, tuple[str, str]] = {}
    for kind, tree in state._asdict().items():
        names |= {f"{kind}.{leaf}" if leaf in names else leaf: (kind, leaf) for leaf in tree}
    return names


def _started(method: Method, state: State, given: Trace) -> State:
    """The state before round 1 with the leaves of a trace."""
    names, started = leaf_names(state), State(*map(dict, state))
    for name in (name for name in given if name.startswith("initial/")):
        if name.removeprefix("initial/") not in names:
            own = f"It has {', '.join(names)}." if names else "It learns nothing."
            raise ConfigError(f"The trace has {name}, but the run's method has no leaf {name[8:]!r}. {own}")
        kind, leaf = names[name.removeprefix("initial/")]
        like, value = getattr(state, kind)[leaf], torch.from_numpy(given[name])
        if kind == "personal" and value.ndim < like.ndim:
            value = replicate(value, len(like))
        if value.shape != like.shape:
            wanted, has = (list(x.shape[kind == "personal" :]) for x in (like, value))
            raise ConfigError(f"{name} must have the shape {wanted}, but has {has}.{_remedy(method, wanted, has)}")
        getattr(started, kind)[leaf] = value.to(like)
    return started


def _remedy(method: Method, wanted: list[int], has: list[int]) -> str:
    """The fields to set if a shape differs in one number, which is that of some fields of the method; else ""."""
    different = [pair for pair in zip(wanted, has, strict=False) if pair[0] != pair[1]]
    if len(wanted) != len(has) or len(different) != 1:
        return ""
    ((mine, theirs),) = different
    names = [name for name, value in vars(method).items() if type(value) is int and value == mine]
    return f" Set {' or '.join(f'method.{name}={theirs}' for name in names)}." if names else ""


def _given_cohorts(cell: SeedRun, given: Trace) -> dict[int, Cohort]:
    """Cohorts by round, with clients in the order of training, and their batches by epoch."""
    taken: dict[int, dict[int, dict[int, list[int]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (number, client, epoch), positions in zip(given["steps"].tolist(), cell.positions(given), strict=True):
        if not 1 <= number <= cell.run.rounds:
            raise ConfigError(
                f"`steps` has a round {number}, but rounds are counted from 1 to protocol.rounds={cell.run.rounds}. "
                f"Set protocol.rounds={max(number, 1)}."
            )
        taken[number][client][epoch] += positions
    cohorts, before = {}, 0
    for number in sorted(taken):
        clients = torch.tensor(list(taken[number]))
        orders = {c: [torch.tensor(one) for one in epochs.values()] for c, epochs in taken[number].items()}
        cohorts[number] = Cohort(cell.seed, number, clients, before + torch.arange(len(clients)), orders)
        before += len(clients)
    return cohorts


def _own_cohort(cell: SeedRun, number: int) -> Cohort:
    """The cohort and the batches that a simulation draws."""
    cohort = cohort_of(cell.run, cell.task, cell.seed, number, 1)
    sizes = cell.task.train.sizes
    return cohort._replace(orders={c: passes(sizes[c], cell.epochs, cohort, c) for c in cohort.clients.tolist()})


def _steps(cell: SeedRun, cohort: Cohort, plan: Plan, spec: OptimSpec) -> dict[str, np.ndarray]:
    """The steps of a round, client by client, with images, labels and learning rates."""
    files, labels = cell.files("train"), cell.labels("train")
    arrays: dict[str, list[Any]] = {name: [] for name in ("steps", "images", "labels", "rates")}
    for row, (client, orders) in enumerate((cohort.orders or {}).items()):
        batches = [(epoch, batch.tolist()) for epoch, order in enumerate(orders) for batch in order.split(spec.batch)]
        for t, (epoch, positions) in enumerate(batches):
            pad = spec.batch - len(positions)
            arrays["steps"].append((cohort.round, client, epoch))
            arrays["images"].append([files[client][i] for i in positions] + [""] * pad)
            arrays["labels"].append([labels[client][i] for i in positions] + [-1] * pad)
            arrays["rates"].append(spec.lr * (1.0 if plan.factor is None else float(plan.factor[row, t])))
    return {name: np.array(rows) for name, rows in arrays.items()}


def _first(method: Method, task: Task, state: State, cohort: Cohort, plan: Plan) -> Trace:
    """Features, logits and gradient of the first client's first batch."""
    local = method.start(task, state, cohort.clients[:1])
    batch = plan.at(slice(0, 1)).batch(0)
    n = int(batch.mask.sum())
    batch = batch._replace(**{name: getattr(batch, name)[:, :n] for name in ("image", "label", "mask", "index")})
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.params.items()}
    first = Local(leaves, local.buffers)
    with torch.no_grad():
        trace = {"first/logits": _numbers(method.logits(task, first, batch)[0])}
    if batch.image.ndim == 3:
        trace["first/features"] = _numbers(batch.image[0])
    loss, _ = method.loss(task, first, batch)
    gradients = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        trace[f"first/gradient/{name}"] = _numbers((torch.zeros_like(leaf) if gradient is None else gradient)[0])
    return trace


def _accuracy(method: Method, task: ClientTask, state: State) -> np.ndarray:
    (scores,) = evaluate(method, [task], [state])
    return 100 * _numbers(scores[task.primary].accuracy.double())


def _numbers(leaf: Tensor) -> np.ndarray:
    return leaf.detach().cpu().numpy()
