"""The trials of a search: studies of Optuna in a journal in the study's folder."""

from __future__ import annotations

import copy
from collections.abc import Container
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from fpl_tune.study.schema import DamagedFile

FILE = "optuna.log"
PAUSED = "paused"
"""User attribute of a trial that was paused at a rung."""


class TrialJournal(JournalStorage):
    """Optuna's journal. Samplers and pruners receive trials that wait at a rung with their last values.

    A paused trial may go on, so that its state is running. Samplers would take it for a bad one (TPE's constant liar)
    and not count it towards their start-up; as a pruned trial its last value and round count.
    """

    at_rung = TrialState.PRUNED
    """State of trials that wait at a rung or have ended there; complete for samplers that leave pruned trials out."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [_at_rung(trial, self.at_rung) for trial in super().get_all_trials(study_id, deepcopy)]
        return [trial for trial in trials if states is None or trial.state in states]


def _at_rung(trial: FrozenTrial, state: TrialState) -> FrozenTrial:
    """A trial that waits at a rung, or has ended there, in another state; others as they are."""
    ended = trial.state in (TrialState.COMPLETE, TrialState.FAIL)
    if ended or PAUSED not in trial.user_attrs or not trial.intermediate_values:
        return trial
    trial = copy.copy(trial)
    trial.state = state
    if state == TrialState.COMPLETE:
        trial.values = [trial.intermediate_values[max(trial.intermediate_values)]]
    return trial


def is_over(trial: FrozenTrial) -> bool:
    """Whether a trial has its result: a paused one has none yet."""
    return trial.datetime_complete is not None


def open_storage(folder: Path) -> TrialJournal:
    """Opens the journal of the study in a folder. One process writes it: the study's folder is locked.

    Raises:
        DamagedFile: it is there, but is not a journal of Optuna.
    """
    path = folder / FILE
    path.with_name(f"{FILE}.lock").unlink(missing_ok=True)  # of a process that was killed
    if path.is_file():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # a full disk or a kill cut the last line off
            with path.open("r+b") as file:
                file.truncate(whole)
    try:
        return TrialJournal(JournalFileBackend(str(path)))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedFile(
            path,
            f"Optuna cannot read it ({type(problem).__name__}: {problem})".replace("\n", " "),
            "Delete it: the search suggests the same trials again and takes those that are stored from the store.",
        ) from None
