"""Jobs, and how an executor runs one step by step."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fpl_tune.config import ExecutionSpec
from fpl_tune.core import plugins
from fpl_tune.core.device import is_out_of_memory, is_poisoned
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, FplTuneError
from fpl_tune.core.files import atomic_write, digest, refused, save_tensors
from fpl_tune.execute.remote import RemoteStorage, StorageError
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Damaged, Snapshot
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell, changed_parts
from fpl_tune.study.fingerprints import fingerprints

Output = dict[int, tuple[str, str | None]]
"""The output of a finished job: for each seed the hash of its split, and the name of the file of learned tensors, or
None if nothing was learned."""


@dataclass(eq=False)
class Job:
    """A job for an executor: the seeds of a leg, trained together until the driver ends it."""

    cell: Cell
    seeds: tuple[int, ...]
    prints: Mapping[str, Any] = field(default_factory=dict)
    """Fingerprints of what its results depend on."""
    rungs: tuple[int, ...] = ()
    """Rounds after which the job may end: it writes a checkpoint and reports immediately."""
    rounds: list[list[Record]] = field(default_factory=list)
    """Rounds of this attempt, with one record per seed in each."""
    attempt: int = 0
    """Attempts that ended with an error so far."""
    crashes: int = 0
    """Crashes of its process in a row without a new round."""
    reached: int = 0
    """Rounds of earlier attempts and legs, already reported to callbacks."""
    alone: bool = False
    """True if the job must run without other trials on its device, because it ran out of memory next to some."""
    gpus: float = 0.0
    """Share of a GPU that it has while it runs."""

    @property
    def path(self) -> str:
        """Path of the checkpoint's folder, relative to the study's folder or URL."""
        text = "-".join(map(str, self.seeds))
        return f"cells/{self.cell.id}/ckpt-{text if len(text) <= 24 else digest(text, 6)}"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the method's source, the data and the weights; a checkpoint with another one is not used."""
        return "-".join(str(self.prints.get(name)) for name in ("method", "data", "weights"))


@dataclass(frozen=True)
class ExecutionContext:
    """Settings that all jobs of a study share: plain values, which can be sent to other processes."""

    folder: Path
    """The study's folder."""
    cache_dir: Path
    execution: ExecutionSpec = field(default_factory=ExecutionSpec)
    """The user's settings; the fields below are resolved for this machine or cluster."""
    device: str = "cpu"
    threads: int = 1
    parallel: int = 1
    """Concurrent trials on this machine."""
    gpus: float | None = 0.0
    """GPUs per trial; None: the share that its memory needs."""
    gpu_bytes: int = 0
    """Memory of the smallest GPU, if the share of a trial depends on it; else 0."""
    address: str | None = None
    data_roots: tuple[str, ...] = ()

    @property
    def study(self) -> str:
        return self.folder.name

    @property
    def no_shared_folder(self) -> bool:
        """True if nodes share a URL, not the study's folder."""
        return self.address is not None and self.execution.checkpoints is not None

    @property
    def storage(self) -> str:
        """Folder or fsspec URL of checkpoints and prompts, which all nodes share."""
        return self.execution.checkpoints or str(self.folder)


class Changed(EnvironmentProblem):
    """The method's source, data or weights on a worker are not those with which the study started."""


class Interrupted(SystemExit):
    """The user's second signal, which ends the process."""


FailureKind = Literal["error", "rejected", "diverged", "memory", "died", "disk", "environment"]


@dataclass(frozen=True)
class Failure:
    """The failure of a job."""

    error: str
    kind: FailureKind = "error"
    """error: an exception; rejected: a configuration that cannot run; diverged: NaN or inf; memory: out of memory;
    died: the process ended; disk: a full or read-only disk; environment: not caused by a trial, such as a node that
    cannot run any."""
    trace: str = ""
    """The traceback."""

    @classmethod
    def of(cls, problem: Exception | SystemExit) -> Failure:
        """The failure of an exception, as one line; for an error of a plug-in, with the place."""
        if isinstance(problem, SystemExit):  # otherwise the study would end as if it were done
            problem = RuntimeError(f"a method called sys.exit({problem.code!r})").with_traceback(problem.__traceback__)
        error = " ".join(str(problem).split()) if isinstance(problem, FplTuneError) else plugins.describe_error(problem)
        kind: FailureKind = "error"
        if isinstance(problem, Diverged):
            kind = "diverged"
        elif is_poisoned(problem):
            kind = "died"
        elif is_out_of_memory(problem):
            kind = "memory"
        elif refused(problem):
            kind = "disk"
        elif isinstance(problem, StorageError | Changed):
            kind = "environment"
        elif isinstance(problem, ConfigError):
            kind = "rejected"
        return cls(error, kind, "".join(traceback.format_exception(problem)))


@dataclass(frozen=True)
class Report:
    """The report of a step."""

    rounds: list[list[Record]]
    """New rounds since the last report, with one record per seed in each."""
    output: Output | None = None
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    last: bool = True
    """True if no step follows."""
    resumed: bool = False
    """True if the rounds come from a checkpoint: an earlier run has trained them."""


class JobRun:
    """Runs a job, in this process or another: resumes from its checkpoint, keeps its history, writes checkpoints.

    Args:
        job: the job.
        context: settings of the study.
        resumes: True to continue from the job's own checkpoint.
        simulate: makes the simulation; None: `Simulation`. Tests pass a stand-in that trains nothing.
    """

    def __init__(
        self,
        job: Job,
        context: ExecutionContext,
        *,
        resumes: bool = True,
        simulate: Callable[..., Simulation] | None = None,
    ) -> None:
        self.job, self.context, self.resumes, self._simulate = job, context, resumes, simulate
        self.folder = context.folder / job.path
        self.simulation: Simulation | None = None
        self.history: list[list[Record]] = []
        url = context.execution.checkpoints
        self._storage = RemoteStorage(url) if url and resumes else None
        self._warnings: list[str] = []
        self._reported = 0

    def step(self, seconds: float, stopping: Callable[[], bool]) -> Report:
        """Runs rounds until `seconds` have passed, at least one.

        The first step loads the simulation. Where it finds a checkpoint, it only reports the checkpoint's rounds, after
        which the driver may pause or stop the job.

        Args:
            seconds: time after which no further round starts.
            stopping: returns True to stop after the present round with a checkpoint.

        Returns:
            The report. Failures are reported in it, not raised.
        """
        if self.simulation is None and stopping():
            return Report([])
        output = failure = None
        stopped = resumed = False
        try:
            resumed = self.simulation is None and self.begin().round > 0
            simulation, until = self.begun, time.perf_counter() + seconds
            while not simulation.done and not resumed:
                self.advance()
                stopped, at_rung = stopping(), simulation.round in self.job.rungs
                due = stopped or at_rung or simulation.round % self.context.execution.checkpoint_every == 0
                if due and not simulation.done:
                    self.checkpoint()
                if stopped or at_rung or time.perf_counter() >= until:
                    break
            if simulation.done:
                output = self._output(simulation)
        except Interrupted:
            raise
        except (Exception, SystemExit) as problem:
            failure = Failure.of(problem)
        fresh, self._reported = self.history[self._reported :], len(self.history)
        last = stopped or bool(output or failure)
        return Report(fresh, output, failure, self.warnings(), last, resumed)

    @property
    def begun(self) -> Simulation:
        """The simulation, which `begin` has loaded."""
        assert self.simulation is not None
        return self.simulation

    def warnings(self) -> list[str]:
        """Returns the warnings since the last call."""
        fresh = list(self._warnings)
        self._warnings.clear()
        return fresh

    def begin(self) -> Simulation:
        """Loads the simulation, and the newest usable checkpoint with its history.

        Raises:
            Changed: the method's source, data or weights are not those of the job.
        """
        context, execution = self.context, self.context.execution
        simulation = (self._simulate or Simulation)(
            self.job.cell.run,
            self.job.seeds,
            cache_dir=context.cache_dir,
            device=context.device,
            block=execution.block,
            graphs=None if execution.graphs == "auto" else execution.graphs,
            threads=execution.threads,
            warn=self._warnings.append,
        )
        if self.job.prints:
            here = fingerprints(simulation.run, simulation.world)
            if changed := changed_parts(self.job.prints, here):
                raise Changed(
                    f"The {' and '.join(changed)} of {self.job.cell.label} on {socket.gethostname()} "
                    f"{'differs' if changed == ['method source'] else 'differ'} from what the study started with. Give "
                    "all nodes the same files, and run the same command again."
                )
        if self._storage:
            self._storage.pull(f"{context.study}/{self.job.path}", self.folder)
        for snapshot in checkpoint.usable(self.folder) if self.resumes else ():
            try:
                if isinstance(snapshot, Damaged):
                    raise snapshot
                if snapshot.meta["fingerprint"] == self.job.fingerprint:
                    rounds, number = snapshot.meta["rounds"], snapshot.meta["round"]
                    if not isinstance(rounds, list) or len(rounds) != number:
                        raise ValueError(f"its history does not have {number} rounds")
                    simulation.restore(snapshot)
                    self.history = rounds
                    break
            except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as problem:
                self._warnings.append(f"skipped a checkpoint that cannot be used: {problem}")
        self.simulation = simulation
        return simulation

    def advance(self) -> Simulation:
        """Runs one round."""
        self.history.append(self.begun.step())
        return self.begun

    def snapshot(self) -> Snapshot:
        """The state after the last round, with the history."""
        tensors, meta = self.begun.snapshot()
        return Snapshot(tensors, {**meta, "fingerprint": self.job.fingerprint, "rounds": self.history})

    def checkpoint(self) -> None:
        """Writes a checkpoint. If that fails, older checkpoints stay, and a warning is added."""
        try:
            checkpoint.write(self.folder, self.snapshot())
            self._send()
        except OSError as problem:
            remote = isinstance(problem, StorageError)
            where, remedy = (problem.filename, "Check the permissions") if remote else (self.folder, "Free some space")
            self._warnings.append(
                f"A checkpoint after round {self.begun.round} could not be written ({problem.strerror}) to {where}. "
                f"The study goes on; a kill would lose rounds since the one before. {remedy}."
            )

    def _send(self) -> None:
        if self._storage and self.folder.is_dir():
            self._storage.push(self.folder, f"{self.context.study}/{self.job.path}")

    def _output(self, simulation: Simulation) -> Output:
        """Writes the learned tensors next to the checkpoint; the driver moves them to the store from there."""
        output, deployed, learned = {}, simulation.deployed(), simulation.prompts()
        for seed, task in zip(simulation.seeds, simulation.tasks, strict=True):
            name = f"prompts-{seed}.safetensors" if learned.get(seed) else None
            if name is not None:
                leaves, facts = deployed[seed]
                with atomic_write(self.folder / name) as temporary:
                    owner = {"cell": self.job.cell.id, "seed": str(seed)}
                    save_tensors({**learned[seed], **leaves}, temporary, {**facts, **owner})
            output[seed] = task.split_hash, name
        self._send()
        return output
