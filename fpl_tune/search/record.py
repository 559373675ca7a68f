"""The trials of a search: studies of Optuna in a journal in the study's folder.

The journal holds what was asked: numbers, parameters, cells, and what samplers note. What came of it is joined from
the study's own trials whenever a sampler or a pruner reads, so that a trial that is retried, reopened or run with more
seeds is what it is now. Trials that are over are told as well, for other readers of the journal.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from fpl_tune.core.files import NotRegular, regular
from fpl_tune.study.schema import DamagedFile
from fpl_tune.study.trial import OVER, State

FILE = "optuna.log"
CELL = "cell"
"""User attribute of a trial: the cell that it stands for."""


@dataclass(frozen=True)
class Outcome:
    """What has come of a cell so far, for samplers."""

    state: State
    values: list[float] | None = None
    """The objectives; None before the first rung, and where one of them is NaN."""
    steps: Mapping[int, float] = field(default_factory=dict)
    """The objective by round; empty where there are several."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """User attributes."""
    rounds: int = 0
    """Rounds that ran, of all seeds."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to run."""
        return self.state in OVER

    @property
    def fails(self) -> bool:
        """Whether it is over without a figure: it failed, or an objective is NaN."""
        return self.state is State.FAILED or (self.state is State.DONE and self.values is None)


class Together(BaseJournalBackend):
    """A file of Optuna's journal whose entries can be written together, so that a kill leaves all of them or none.

    Args:
        file: the file, which this process alone writes.
    """

    def __init__(self, file: JournalFileBackend) -> None:
        self._file, self._held, self._holds, self._written = file, list[dict[str, Any]](), False, 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the entries from a number on, those that are held back after those in the file."""
        if not self._holds or log_number_from <= self._written:
            found = list(self._file.read_logs(log_number_from))
            self._written = log_number_from + len(found)
            yield from found
        yield from self._held[max(0, log_number_from - self._written) :]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Writes entries, or holds them back."""
        if self._holds:
            self._held += logs
        else:
            self._file.append_logs(logs)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Writes all entries of a block at its end, and none if it raises."""
        self._holds = True
        try:
            yield
            self._holds = False
            self._file.append_logs(self._held)
        finally:
            self._holds, self._held = False, []


class TrialJournal(JournalStorage):
    """Optuna's journal, whose trials are read with their outcomes.

    A trial that waits at a rung or was pruned there has its last value: as a pruned trial, which TPE counts towards its
    start-up, or as a complete one for samplers that leave pruned trials out. One that diverged has the worst values
    that were seen, so that samplers turn away from there.
    """

    def __init__(self, backend: Together) -> None:
        super().__init__(backend)
        self.together = backend.together
        self.outcomes: dict[str, Outcome] = {}
        """By cell."""
        self.partial = TrialState.PRUNED
        """State of trials that have values but not all of their rounds."""
        self._joined: dict[tuple[int, int], tuple[tuple[object, ...], FrozenTrial]] = {}

    def asked(self, study_id: int) -> list[FrozenTrial]:
        """The trials as the journal holds them; not copied."""
        return super().get_all_trials(study_id, deepcopy=False)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        asked = self.asked(study_id)
        outcomes = [self.outcomes.get(trial.user_attrs.get(CELL, "")) for trial in asked]
        worst = _worst([o for o in outcomes if o is not None], self.get_study_directions(study_id))
        joined = [self._join(study_id, trial, o, worst) for trial, o in zip(asked, outcomes, strict=True)]
        found = [trial for trial in joined if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def _join(
        self, study_id: int, trial: FrozenTrial, outcome: Outcome | None, worst: list[float] | None
    ) -> FrozenTrial:
        """A trial with its outcome; made once for equal parts."""
        if outcome is None:
            return trial
        worst = worst if outcome.state is State.DIVERGED else None
        key, parts = (study_id, trial.number), (trial, outcome, worst, self.partial)
        known = self._joined.get(key)
        if known is None or known[0] != parts:
            known = self._joined[key] = parts, join(trial, outcome, worst, self.partial)
        return known[1]


def join(trial: FrozenTrial, outcome: Outcome, worst: Sequence[float] | None, partial: TrialState) -> FrozenTrial:
    """A trial as samplers receive it.

    Args:
        trial: as it was asked.
        outcome: what came of it.
        worst: the values of a trial that diverged; None: none was seen yet.
        partial: state of a trial with values that has not run whole.
    """
    state, values, steps = TrialState.RUNNING, outcome.values, dict(outcome.steps or trial.intermediate_values)
    match outcome.state:
        case State.DIVERGED if worst is not None:
            state, values, steps = TrialState.COMPLETE, list(worst), {}
        case State.DIVERGED:
            state = TrialState.FAIL
        case _ if outcome.fails:
            state = TrialState.FAIL
        case State.DONE:
            state = TrialState.COMPLETE
        case _ if values is not None:
            state = partial
        case State.PRUNED:
            state = TrialState.PRUNED
        case _:  # it runs, or is to run
            pass
    found = copy.copy(trial)
    found.state, found.values = state, values if state in (TrialState.COMPLETE, TrialState.PRUNED) else None
    found.intermediate_values, found.user_attrs = steps, {**trial.user_attrs, **outcome.attrs}
    return found


def _worst(outcomes: Sequence[Outcome], directions: Sequence[StudyDirection]) -> list[float] | None:
    """The worst value that was seen of each objective."""
    seen = [o.values for o in outcomes if o.values is not None and o.state is not State.DIVERGED]
    ends = [min if direction == StudyDirection.MAXIMIZE else max for direction in directions]
    return [end(values) for end, values in zip(ends, zip(*seen, strict=True), strict=True)] if seen else None


def is_told(trial: FrozenTrial) -> bool:
    """Whether the journal holds the end of a trial."""
    return trial.datetime_complete is not None


def open_storage(folder: Path) -> TrialJournal:
    """Opens the journal of the study in a folder. One process writes it: the study's folder is locked.

    Raises:
        DamagedFile: it is there, but is not a journal of Optuna.
    """
    path = folder / FILE
    for left in folder.glob(f"{FILE}.lock*"):  # of a process that was killed
        left.unlink(missing_ok=True)
    if path.is_file():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # a full disk or a kill cut the last line off
            with path.open("r+b") as file:
                file.truncate(whole)
    try:
        return TrialJournal(Together(JournalFileBackend(str(regular(path)))))
    except (NotRegular, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedFile(
            path,
            f"Optuna cannot read it ({type(problem).__name__}: {problem})".replace("\n", " "),
            "Delete it: the search suggests the same trials again and takes those that are stored from the store.",
        ) from None
