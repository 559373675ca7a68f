"""Jobs that are paused at a rung, with a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fpl_tune.execute.job import Job
from fpl_tune.search.pruning import Decision, Paused, Pruner
from fpl_tune.study.cells import Cell
from fpl_tune.trial import Record

Rounds = list[list[Record]]
"""A job's rounds so far, one record per seed in each."""
Key = tuple[str, tuple[int, ...]]
"""Cell id and seeds of a job."""


class PausedJobs:
    """Paused jobs and their rounds; the pruner decides which resume."""

    def __init__(self, pruner: Pruner) -> None:
        self.pruner = pruner
        self._jobs: dict[Key, tuple[Job, Rounds]] = {}
        self._resumed: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job, rounds: Rounds) -> None:
        self._jobs[job.key] = job, rounds

    def holds(self, cell: Cell) -> bool:
        """Whether a job of the cell is paused."""
        return any(key == cell.id for key, _ in self._jobs)

    def reported(self, job: Job) -> int:
        """Rounds of a resumed job that were reported before it was paused."""
        return self._resumed.get(job.key, 0)

    def remember(self, cell: Cell, histories: Sequence[Sequence[Record]]) -> None:
        """The pruner receives what a finished cell reached; one history per seed."""
        if self.pruner.spec.rule:
            self._decide(cell, [list(records) for records in zip(*histories, strict=False)])

    def restore(self, queued: Iterable[Job], resumable: Mapping[Key, Rounds]) -> list[tuple[Job, Rounds]]:
        """Finds the queued jobs whose checkpoint is at a rung: they were paused there when the study was stopped.

        Args:
            queued: all queued jobs.
            resumable: rounds in the checkpoints of queued jobs.
        """
        found = []
        for job in queued:
            rounds = resumable.get(job.key, [])
            if self._decide(job.cell, rounds) == Decision.PAUSE:
                found.append((job, rounds))
        return found

    def _decide(self, cell: Cell, rounds: Rounds) -> Decision:
        """Shows the pruner the rounds of a cell in order; returns its last decision."""
        decision = Decision.CONTINUE
        for number in range(1, len(rounds) + 1):
            decision = self.pruner.decide(cell, rounds[:number], latest=number == len(rounds))
        return decision

    def promote(self) -> list[Job]:
        """Removes and returns the jobs that their rung promotes."""
        return [job for job, _ in self._take(self.pruner.promote(self._cells()))]

    def settle(self, running: Sequence[tuple[Cell, int]]) -> tuple[list[Job], list[tuple[Job, Rounds]]]:
        """Removes the jobs of rungs that no other cell can reach; returns those that resume and those that are pruned.

        Args:
            running: cells of other jobs and the rounds that they have done.
        """
        promoted, pruned = self.pruner.settle(self._cells(), [Paused(*pair) for pair in running])
        return [job for job, _ in self._take(promoted)], self._take(pruned)

    def _cells(self) -> list[Paused]:
        found = {(job.cell.id, len(rounds)): Paused(job.cell, len(rounds)) for job, rounds in self._jobs.values()}
        return list(found.values())

    def _take(self, chosen: Iterable[Paused]) -> list[tuple[Job, Rounds]]:
        """Removes all jobs of the chosen cells."""
        taken = []
        for cell, number in chosen:
            for key, (_, rounds) in list(self._jobs.items()):
                if key[0] == cell.id and len(rounds) == number:
                    taken.append(self._jobs.pop(key))
                    self._resumed[key] = number
        return taken
