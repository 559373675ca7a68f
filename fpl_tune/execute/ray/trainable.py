"""A federated simulation as a Ray Tune trainable: for users' own `tune.Tuner`, and for the jobs of studies."""

from __future__ import annotations

import atexit
import gc
import math
import os
import pickle
import shutil
import socket
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import ray
import torch
from ray import tune

from fpl_tune import config
from fpl_tune.config import ExecutionSpec, RunSpec
from fpl_tune.core import plugins
from fpl_tune.core.device import resolve
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, Notice, unknown
from fpl_tune.core.paths import cache_root
from fpl_tune.core.spec import validated
from fpl_tune.execute.job import ExecutionContext, Failure, Job, JobRun, Report
from fpl_tune.execute.manage import stop_requested
from fpl_tune.execute.ray.nodes import differing
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Damaged, Snapshot
from fpl_tune.simulation.simulation import Record
from fpl_tune.simulation.worlds import threads_of
from fpl_tune.study.cells import Cell
from fpl_tune.study.grid import variant
from fpl_tune.study.versions import versions

JOB = "study"
"""Key of the `SentJob` in a trial's configuration."""
REPORT = "report"
"""Key of the `Report` in a step's result."""
STEP_SECONDS = 0.5
"""Minimum seconds of a study's step, so that Tune's overhead per step is small."""


@dataclass(frozen=True)
class SentJob:
    """A job of a study, its settings, and the driver's versions and trusted modules, pickled.

    Tune keeps several copies of every configuration until the end, and its repr: copies share the bytes, and the repr
    leaves them out.
    """

    content: bytes = field(repr=False)

    @classmethod
    def of(cls, job: Job, context: ExecutionContext) -> SentJob:
        return cls(pickle.dumps((job, context, versions(), plugins.trusted())))


class FederatedTrainable(tune.Trainable):
    """A federated simulation under Ray Tune. One step is one round of all seeds.

    The configuration has a run's fields by dotted name, as overrides on the command line, or as nested dicts. It also
    takes:

    * `seeds`: number of seeds (1..n), or a list; default 1. Seeds are trained together.
    * `execution.device`, `execution.threads`, `execution.block`: as in a study.

    A result has, for every metric of a round, the mean over seeds under its own name (`val/acc_mean`, `test/acc_mean`,
    `train/loss`, `comm/up_bytes`, `time/seconds`, ...) and the standard deviation over seeds as `<name>_seed_std`; also
    `done` and `training_iteration`, the round. Rounds without an evaluation repeat the accuracies of the last one (NaN
    before the first).

    A checkpoint is the state after a round, with the history so far. It can be loaded with a configuration that differs
    in `optim`, `protocol`, `clients` and fields of the method that keep the shapes of its state, as in population based
    training.

    Example:
        >>> import fpl_tune
        >>> trial = fpl_tune.FederatedTrainable({"method": "promptfl", "protocol.rounds": 2, "seeds": 2})
        >>> [trial.train()["done"] for _ in range(2)]
        [False, True]
        >>> trial.stop()
    """

    # A study's jobs also run here. Their steps report several rounds, and they write checkpoints themselves: Tune saves
    # only after a step, through the driver, and a new run of Tune cannot start a trial from the checkpoint of another.

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """CPU threads and GPUs of a trial. Tune calls it before a trial starts, so invalid fields are rejected here.

        Raises:
            ConfigError: an unknown field, or an invalid value.
        """
        run, _, context = parse(config)
        gpus = float(context.device == "cuda")
        return tune.PlacementGroupFactory(
            [{"CPU": float(context.execution.threads or threads_of(run, context.device)), "GPU": gpus}]
        )

    def __init_subclass__(cls) -> None:
        """Rejects invalid fields before a trial starts, even if `tune.with_resources` sets its resources."""
        super().__init_subclass__()
        request = vars(cls).get("default_resource_request")
        if request is None:
            return

        def checked(kind: type[FederatedTrainable], config: dict[str, Any]) -> Any:
            if JOB not in config:
                parse(config)
            return request.__func__(kind, config)

        cls.default_resource_request = classmethod(checked)  # pyright: ignore[reportAttributeAccessIssue]

    def setup(self, config: dict[str, Any]) -> None:
        """Loads towers and data, and begins the run.

        Raises:
            ConfigError: an unknown field, or an invalid value.
        """
        self._in_study = JOB in config
        if self._in_study:
            if not gc.get_freeze_count():
                gc.freeze()  # modules are no garbage: the collection after each trial takes 0.15 s less
            job, context, drivers, modules = pickle.loads(config[JOB].content)
            plugins.trust_modules(*modules)  # of an application's Ray, which may be older than the trust
            self._unfit = _unfit(differing(drivers))
            if self._unfit is not None:
                return
            context = on_node(context)
            if context.device == "cuda":
                torch.cuda.empty_cache()
                if config["GPU"]:  # limits a trial to its share of memory; with execution.gpus=0 there is no limit
                    torch.cuda.set_per_process_memory_fraction(min(1.0, config["GPU"]))
            self._run = JobRun(job, context)
            return
        run, seeds, context = parse(config)
        self._run = JobRun(Job(Cell("", 0, "", "cell", {}, run), tuple(seeds)), context, resumes=False)
        self._run.begin()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Starts another run in the same process, which reuses towers and data."""
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Runs one round of all seeds; in a study, rounds for `STEP_SECONDS`.

        Raises:
            Diverged: a loss or an accuracy is NaN or inf.
        """
        if self._in_study and self._unfit is not None:
            return {REPORT: Report([], failure=self._unfit)}
        run = self._run
        if self._in_study:
            report = run.step(STEP_SECONDS, lambda: stop_requested(run.context.folder))
            if report.failure is not None and report.failure.kind == "died":  # Tune then ends the process
                raise EnvironmentProblem(f"the CUDA context is lost: {report.failure.error}")
            return {REPORT: report}
        simulation = run.begun if run.begun.done else run.advance()  # done: a checkpoint of the last round was loaded
        for text in run.warnings():
            warnings.warn(text, Notice, stacklevel=2)
        return {**last_figures(run.history), "done": simulation.done, "training_iteration": simulation.round}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes the state after the last round."""
        tensors, meta = self._run.snapshot()
        run = config.as_dict(self._run.job.cell.run)
        checkpoint.write(Path(checkpoint_dir), Snapshot(tensors, {**meta, "run": run}))

    def load_checkpoint(self, checkpoint: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Continues from a checkpoint.

        Raises:
            ConfigError: it is damaged, or this configuration cannot continue it.
        """
        restore(self._run, Path(checkpoint))

    def cleanup(self) -> None:
        """Frees the memory of the run for the next one."""
        self._run: Any = None
        gc.collect()


def _unfit(different: str) -> Failure | None:
    """The failure of a node that joined after the check of nodes and has other versions; no job has caused it."""
    if not different:
        return None
    return Failure(
        f"Every node must be able to run trials, but {socket.gethostname()} ({ray.util.get_node_ip_address()}), which "
        f"joined later, has {different}. Install the same versions there, or take it out; the same command continues.",
        "environment",
    )


def on_node(context: ExecutionContext) -> ExecutionContext:
    """The context with this node's paths: its feature cache and, without a shared folder, a temporary study folder."""
    if context.address is not None and os.environ.get("FPL_TUNE_CACHE"):
        context = replace(context, cache_dir=cache_root())
    if not context.no_shared_folder:
        return context
    own = Path(tempfile.gettempdir(), f"fpl-{os.getpid()}-study", context.study)
    atexit.register(shutil.rmtree, own.parent, ignore_errors=True)
    return replace(context, folder=own)


_OPTIONS = {"execution.device", "execution.threads", "execution.block"}


def parse(node: Mapping[str, Any]) -> tuple[RunSpec, list[int], ExecutionContext]:
    """The run, seeds and context of a trainable's configuration.

    Raises:
        ConfigError: an unknown field, or an invalid value.
    """
    fields = config.dotted(node)
    options = {name: fields.pop(name) for name in list(fields) if name.startswith("execution.")}
    for name in options.keys() - _OPTIONS:
        raise unknown("field", name, sorted(_OPTIONS))
    execution = validated(ExecutionSpec, {name.partition(".")[2]: v for name, v in options.items()}, "execution")
    seeds = config.fixed_seeds(fields.pop("seeds", 1))
    plugins.trust([f"method={fields.get('method')}"])
    run = variant(_base(), fields)
    device = resolve(execution.device)
    threads = execution.threads or threads_of(run, device)
    context = ExecutionContext(Path(), cache_root(), execution, device, threads)
    return run, seeds, context


@cache
def _base() -> dict[str, Any]:
    """The default run, in which the configuration's fields are set."""
    return config.as_dict(config.compose_run())


def summarise(records: Sequence[Record]) -> dict[str, float]:
    """Mean over seeds of every metric, and with several seeds the standard deviation as `<name>_seed_std`."""
    figures: dict[str, float] = {}
    for name in records[0]:
        values = [record.get(name) for record in records]
        if name not in ("seed", "round") and all(isinstance(value, int | float) for value in values):
            figures[name] = fmean(values)  # type: ignore[type-var]
            if len(values) > 1:
                figures[f"{name}_seed_std"] = stdev(values)  # type: ignore[type-var]
    return figures


def last_figures(history: Sequence[Sequence[Record]]) -> dict[str, float]:
    """The metrics of the last round, with the accuracies of the last evaluated round."""
    figures = {"val/acc_mean": math.nan, "test/acc_mean": math.nan}
    evaluated = next((records for records in reversed(history) if "test/acc_mean" in records[0]), None)
    if evaluated is not None:
        figures |= {name: value for name, value in summarise(evaluated).items() if "/acc_" in name}
    return {**figures, **summarise(history[-1])}


def restore(job: JobRun, folder: Path) -> None:
    """Continues a run from the newest checkpoint in a folder.

    Raises:
        ConfigError: it is missing or damaged, or the run's configuration cannot continue it.
    """
    simulation = job.begun
    snapshot = next(checkpoint.usable(folder), None)
    if snapshot is None or isinstance(snapshot, Damaged):
        raise ConfigError(f"cannot load the checkpoint in {folder}: {snapshot or 'there is none'}")
    theirs, ours = config.as_dict(config.to_run(snapshot.meta["run"], stored=True)), config.as_dict(simulation.run)
    for run, seeds in ((theirs, snapshot.meta["seeds"]), (ours, simulation.seeds)):
        run["data"].pop("root", None)  # a path of a machine
        run |= {"seeds": seeds, "method": run["method"]["name"]}
    for group in ("clip", "data", "partition", "stages", "method", "seeds"):
        if theirs[group] != ours[group]:
            raise ConfigError(
                f"cannot load a checkpoint of another configuration: its {group} is {theirs[group]}, but this run's is "
                f"{ours[group]}. Only optim, protocol, clients, and fields of the method that keep the shapes of its "
                "state can differ."
            )
    try:
        simulation.restore(Snapshot(snapshot.tensors, {**snapshot.meta, "cell": config.identity(simulation.run)}))
    except ConfigError as problem:
        raise ConfigError(f"cannot load a checkpoint of another configuration: {problem}") from None
    job.history = snapshot.meta["rounds"]
