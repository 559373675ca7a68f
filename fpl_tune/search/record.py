"""The trials of a search: in memory, where samplers read them, and in the study's Optuna database.

A trial enters the database with all its parameters in one transaction: after a kill it is complete or absent. Its user
attributes hold the number of results that were reported before it was suggested (`reported_before`) and its own
position among the reports (`reported_as`): every suggestion follows from both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial
from sqlalchemy import event

from fpl_tune.search.components import quiet
from fpl_tune.study.schema import check_database


def open_storage(folder: Path) -> BaseStorage:
    """Opens the study's Optuna database, `study.db` in its folder.

    Raises:
        DamagedFile: it is there, but is not a database of Optuna.
    """
    path = folder / "study.db"
    if path.is_file():
        check_database(path)
    storage = RDBStorage(f"sqlite:///{path}")
    event.listen(storage.engine, "connect", _without_waiting)
    storage.engine.dispose()  # connections made before lack the pragmas
    return storage


def _without_waiting(connection: Any, record: Any) -> None:
    """Commits do not wait for the disk: they survive a kill, but a power cut may lose the last ones."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


class _Copy(NamedTuple):
    """The trials in one storage: memory or the database."""

    storage: BaseStorage
    study: optuna.Study
    id: int

    @classmethod
    def of(cls, storage: BaseStorage, name: str, directions: Sequence[StudyDirection]) -> _Copy:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True, sampler=RandomSampler()
        )
        return cls(storage, study, storage.get_study_id_from_name(name))

    def take_attributes(self, other: _Copy) -> None:
        """Copies what a sampler stores with the study, such as its position in a sequence."""
        known = self.storage.get_study_system_attrs(self.id)
        for key, value in other.storage.get_study_system_attrs(other.id).items():
            if known.get(key) != value:
                self.storage.set_study_system_attr(self.id, key, value)


class TrialRecord:
    """The trials of one search.

    Args:
        storage: the study's database.
        name: of the search in the database.
        directions: of the objectives.
    """

    def __init__(self, storage: BaseStorage, name: str, directions: Sequence[StudyDirection]) -> None:
        self._memory, self._disk = (_Copy.of(kept, name, directions) for kept in (InMemoryStorage(), storage))
        self._memory.study.add_trials(self._disk.study.get_trials(deepcopy=False))
        self._memory.take_attributes(self._disk)
        self.reported = sum("reported_as" in t.user_attrs and t.state.is_finished() for t in self.trials())
        """Results so far."""

    def trials(self) -> list[FrozenTrial]:
        """All trials by number; not copied."""
        return self._memory.study.get_trials(deepcopy=False)

    def suggest(
        self,
        sampler: BaseSampler,
        suggest: Callable[[Trial], dict[str, Any]],
        point: Mapping[str, Any] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """A new trial.

        Args:
            sampler: draws the parameters.
            suggest: takes the values of the active fields from the trial.
            point: values that are fixed, as Optuna stores them.

        Returns:
            The trial's number in Optuna, and the values by field.
        """
        study = self._memory.study
        study.sampler = sampler
        if point is not None:
            study.enqueue_trial(dict(point))
        with quiet():
            trial = study.ask()
            chosen = suggest(trial)
        trial.set_user_attr("params", chosen)
        trial.set_user_attr("reported_before", self.reported)
        self._disk.study.add_trial(self.trials()[trial.number])
        self._disk.take_attributes(self._memory)
        return trial.number, chosen

    def report(self, number: int, over: FrozenTrial, sampler: BaseSampler) -> None:
        """Ends a trial.

        Args:
            number: the trial's.
            over: its state, values, intermediate values and user attributes; of these, `constraints` maps each
                constraint to its violation, 0 or less where it holds.
            sampler: may store attributes of its own.
        """
        with quiet():  # a kill in between leaves attributes that are set again
            for copy in (self._memory, self._disk):
                copy.study.sampler = RandomSampler()  # whose trial draws nothing when it is made
                trial_id = copy.storage.get_trial_id_from_study_id_trial_number(copy.id, number)
                trial = Trial(copy.study, trial_id)
                for key, value in {**over.user_attrs, "reported_as": self.reported}.items():
                    trial.set_user_attr(key, value)
                for step, value in over.intermediate_values.items():
                    trial.report(value, step)
                if copy is self._memory:
                    for name, excess in over.user_attrs.get("constraints", {}).items():
                        trial.set_constraint(name, excess)
                    copy.study.sampler = sampler
                else:  # what the sampler and the constraints left
                    for key, value in self.trials()[number].system_attrs.items():
                        copy.storage.set_trial_system_attr(trial_id, key, value)
                copy.study.tell(trial, over.values, over.state)
        self.reported += 1
