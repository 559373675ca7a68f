"""The scheduler behind Tune's hooks: a searcher that hands out jobs, a scheduler that passes results on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from fpl_tune.execute.job import STOP_FILE, Failure, Job, JobOutput, remote_name, stop_asked
from fpl_tune.execute.packing import Packing
from fpl_tune.execute.ray.slots import Room
from fpl_tune.execute.ray.trainable import Ticket, Told
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.execute.scheduler import Scheduler

DIED = "The process of the trial died"
_MANY = 1 << 20  # trials that a study wants while its scheduler has more
_LOOKAHEAD = 4  # jobs per GPU among which the packing chooses


class Link:
    """The scheduler behind Tune's hooks. Tune takes exceptions of its hooks for failed trials, so they wait here."""

    def __init__(self, scheduler: Scheduler, room: Room, packing: Packing | None = None) -> None:
        self.scheduler, self.room, self.packing = scheduler, room, packing
        self.problem: BaseException | None = None
        self._flying: dict[int, Job] = {}
        """By number of the ticket: Tune copies what it is given."""
        self._handed = 0
        self._waiting: list[Job] = []
        self._declined: list[Job] = []
        """By nodes that must not run trials: to be handed out again."""
        self._dry = False
        setup = room.setup
        self._place = RemoteStorage(setup.checkpoints) if setup.checkpoints else None
        self._stop_sent = False
        if self._place:
            self._place.drop(f"{setup.study}/{STOP_FILE}")

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its hooks for a restore that is never used; terminals and databases do not pickle

    def next(self) -> Ticket | None:
        """The next job and what it gets, if there is one and room for it."""
        try:
            self._pass_stop()
            wanted = len(self._flying) + len(self._waiting) if self._dry else _MANY
            if len(self._flying) >= self.room.slots(wanted) or self._held_back():
                return None
            found = self._pack() if self.packing else self._plain()
            if found is None:
                return None
            self._handed += 1
            self._flying[self._handed] = found[0]
            return Ticket(self._handed, *found)
        except Exception as problem:
            self.problem = problem
            return None

    def _held_back(self) -> bool:
        """A job that is to be alone on the processor has nothing put beside it."""
        return self.packing is None and any(job.alone for job in self._flying.values())

    def _plain(self) -> tuple[Job, float] | None:
        job = self._ask()
        return None if job is None else (job, self.room.setup.gpus or 0.0)

    def _pack(self) -> tuple[Job, float] | None:
        assert self.packing is not None
        while len(self._waiting) < _LOOKAHEAD * self.packing.count and (job := self._ask()) is not None:
            self._waiting.append(job)
        placed = self.packing.place(self._waiting)
        if placed is not None:
            self._waiting = [job for job in self._waiting if job is not placed[0]]
        return placed

    def _ask(self) -> Job | None:
        job = self._declined.pop() if self._declined and not self.scheduler.stopping else self.scheduler.next_job()
        self._dry = job is None
        return job

    @property
    def exhausted(self) -> bool:
        return (
            self.problem is not None
            or self.scheduler.stopping
            or (not self._waiting and not self._declined and self.scheduler.exhausted)
        )

    def hear(self, number: int, told: Told) -> bool:
        """Passes on what a step told. False: the trial is to stop."""
        if self.problem is not None:
            return False
        job = self._flying[number]
        try:
            self._pass_stop()
            for text in told.warnings:
                self.scheduler.warn(job, text)
            return not told.rounds or self.scheduler.report(job, told.rounds)
        except Exception as problem:
            self.problem = problem
        return False

    def ended(self, number: int, told: Told, *, stopped: bool = False) -> None:
        """A trial is over: by itself, because its process died, or because the scheduler stopped it."""
        job = self._flying.pop(number)
        if self.packing:
            self.packing.ended(job, told.output.peak_device_bytes if told.output else 0)
        if self.problem is not None:
            return
        try:
            if told.declined:
                self._declined.append(job)
                self.room.refuse(*told.declined)
                return
            if stopped:
                return
            if told.failure is not None:
                if self.scheduler.fail(job, told.failure):
                    return  # its checkpoint is to stay
            elif told.output is not None:
                self.scheduler.complete(job, self._fetched(job, told.output))
            else:
                return  # it halted with a checkpoint, which is to stay
            if self._place:
                self._place.drop(remote_name(job, self.room.setup.study))
        except Exception as problem:
            self.problem = problem

    def _fetched(self, job: Job, output: JobOutput) -> JobOutput:
        """The files of a output, brought here from where its node put them."""
        if self._place is None:
            return output
        folder = self.room.setup.folder / "cells" / job.cell.id / job.slot
        self._place.pull(remote_name(job, self.room.setup.study), folder)
        return replace(output, prompts={seed: folder / path.name for seed, path in output.prompts.items()})

    def _pass_stop(self) -> None:
        """Nodes that do not share the folder hear of a stop through the place that they do share."""
        if self._place and not self._stop_sent and stop_asked(self.room.setup.folder):
            self._place.write(f"{self.room.setup.study}/{STOP_FILE}", "")
            self._stop_sent = True

    def close(self) -> None:
        self.room.close()


def cause_of_death(said: str) -> str:
    """What matters of Ray's words on an actor that is gone: the error that kept it from starting, or how it ended."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    if any("creation task" in line for line in lines):
        return f"The process of the trial could not start: {lines[-1][:300]}"
    detail = next((line.partition("Worker exit detail:")[2] for line in lines if "Worker exit detail:" in line), "")
    killed = not detail or "connection error code" in detail  # it ended without a word
    return f"{DIED} ({'out of memory, or killed' if killed else detail.strip().partition('. ')[0][:300]})."


class Source(Searcher):
    """Feeds jobs to Tune as it has room for them."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def suggest(self, trial_id: str) -> Any:
        ticket = self._link.next()
        if ticket is not None:
            return {"ticket": ticket}
        return Searcher.FINISHED if self._link.exhausted else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Nothing to remember."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to remember."""


class Listening(FIFOScheduler):
    """Passes results to the scheduler, and its decisions to Tune."""

    _supports_buffered_results: ClassVar[bool] = False  # type: ignore[misc]

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._closed: set[str] = set()
        self._last: Any = None

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        told = result["told"]
        if self._link.hear(trial.config["ticket"].number, told):
            return TrialScheduler.CONTINUE
        self._close(trial, told, stopped=True)
        return TrialScheduler.STOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if trial.trial_id not in self._closed:
            told = result["told"]
            self._close(trial, told, stopped=not self._link.hear(trial.config["ticket"].number, told))

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        if trial.trial_id not in self._closed:
            self._close(trial, Told([], failure=Failure(cause_of_death(str(trial.get_error() or "")), "died")))

    def _close(self, trial: Any, told: Told, *, stopped: bool = False) -> None:
        self._closed.add(trial.trial_id)
        self._link.ended(trial.config["ticket"].number, told, stopped=stopped)
        self._empty(trial)

    def _empty(self, trial: Any) -> None:
        """Tune keeps all trials until the end; the one before this is done with, and need not keep what it was told."""
        before, self._last = self._last, trial
        if before is not None:
            before.config, before.evaluated_params, before._Trial__unresolved_config = {}, {}, {}
            before.run_metadata.last_result = {}
