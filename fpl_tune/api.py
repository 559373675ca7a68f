"""Use from Python and notebooks: `fpl_tune.run`, `fpl_tune.run_study`, `fpl_tune.load_study`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fpl_tune import config
from fpl_tune.device import resolve
from fpl_tune.errors import ConfigError, unknown
from fpl_tune.paths import cache_root, output_folder, output_root
from fpl_tune.trial import Trial

if TYPE_CHECKING:
    from fpl_tune.config import StudySpec
    from fpl_tune.execute.callback import Callback, Outcome
    from fpl_tune.study.store import Store


def run(*overrides: str, seeds: int | Sequence[int] = 1) -> pd.DataFrame:
    """One simulation, for example `run("method=promptfl", "optim.lr=0.01", seeds=3)`.

    Returns:
        A row per seed and round with all metrics; accuracies are shares, bytes and seconds are running totals.

    Raises:
        ConfigError: an unknown key or a value no run can have.
    """
    spec = config.compose_run(overrides)
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    trial = Trial(spec, chosen, cache_dir=cache_root(), device=resolve("auto"))
    history = trial.run_all()
    return pd.DataFrame([record for records in history for record in records])


@dataclass(frozen=True)
class StudyFrames:
    """A study's results as frames."""

    store: Store

    @property
    def results(self) -> pd.DataFrame:
        """A row per cell, seed and reporting rule: the content of results.csv."""
        return self.store.frame()

    @property
    def rounds(self) -> pd.DataFrame:
        """A row per cell, seed and round with all metrics."""
        return pd.DataFrame(
            [
                {"cell": cell.id, "label": cell.label, **record}
                for cell in self.store.cells()
                for seed in self.store.seeds(cell)
                for record in self.store.history(cell, seed)
            ]
        )

    def summary(self, rule: str = "final", metric: str = "test/acc_mean") -> pd.DataFrame:
        """A row per cell: mean, std, sem, n, min and max over seeds."""
        return self.store.summary(rule=rule, metric=metric)


def run_study(name: str, *overrides: str) -> StudyFrames:
    """Runs or continues a study as `fpl-tune study` does, without its terminal output and without MLflow.

    Args:
        name: a shipped study, a stored one, or the path of a YAML file.
        overrides: `key=value`, in the grammar of the command line.

    Raises:
        ConfigError: the study is wrong or infeasible; nothing was started.
        EnvironmentProblem: the machine lacks something; finished results are stored.
    """
    from fpl_tune.execute.eta import Eta

    spec, node = config.compose_study(name, overrides)
    start_study(spec, node, root=output_root(), callbacks=[Eta()])
    return load_study(spec.name)


def start_study(spec: StudySpec, node: dict[str, Any], *, root: Path, callbacks: Iterable[Callback] = ()) -> Outcome:
    """Runs or continues a composed study with the executor that it names, after preflight.

    Raises:
        ConfigError: the study is wrong or infeasible; nothing was started.
        EnvironmentProblem: the machine lacks something; finished results are stored.
    """
    from fpl_tune.execute.runner import run_study
    from fpl_tune.plan import preflight

    if spec.execution.executor == "inline":
        from fpl_tune.execute.inline import execute
    else:
        from fpl_tune.execute.ray import execute
    return run_study(spec, node, root=root, executor=execute, callbacks=callbacks, preflight=preflight.check)


def load_study(name: str) -> StudyFrames:
    """The results of a study in `outputs/` (or FPL_TUNE_OUTPUT).

    Raises:
        ConfigError: there is no such study.
    """
    return StudyFrames(stored(name))


def stored(name: str) -> Store:
    """The store of a study that has results.

    Raises:
        ConfigError: there is none of that name.
    """
    from fpl_tune.study.store import Store

    root = output_folder()
    known = sorted(path.parent.name for path in root.glob("*/study.yaml"))
    if not known:
        raise ConfigError(
            f"There are no results in {root} yet. Run a study first, or name the folder that has some: FPL_TUNE_OUTPUT."
        )
    if name not in known:
        raise unknown("study with results", name, known)
    return Store.open(output_root(), name)
