"""A federated simulation as a Ray Tune trainable, for anybody's `tune.Tuner`; those of studies: `study_job`."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from ray import tune

from fpl_tune import config
from fpl_tune.config import ExecutionSpec, RunSpec, StudySpec
from fpl_tune.core import plugins
from fpl_tune.core.device import resolve
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.paths import cache_root
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Damaged, Snapshot
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.simulation.worlds import threads_of
from fpl_tune.study.cells import Composer


class FederatedTrainable(tune.Trainable):
    """A federated simulation under Ray Tune. One step is one round of all seeds.

    The configuration holds a run's fields by their dotted names, as overrides of the command line do, or as nested
    dicts. Besides, it takes:

    * `seeds`: number of seeds (1..n), or a list; default 1. Seeds are trained together.
    * `execution.device`, `execution.threads`, `execution.block`: as in a study.

    A result holds, for every figure of a round, the mean over seeds under its own name (`val/acc_mean`,
    `test/acc_mean`, `train/loss`, `comm/up_bytes`, `time/seconds`, ...) and the standard deviation over seeds under
    `<name>_seed_std`; further `done` and `training_iteration`, the round. Rounds without an evaluation repeat the
    accuracies of the last one (NaN before the first).

    A checkpoint is the state after a round. It can be loaded under a configuration that differs in `optim`,
    `protocol` and those fields of the method that keep the shapes of its state, as population based training does.

    Example:
        >>> space = {"method": "pfedmoap", "method.lam": tune.uniform(0, 5), "seeds": 3}
        >>> tune_config = tune.TuneConfig(metric="val/acc_mean", mode="max", num_samples=8, reuse_actors=True)
        >>> tune.Tuner(FederatedTrainable, param_space=space, tune_config=tune_config).fit()
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """CPU threads and GPUs of a trial. Called by Tune before a trial starts, so wrong fields are refused here.

        Raises:
            ConfigError: an unknown field, or a value that its field refuses.
        """
        *_, setup = parse(config)
        return tune.PlacementGroupFactory([{"CPU": float(setup.threads), "GPU": float(setup.device == "cuda")}])

    def setup(self, config: dict[str, Any]) -> None:
        """Loads towers and data, and begins the run.

        Raises:
            ConfigError: an unknown field, or a value that its field refuses.
        """
        run, seeds, setup = parse(config)
        torch.set_num_threads(setup.threads)
        self._trial = setup.trial(run, seeds)
        self._evaluated: dict[str, float] = {"val/acc_mean": math.nan, "test/acc_mean": math.nan}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begins another run in the same process, which keeps towers and data."""
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """One round of all seeds.

        Raises:
            Diverged: a loss or an accuracy is NaN or inf.
        """
        figures = summarise(self._trial.step())
        self._evaluated = {**self._evaluated, **{k: v for k, v in figures.items() if "acc" in k}}
        return {**self._evaluated, **figures, "done": self._trial.done, "training_iteration": self._trial.round}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes the state after the last round."""
        tensors, meta = self._trial.snapshot()
        meta |= {"run": config.as_dict(self._trial.run), "evaluated": self._evaluated}
        checkpoint.write(Path(checkpoint_dir), Snapshot(tensors, meta))

    def load_checkpoint(self, checkpoint: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Continues from a checkpoint.

        Raises:
            ConfigError: it is damaged, or of a configuration that this one cannot continue.
        """
        self._evaluated = restore(self._trial, Path(checkpoint))

    def cleanup(self) -> None:
        """Frees the run, so that the next one's peak memory does not include it."""
        self._trial: Any = None
        gc.collect()


_OPTIONS = {"execution.device", "execution.threads", "execution.block"}


def parse(node: Mapping[str, Any]) -> tuple[RunSpec, list[int], ExecutionContext]:
    """The run, seeds and setup of a trainable's configuration.

    Raises:
        ConfigError: an unknown field, or a value that its field refuses.
    """
    fields = _flat(node)
    options = {name: fields.pop(name) for name in list(fields) if name.startswith("execution.")}
    for name in options.keys() - _OPTIONS:
        raise unknown("field", name, sorted(_OPTIONS))
    execution = config.changed(ExecutionSpec(), {name.partition(".")[2]: v for name, v in options.items()}, "execution")
    seeds = fields.pop("seeds", 1)
    spec = config.changed(StudySpec(), {"seeds": list(seeds) if isinstance(seeds, tuple) else seeds}, "")
    plugins.trust([f"method={fields.get('method')}"])
    run = _composer().at(fields)
    setup = ExecutionContext(
        folder=Path(),
        cache_dir=cache_root(),
        execution=execution,
        device=resolve(execution.device),
        threads=execution.threads or threads_of(run),
    )
    return run, spec.seed_list(), setup


@cache
def _composer() -> Composer:
    """Composes runs, equal to those of the same overrides on the command line."""
    return Composer(config.as_dict(config.compose_run()))


def _flat(node: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by dotted name; numbers of NumPy become Python's. A mapping with a name chooses the group's option."""
    found = config.flatten(node, whole=lambda name, _: name == "optim.groups")
    return {
        "method" if name == "method.name" else name: value.item() if isinstance(value, np.generic) else value
        for name, value in found.items()
    }


def summarise(records: Sequence[Record]) -> dict[str, float]:
    """Mean over seeds of every figure, and the standard deviation as `<name>_seed_std` where there are several."""
    found: dict[str, float] = {}
    for name in records[0]:
        values = [record.get(name) for record in records]
        if name not in ("seed", "round") and all(isinstance(value, int | float) for value in values):
            found[name] = fmean(values)  # type: ignore[type-var]
            if len(values) > 1:
                found[f"{name}_seed_std"] = stdev(values)  # type: ignore[type-var]
    return found


def restore(trial: Simulation, folder: Path) -> dict[str, float]:
    """Continues a trial from the newest checkpoint in a folder. Returns the figures of its last evaluation.

    Raises:
        ConfigError: it is damaged, or of a configuration that the trial cannot continue.
    """
    found = next(checkpoint.usable(folder), None)
    if found is None or isinstance(found, Damaged):
        raise ConfigError(f"cannot load the checkpoint in {folder}: {found or 'there is none'}")
    theirs, ours = found.meta["run"], config.as_dict(trial.run)
    for node in (theirs, ours):
        node["data"].pop("root", None)  # a path of a machine
    fixed = {part: (theirs[part], ours[part]) for part in ("clip", "data", "partition", "stages")}
    fixed |= {"method": (theirs["method"]["name"], ours["method"]["name"]), "seeds": (found.meta["seeds"], trial.seeds)}
    for part, (its, own) in fixed.items():
        if its != own:
            raise ConfigError(
                f"cannot load a checkpoint of another configuration: its {part} is {its}, but this run's is {own}. "
                "Only optim, protocol, and fields of the method that keep the shapes of its state can differ."
            )
    try:
        trial.restore(Snapshot(found.tensors, {**found.meta, "cell": config.identity(trial.run)}))
    except ConfigError as problem:
        raise ConfigError(f"cannot load a checkpoint of another configuration: {problem}") from None
    return dict(found.meta["evaluated"])
