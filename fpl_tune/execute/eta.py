"""The estimated time until a study is done (ETA): the work that is left, at the speed of the latest jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from fpl_tune.core.files import write_text
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.manage import ETA_FILE
from fpl_tune.execute.plan.profile import cost_key
from fpl_tune.search.halving import expected_cost, leg_shares, resolved, rungs
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.looks import Look
from fpl_tune.study.store import Store

_LATELY = 10  # jobs at least, or the last half of them, if these are more
_TRIED = 50  # trials whose mean prices those to come
_EVERY = 1.0  # seconds between two estimates that are written, at least


class Work(NamedTuple):
    """Rounds of one seed of a kind of run, and jobs, each of which takes some time besides its rounds."""

    kind: str
    rounds: float = 0.0
    jobs: float = 0.0


@dataclass
class Part:
    """What a slot did since its last job ended: a job, from its start or its rung to its end or the next one."""

    kind: str
    began: float
    rounds: int = 0
    """Of all seeds, as `seconds`."""
    seconds: float = 0.0
    """Of its rounds."""
    besides: float | None = None
    """Seconds besides those of its rounds; None while it runs."""


@dataclass
class Left:
    """What a cell is expected to run in all, and what it has run."""

    expected: Work
    records: dict[int, Record] = field(default_factory=dict)
    """The last one of each seed."""
    part: Part | None = None
    """Its running job."""
    ended: int = 0
    """Jobs that were paused or ended."""

    @property
    def work(self) -> Work:
        """What is left: less than nothing of a trial that went on where most do not."""
        kind, rounds, jobs = self.expected
        return Work(kind, rounds - sum(record["round"] for record in self.records.values()), jobs - self.ended)


class Eta(Callback):
    """Estimates the seconds until a study is done, and writes the estimate where `fpl-tune status` reads it.

    The work that is left, in seconds of a slot, is divided by the number of slots. A round takes as long as those of
    runs of equal cost lately, else what the plan expects, corrected by how right it was; a job takes as long besides
    its rounds as jobs did lately, gaps between them included. So a load that rises counts soon, and the start of the
    first jobs, which takes longer, does not.
    """

    def __init__(self) -> None:
        self._seeds: list[int] = []
        self._left: dict[str, Left] = {}  # by cell
        self._trials = 0  # not suggested yet
        self._tried: list[Work] = []  # of those that were
        self._planned: dict[str, float] = {}  # kind -> seconds of a round of one seed by the plan
        self._parts: list[Part] = []
        self._free: list[float] = []  # since when slots have no job
        self._slots, self._last, self._written = 1, 0.0, 0.0

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        spec, self._file = store.spec(), store.folder / ETA_FILE
        self._seeds, self._prune = spec.seed_list(), resolved(spec)
        self._file.unlink(missing_ok=True)
        self._queued = jobs
        for job in jobs:
            self._expect(job.cell, job.seeds)

    def on_trials_queued(self, cells: Sequence[Cell], remaining: int) -> None:
        self._trials = remaining
        for cell in cells if self._seeds else ():  # those before the study starts are among its jobs
            self._expect(cell, self._seeds)

    def _expect(self, cell: Cell, seeds: Sequence[int]) -> None:
        """Counts what a cell has to run. A trial that halving may end counts as the mean of such trials."""
        if not cell.run.learns or cell.id in self._left:  # others take next to nothing
            return
        rounds, jobs = float(len(seeds) * cell.run.rounds), 1.0
        if self._halved(cell):
            number = len(self._seeds)
            rounds = number * cell.run.rounds * expected_cost(self._prune, cell.run, number)
            *first, others = leg_shares(self._prune, cell.run)
            jobs = sum(first) + others * (number > 1)
        self._left[cell.id] = Left(Work(cost_key(cell.run), rounds, jobs))
        if cell.role == "trial":
            self._tried.append(self._left[cell.id].expected)

    def _halved(self, cell: Cell) -> bool:
        return cell.role == "trial" and not cell.reference and bool(rungs(self._prune, cell.run))

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._left.pop(job.cell.id, None)
            self._expect(job.cell, job.seeds)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        if not self._parts:  # the plan is made between the study's start and its first job
            self._planned = {cost_key(job.cell.run): job.pace for job in self._queued if job.pace is not None}
        self._last = time.monotonic()
        self._expect(cell, seeds)
        if left := self._left.get(cell.id):
            if left.part is not None:  # it failed and begins anew; one that was paused goes on
                for seed in seeds:
                    left.records.pop(seed, None)
            left.part = Part(left.expected.kind, self._free.pop(0) if self._free else self._last)
            self._parts.append(left.part)
        self._slots = max(self._slots, sum(other.part is not None for other in self._left.values()))

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if (left := self._left.get(cell.id)) is None:
            return
        self._last, part = time.monotonic(), left.part or Part(left.expected.kind, 0.0)
        for record in records:
            before = left.records.get(int(record["seed"]), {})
            before = before if before.get("round", 0) < record["round"] else {}  # else its job began anew
            part.seconds += record["time/seconds"] - before.get("time/seconds", 0.0)
            part.rounds += record["round"] - before.get("round", 0)
            left.records[int(record["seed"])] = record
        self._write()

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._last, left = time.monotonic(), self._left.get(cell.id)
        if left is not None and (part := left.part) is not None:
            part.besides, left.part = max(0.0, self._last - part.began - part.seconds), None
            left.ended += 1
            self._free.append(self._last)

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.on_job_pause(cell, list(results))
        if not self._halved(cell):
            self._left.pop(cell.id, None)
        self._write()

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def seconds(self) -> float | None:
        """Seconds until the study is done; None until a trial has trained a round."""
        parts = self._parts[self._slots :] if len(self._parts) > 2 * self._slots else self._parts
        parts = parts[-max(_LATELY, len(parts) // 2) :]
        ran = [part for part in parts if part.rounds]
        if not ran:
            return None
        besides = fmean([part.besides for part in parts if part.besides is not None] or [0.0])
        tried = self._tried[-_TRIED:]
        expected = [*tried, *(left.expected for left in self._left.values())]
        paces = {kind: self._pace(kind, ran) for kind in {work.kind for work in expected}}

        def cost(work: Work) -> float:
            return work.rounds * paces[work.kind] + work.jobs * besides

        total = sum(cost(left.work) for left in self._left.values())
        total += self._trials * fmean(map(cost, tried)) if tried else 0.0
        longest = max((cost(left.work) for left in self._left.values() if left.part or not left.ended), default=0.0)
        return max(0.0, max(total / self._slots, longest) - (time.monotonic() - self._last))

    def _pace(self, kind: str, ran: Sequence[Part]) -> float:
        """Seconds of a round of one seed."""
        same = [part for part in ran if part.kind == kind] or [p for p in self._parts if p.kind == kind and p.rounds]
        if same:
            return sum(part.seconds for part in same) / sum(part.rounds for part in same)
        if kind in self._planned and all(part.kind in self._planned for part in ran):
            everything = [part for part in self._parts if part.rounds]
            expected = sum(self._planned[part.kind] * part.rounds for part in everything)
            return self._planned[kind] * sum(part.seconds for part in everything) / expected
        return sum(part.seconds for part in ran) / sum(part.rounds for part in ran)

    def _write(self) -> None:
        now = time.monotonic()
        if now - self._written >= _EVERY and (seconds := self.seconds) is not None:
            self._written = now
            with suppress(OSError):  # a full disk
                write_text(self._file, json.dumps({"until": round(time.time() + seconds, 1)}))
