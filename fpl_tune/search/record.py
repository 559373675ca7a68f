"""The trials of a search: in memory, where samplers read them, and in the study's Optuna database.

A trial enters the database with all its parameters in one transaction: after a kill it is complete or absent. Its user
attributes hold the number of results that were reported before it was suggested (`reported_before`) and its own
position among the reports (`reported_as`): with both, every suggestion can be reproduced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy import event

from fpl_tune.search.samplers import NAMED_CONSTRAINTS
from fpl_tune.study.schema import check_database

WARM = "warm_start"
"""User attribute of trials that another study ran: its name."""

Suggest = Callable[[Trial], dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """The report on a trial to the sampler."""

    state: TrialState
    values: list[float] = field(default_factory=list)
    """Values by objective; empty for a failed trial."""
    rounds: dict[int, float] = field(default_factory=dict)
    """Round -> first objective."""
    constraints: dict[str, float] = field(default_factory=dict)
    """Constraint -> by how much it is broken; 0 or less where it holds."""
    attrs: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def open_storage(folder: Path) -> BaseStorage:
    """Opens the study's Optuna database, `study.db` in its folder.

    Raises:
        DamagedFile: it is there, but is not a database of Optuna.
    """
    path = folder / "study.db"
    if path.is_file():
        check_database(path)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    event.listen(storage.engine, "connect", _without_waiting)
    storage.engine.dispose()  # connections made before lack the pragmas
    return storage


def _without_waiting(connection: Any, record: Any) -> None:
    """Commits do not wait for the disk: they survive a kill, but a power cut may lose the last ones."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


class _Copy:
    """The trials in one storage: memory or the database."""

    def __init__(self, storage: BaseStorage, name: str, directions: Sequence[StudyDirection]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.storage = storage
        self.study = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True, sampler=RandomSampler()
        )
        self.id = storage.get_study_id_from_name(name)

    def trial(self, number: int) -> tuple[Trial, int]:
        """A running trial and its id. Creating it calls no sampler."""
        self.study.sampler = RandomSampler()
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(self.id, number)
        return Trial(self.study, trial_id), trial_id

    def frozen(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)


class TrialRecord:
    """The trials of one search.

    Args:
        storage: the study's database; None keeps nothing on disk.
        name: of the search in the database.
        directions: of the objectives.
    """

    def __init__(self, storage: BaseStorage | None, name: str, directions: Sequence[StudyDirection]) -> None:
        self._directions = list(directions)
        self._memory = _Copy(InMemoryStorage(), name, directions)
        self._disk = None if storage is None else _Copy(storage, name, directions)
        self._copies = [copy for copy in (self._memory, self._disk) if copy is not None]
        self.reported = 0
        """Results so far."""
        if self._disk is not None:
            self._memory.study.add_trials(self._disk.frozen())
            for key, value in self._disk.storage.get_study_system_attrs(self._disk.id).items():
                self._memory.storage.set_study_system_attr(self._memory.id, key, value)
        self.reported = sum("reported_as" in t.user_attrs and t.state.is_finished() for t in self.trials())

    def trials(self) -> list[FrozenTrial]:
        """All trials by number; not copied."""
        return self._memory.frozen()

    def add(self, trials: Sequence[FrozenTrial]) -> None:
        """Adds finished trials of other studies."""
        for copy in self._copies:
            copy.study.add_trials(trials)

    def suggest(
        self, sampler: BaseSampler, suggest: Suggest, point: Mapping[str, Any] | None = None, **attrs: Any
    ) -> tuple[int, dict[str, Any]]:
        """A new trial.

        Args:
            sampler: draws the parameters.
            suggest: takes the values of the active fields from the trial.
            point: values that are fixed, as Optuna stores them.
            attrs: user attributes.

        Returns:
            The trial's number in Optuna, and the values by field.
        """
        study = self._memory.study
        study.sampler = sampler
        if point is not None:
            study.enqueue_trial(dict(point))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ranges may have been widened since earlier trials
            trial = study.ask()
            chosen = suggest(trial)
        for key, value in {**attrs, "params": chosen, "reported_before": self.reported}.items():
            trial.set_user_attr(key, value)
        if self._disk is not None:
            made = self.trials()[trial.number]
            self._disk.study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params=made.params,
                    distributions=made.distributions,
                    user_attrs=made.user_attrs,
                    system_attrs=made.system_attrs,
                )
            )
            self._copy_study_attrs(self._disk)
        return trial.number, chosen

    def _copy_study_attrs(self, disk: _Copy) -> None:
        """Copies the attributes that a sampler stores with the study, such as its position in a sequence."""
        known = disk.storage.get_study_system_attrs(disk.id)
        for key, value in self._memory.storage.get_study_system_attrs(self._memory.id).items():
            if known.get(key) != value:
                disk.storage.set_study_system_attr(disk.id, key, value)

    def report(self, number: int, verdict: Verdict, sampler: BaseSampler) -> None:
        """Ends a trial. `sampler` may store attributes of its own."""
        attrs = {**verdict.attrs, "reported_as": self.reported}
        values = verdict.values if verdict.state == TrialState.COMPLETE else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a kill in between leaves attributes that are set again
            for copy in self._copies:
                trial, trial_id = copy.trial(number)
                for key, value in attrs.items():
                    trial.set_user_attr(key, value)
                for step, value in verdict.rounds.items() if len(self._directions) == 1 else ():
                    trial.report(value, step)
                if copy is not self._memory:  # those of the sampler and of constraints
                    there = copy.storage.get_trial_system_attrs(trial_id)
                    for key, value in self.trials()[number].system_attrs.items():
                        if key not in there:
                            copy.storage.set_trial_system_attr(trial_id, key, value)
                else:
                    for name, excess in verdict.constraints.items() if NAMED_CONSTRAINTS else ():
                        trial.set_constraint(name, excess)
                    copy.study.sampler = sampler
                copy.study.tell(trial, values, verdict.state)
        self.reported += 1


def verdict_of(trial: FrozenTrial) -> Verdict:
    """The report on a finished trial."""
    attrs = {k: v for k, v in trial.user_attrs.items() if k not in ("params", "reported_before", "reported_as")}
    values = [] if trial.values is None else list(trial.values)
    return Verdict(trial.state, values, dict(trial.intermediate_values), attrs.get("constraints", {}), attrs)
