"""The queue of a study: missing seeds of its cells as jobs, batch by batch where seeds race."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from fpl_tune.config import StudySpec
from fpl_tune.execute.job import Failure, Job
from fpl_tune.search.race import Race
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import make_result
from fpl_tune.study.selection import selecting_rule
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

_CRASHES = 3  # of a job's process in a row without a new round


class JobQueue(deque[Job]):
    """Jobs in their order, and the seeds that wait for a later batch of a race.

    A batch begins when nothing else runs, so that eliminations do not depend on the order in which jobs end.
    """

    def __init__(self, store: Store, spec: StudySpec) -> None:
        super().__init__()
        self.store, self.spec = store, spec
        self.open: dict[str, set[int]] = {}
        """Cell id -> seeds without a final result."""
        self._race: Race | None = None
        if spec.prune.seeds is not None:
            rule = selecting_rule(spec.report.rule)
            self._race = Race(spec.prune, spec.seed_list(), list(axes_of(spec.axes)), rule)
        self.waiting: list[tuple[Cell, int, str]] = []
        """Cells that wait for their next batch, with its number and the fingerprint of their jobs."""

    def add(self, cell: Cell, fingerprint: str) -> bool:
        """Queues the missing seeds of a cell. Returns whether there are any."""
        missing = self.store.missing(cell, self.spec)
        if self._race is not None and cell.candidate:
            missing = self._report_to_race(cell, missing)
        if not missing:
            self._jobs(cell, (), "")  # a kill after the last result left its checkpoint
            return False
        self.open[cell.id] = set(missing)
        self._queue(cell, fingerprint)
        return True

    def _report_to_race(self, cell: Cell, missing: Sequence[int]) -> Sequence[int]:
        """Reports stored seeds to the race. A cell that was eliminated before stays out, also of further seeds."""
        assert self._race is not None
        for seed, result in self.store.seed_results(cell).items():
            if result["status"] == Status.ELIMINATED:
                for left in missing:
                    self.store.put(cell, left, [], result)
                return ()
            self._race.note(cell, seed, result, self.store.history(cell, seed))
        return missing

    def _queue(self, cell: Cell, fingerprint: str) -> None:
        """Queues the open seeds of a cell; in a race those of its first batch, while later ones wait."""
        race = self._race if cell.candidate else None
        for number, batch in enumerate(race.batches if race else [tuple(self.spec.seed_list())]):
            left = [seed for seed in batch if seed in self.open[cell.id]]
            if left and number == 0:
                self.extend(self._jobs(cell, left, fingerprint))
            elif left:
                self.waiting.append((cell, number, fingerprint))
            if left:
                return

    def _jobs(self, cell: Cell, missing: Sequence[int], fingerprint: str) -> list[Job]:
        """Jobs of the missing seeds. Seeds with a common checkpoint stay together, even if some are stored already.

        Checkpoints that no job can use are removed.
        """
        jobs, left = [], set(missing)
        for slot in sorted(self.store.folder.glob(f"cells/{cell.id}/ckpt-*")):
            seeds = next((s.meta["seeds"] for s in checkpoint.usable(slot) if isinstance(s, Snapshot)), [])
            job = Job(cell, tuple(seeds), fingerprint)
            if left & set(seeds) and set(seeds) <= set(self.spec.seed_list()) and job.slot == slot.name:
                jobs.append(job)
                left -= set(seeds)
            else:
                shutil.rmtree(slot, ignore_errors=True)
        return [*jobs, *([Job(cell, tuple(s for s in missing if s in left), fingerprint)] if left else [])]

    def stored(self, cell: Cell, seed: int, result: Mapping[str, Any], history: Sequence[Record]) -> None:
        """A seed has its result."""
        self.open[cell.id].discard(seed)
        if self._race is not None:
            self._race.note(cell, seed, result, history)
            if result["status"] == Status.PRUNED:  # in rounds; its other seeds need not run either
                for left in sorted(self.open[cell.id]):
                    self.store.put(cell, left, [], make_result(Status.PRUNED, []))
                self.open[cell.id].clear()

    def retry(self, job: Job, failure: Failure, reached: int) -> Literal["resume", "split", "give up"]:
        """Queues a failed job again, or its seeds one by one, or neither.

        Args:
            job: the job.
            failure: why it failed.
            reached: rounds that it had reported.
        """
        crashed, again = failure.kind == "died", job
        if failure.kind == "memory" and not job.alone:
            again = replace(job, alone=True)
        elif failure.kind != "declined":
            further = crashed and reached > job.reached  # attempts count from 0 again
            again = replace(job, attempt=0 if further else job.attempt + 1, reached=max(reached * crashed, job.reached))
            if not crashed or again.attempt > _CRASHES:
                if len(job.seeds) > 1:
                    left = [seed for seed in reversed(job.seeds) if seed in self.open[job.cell.id]]
                    self.extendleft(Job(job.cell, (seed,), job.fingerprint) for seed in left)
                    return "split"
                if failure.kind in ("diverged", "memory") or again.attempt > self.spec.execution.retries:
                    return "give up"
        self.appendleft(again)
        return "resume"

    def over(self, job: Job, running: bool) -> bool:
        """Whether a job's cell is complete, after the job's seeds are stored. `running`: other jobs of the cell run."""
        if not self.open[job.cell.id]:
            del self.open[job.cell.id]
            return True
        if not running and all(other.cell.id != job.cell.id for other in self):
            self._queue(job.cell, job.fingerprint)
        return False

    def release(self) -> list[Cell]:
        """Begins the earliest batch that cells wait for. Returns the cells that were eliminated before it."""
        assert self._race is not None
        first = min(batch for _, batch, _ in self.waiting)
        due = [waiting for waiting in self.waiting if waiting[1] == first]
        self.waiting = [waiting for waiting in self.waiting if waiting[1] != first]
        eliminated = []
        for cell, batch, fingerprint in due:
            elimination = self._race.judge(cell, batch)
            if elimination is None:
                left = [seed for seed in self._race.batches[batch] if seed in self.open[cell.id]]
                self.extend(self._jobs(cell, left, fingerprint))
            else:
                for seed in sorted(self.open.pop(cell.id)):
                    result = make_result(Status.ELIMINATED, [], error=str(elimination))
                    self.store.put(cell, seed, [], result)
                eliminated.append(cell)
        return eliminated
