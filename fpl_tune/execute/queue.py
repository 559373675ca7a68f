"""The queue of a study: missing seeds of its cells as jobs."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fpl_tune.config import StudySpec
from fpl_tune.execute.job import Failure, Job
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store

_CRASHES = 3  # of a job's process in a row without a new round


class JobQueue(deque[Job]):
    """Jobs in their order."""

    def __init__(self, store: Store, spec: StudySpec) -> None:
        super().__init__()
        self.store, self.spec = store, spec
        self.open: dict[str, set[int]] = {}
        """Cell id -> seeds without a final result."""

    def add(self, cell: Cell, fingerprint: str) -> bool:
        """Queues the missing seeds of a cell. Returns whether there are any."""
        missing = self.store.missing(cell, self.spec)
        if not missing:
            self._jobs(cell, (), "")  # a kill after the last result left its checkpoint
            return False
        self.open[cell.id] = set(missing)
        self.extend(self._jobs(cell, missing, fingerprint))
        return True

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

    def stored(self, cell: Cell, seed: int) -> None:
        """A seed has its result."""
        self.open[cell.id].discard(seed)

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

    def over(self, job: Job) -> bool:
        """Whether a job's cell is complete, after the job's seeds are stored."""
        if self.open[job.cell.id]:
            return False
        del self.open[job.cell.id]
        return True
