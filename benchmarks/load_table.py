"""Reads a table of benchmarks/tables; needs this file, the table, NumPy and, for `Table.objective`, Optuna.

table = load("pfedmoap")
study = optuna.create_study(direction="maximize")
study.optimize(table.objective, n_trials=20)
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    json_to_distribution,
)

TABLES = Path(__file__).resolve().parent / "tables"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Configurations of one method on one split, each simulated with the same seeds: N of them, S seeds, E evaluations.

    Accuracies are shares of a client's images; the mean over clients is what studies report.
    """

    name: str
    space: dict[str, BaseDistribution]
    """Optuna's distributions of the searched fields."""
    points: list[dict[str, Any]]
    """Values of the fields in each configuration; the published ones come first."""
    published: int
    """Number of published configurations."""
    rounds: npt.NDArray[np.int64]
    """[E] rounds after which clients were evaluated; the last one ends the simulation."""
    val: Floats
    """[N, S, E, clients] validation accuracies."""
    test: Floats
    """[N, S, E, clients] test accuracies."""
    seconds: Floats
    """[N] seconds of one processor core for all seeds."""
    costs: dict[str, Floats] = field(default_factory=dict)
    """[N] what a configuration costs, known before it runs, by metric: further objectives, of which less is better."""

    def unit(self, point: Mapping[str, Any]) -> Floats:
        """Coordinates of a point in the unit cube: ranks of choices, logarithms where the field is searched so."""
        found = []
        for name, d in self.space.items():
            if isinstance(d, CategoricalDistribution):
                found.append(d.choices.index(point[name]) / max(1, len(d.choices) - 1))
                continue
            assert isinstance(d, FloatDistribution | IntDistribution)
            scale = math.log if d.log else float
            found.append((scale(point[name]) - scale(d.low)) / (scale(d.high) - scale(d.low)))
        return np.array(found)

    def nearest(self, point: Mapping[str, Any], used: Collection[int] = ()) -> int:
        """The configuration with the smallest Euclidean distance in the unit cube among those that are not used."""
        units = np.array([self.unit(known) for known in self.points])
        distances = ((units - self.unit(point)) ** 2).sum(1)
        distances[list(used)] = math.inf
        return int(distances.argmin())

    def objective(self, trial: optuna.Trial) -> float:
        """Validation accuracy of the configuration nearest to a trial's point, with a report for each evaluation.

        Its number is the user attribute `configuration`, its test accuracy `test`.

        Raises:
            optuna.TrialPruned: the study's pruner stops the trial.
        """
        index = self.nearest({name: _suggest(trial, name, d) for name, d in self.space.items()})
        values = self.val[index].mean((0, 2))
        trial.set_user_attr("configuration", index)
        trial.set_user_attr("test", self.test[index, :, -1].mean())
        for step, value in zip(self.rounds, values, strict=True):
            trial.report(value, int(step))
            if step < self.rounds[-1] and trial.should_prune():
                raise optuna.TrialPruned
        return float(values[-1])


def _suggest(trial: optuna.Trial, name: str, d: BaseDistribution) -> Any:
    if isinstance(d, CategoricalDistribution):
        return trial.suggest_categorical(name, d.choices)
    if isinstance(d, IntDistribution):
        return trial.suggest_int(name, d.low, d.high, step=d.step, log=d.log)
    assert isinstance(d, FloatDistribution)
    return trial.suggest_float(name, d.low, d.high, step=d.step, log=d.log)


def load(name: str, folder: Path = TABLES) -> Table:
    """Reads a table by its name: pfedmoap, fedpgp or promptfl."""
    with np.load(folder / f"{name}.npz") as file:
        about = json.loads(str(file["about"]))
        space = {key: json_to_distribution(text) for key, text in about["space"].items()}
        val, test = (file[f"{key}_right"] / file[f"{key}_images"][:, None] for key in ("val", "test"))
        points = [dict(zip(space, values, strict=True)) for values in about["points"]]
        return Table(name, space, points, about["published"], file["rounds"], val, test, file["seconds"])
