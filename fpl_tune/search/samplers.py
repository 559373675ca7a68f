"""Optuna, as far as a search needs it: the database, the sampler, values, and a table gone through by TPE."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState
from sqlalchemy import event

from fpl_tune.search.space import Param

NAMED_CONSTRAINTS = hasattr(optuna.trial.Trial, "set_constraint")  # since Optuna 5; before, a function of the trial


def open_storage(folder: Path) -> optuna.storages.BaseStorage:
    """The study's Optuna database."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / 'study.db'}")
    event.listen(storage.engine, "connect", _without_waiting)
    storage.engine.dispose()  # what is connected already does not know
    return storage


def _without_waiting(connection: Any, record: Any) -> None:
    """A commit survives a kill without waiting for the disk; only a power cut may take the last ones back."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def sampler(name: str | None, seed: int, *, trials: int, constrained: bool) -> BaseSampler:
    """The sampler of one trial: TPE over all parameters at once, or uniform draws.

    A third of the budget's `trials`, ten at most, are drawn before TPE has something to go by.
    """
    if name != "tpe":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate and group
        return TPESampler(
            n_startup_trials=min(10, max(4, trials // 3)),
            n_ei_candidates=24,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
            constraints_func=_excesses if constrained and not NAMED_CONSTRAINTS else None,
        )


def _excesses(trial: optuna.trial.FrozenTrial) -> Sequence[float]:
    """Optuna's constraints of a trial, from what was noted when it was told; none were broken where nothing was."""
    return trial.user_attrs.get("excess", [0.0])


def sample(trial: optuna.trial.Trial, param: Param) -> Any:
    if param.choices:
        shown = [outward(choice) for choice in param.choices]
        return param.choices[shown.index(trial.suggest_categorical(param.name, shown))]
    if param.whole:
        step = int(param.step or 1)
        return trial.suggest_int(param.name, int(param.low), int(param.high), step=step, log=param.log)
    return trial.suggest_float(param.name, param.low, param.high, step=param.step, log=param.log)


def outward(value: Any) -> Any:
    """A choice as Optuna can store it: lists and mappings as text."""
    return value if isinstance(value, None | bool | int | float | str) else json.dumps(value)


def draw_from_table(points: Sequence[Mapping[str, Any]], values: Sequence[float], *, seed: int) -> list[int]:
    """The order in which TPE goes through a table of results: places of `points`, none twice.

    points: mappings of equal keys (fields), values: what to maximise. Suggestions that are not in the table, or were
    drawn before, cost nothing and are answered from it where they can be; what is never suggested comes last.
    """
    places = {_name_of(point): i for i, point in enumerate(points)}
    choices = {name: list(dict.fromkeys(outward(point[name]) for point in points)) for name in points[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = TPESampler(n_startup_trials=min(10, max(2, len(points) // 4)), multivariate=True, seed=seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    order: list[int] = []
    for _ in range(10 * len(points)):
        trial = study.ask()
        place = places.get(_name_of({n: trial.suggest_categorical(n, shown) for n, shown in choices.items()}))
        if place is None:
            study.tell(trial, state=TrialState.FAIL)
            continue
        study.tell(trial, values[place])
        if place not in order:
            order.append(place)
        if len(order) == len(points):
            break
    return [*order, *(i for i in range(len(points)) if i not in order)]


def _name_of(point: Mapping[str, Any]) -> str:
    return json.dumps({name: outward(value) for name, value in point.items()}, sort_keys=True)
