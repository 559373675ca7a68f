"""Executor `ray`: jobs as Ray Tune trials on actors that are reused. The only file that imports ray.

Ray executes and remembers nothing: what is to be done comes from the desk through a searcher, what was done goes back
through a scheduler, checkpoints and prompts lie in the study's folder, which all nodes of a cluster must share.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.study.inline import attempt
from fpl_tune.study.job import Desk, Failure, Job, Product, Running, Setup, stop_asked
from fpl_tune.study.resources import cores
from fpl_tune.trial import Record

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # a trial is the work, not something beside it
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
}
for _name, _value in QUIET.items():  # ray reads them when it is imported
    os.environ.setdefault(_name, _value)

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray import tune
        from ray.tune.schedulers import FIFOScheduler, TrialScheduler
        from ray.tune.search import Searcher
except ImportError as problem:
    raise EnvironmentProblem(
        f"execution.executor=ray needs Ray Tune, but it cannot be imported ({problem}). "
        "Install 'ray[tune]', or use execution.executor=inline."
    ) from None

STEP_SECONDS = 0.5
"""Rounds of one step: at least so long, so that what a step costs Ray is a small share of it."""
CONNECT_SECONDS = 10.0
_PATH_ROOM = 40  # characters of a temporary folder that leave Ray's sockets within the system's limit of 107


def execute(desk: Desk, setup: Setup) -> None:
    """Runs all jobs of the desk.

    Raises:
        EnvironmentProblem: Ray cannot be started or reached.
    """
    with _connected(setup) as parallel, _scratch(setup.folder) as scratch:
        link = _Link(desk)
        share = min(float(setup.threads), cores() / parallel) if setup.address is None else setup.threads
        trainable = tune.with_resources(_Trainable, {"cpu": share, "gpu": setup.gpus})
        tuner = tune.Tuner(
            trainable,
            param_space={"setup": setup},
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=_Source(link),
                scheduler=_Listening(link),
                max_concurrent_trials=parallel,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="ray",
                storage_path=str(scratch),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuner.fit()
        if link.problem is not None:
            raise link.problem


# -- what runs in the actors ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """What a step tells the driver, as one leaf of Tune's result."""

    rounds: list[list[Record]]
    product: Product | None = None
    failure: Failure | None = None


class _Ticket:
    """A job on its way to an actor, short in Tune's own names and tables."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __repr__(self) -> str:
        return self.job.cell.id


class _Trainable(tune.Trainable):
    """Jobs one after the other on one actor; towers and features stay loaded in between."""

    def setup(self, config: dict[str, Any]) -> None:
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._take(new_config)
        return True

    def _take(self, config: dict[str, Any]) -> None:
        import torch

        self._setup: Setup = config["setup"]
        torch.set_num_threads(self._setup.threads)
        job: Job = config["ticket"].job
        self._running = attempt(lambda: Running(job, self._setup))

    def step(self) -> dict[str, Any]:
        running = self._running
        if isinstance(running, Failure):
            return {"told": _Told([], failure=running), "done": True}
        halted = False

        def stopping() -> bool:
            nonlocal halted
            halted = stop_asked(self._setup.folder)
            return halted

        rounds = attempt(lambda: running.advance(STEP_SECONDS, stopping))
        if isinstance(rounds, Failure):
            # What was heard by then counts: the rounds before the one that failed.
            return {"told": _Told(running.untold(), failure=rounds), "done": True}
        if not running.done:
            return {"told": _Told(rounds), "done": halted}
        product = attempt(running.product)
        if isinstance(product, Failure):
            return {"told": _Told(rounds, failure=product), "done": True}
        return {"told": _Told(rounds, product=product), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Checkpoints lie in the study's folder."""


# -- what runs in the driver ---------------------------------------------------------------------------------


class _Link:
    """The desk behind Tune's hooks. Tune takes exceptions of its hooks for failed trials, so they wait here."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.problem: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its hooks for a restore that is never used; terminals and databases do not pickle

    def next(self) -> Job | None:
        try:
            return self.desk.next()
        except Exception as problem:
            self.problem = problem
            return None

    @property
    def exhausted(self) -> bool:
        return self.problem is not None or self.desk.exhausted

    def hear(self, job: Job, told: _Told | None) -> bool:
        """Passes on what a step told; None: the actor died. False: the trial is to stop."""
        if self.problem is not None:
            return False
        try:
            if told is None:
                self.desk.failed(job, Failure("The process of the trial died (out of memory, or killed)."))
                return False
            if told.rounds and not self.desk.heard(job, told.rounds):
                return False
            if told.failure is not None:
                self.desk.failed(job, told.failure)
            elif told.product is not None:
                self.desk.finished(job, told.product)
        except Exception as problem:
            self.problem = problem
        return told is not None and self.problem is None


class _Source(Searcher):
    """Feeds jobs to Tune as it has room for them."""

    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link

    def suggest(self, trial_id: str) -> Any:
        job = self._link.next()
        if job is not None:
            return {"ticket": _Ticket(job)}
        return Searcher.FINISHED if self._link.exhausted else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Nothing to remember."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to remember."""


class _Listening(FIFOScheduler):
    """Passes results to the desk, and its decisions to Tune."""

    _supports_buffered_results: ClassVar[bool] = False  # type: ignore[misc]

    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link
        self._closed: set[str] = set()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if self._link.hear(trial.config["ticket"].job, result["told"]):
            return TrialScheduler.CONTINUE
        self._closed.add(trial.trial_id)
        return TrialScheduler.STOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if trial.trial_id not in self._closed:
            self._closed.add(trial.trial_id)
            self._link.hear(trial.config["ticket"].job, result["told"])

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        if trial.trial_id not in self._closed:
            self._closed.add(trial.trial_id)
            self._link.hear(trial.config["ticket"].job, None)


# -- the cluster ---------------------------------------------------------------------------------------------


@contextmanager
def _connected(setup: Setup) -> Iterator[int]:
    """A Ray of our own, or the cluster that was named; yields how many trials run at once."""
    for name in ("ray", "ray.tune", "ray.data", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    home = None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if setup.address is None:
                home = _short_home()
                ray.init(
                    address="local",
                    num_cpus=cores(),
                    include_dashboard=False,
                    _temp_dir=str(home),
                    **quiet,
                )
            else:
                _reachable(setup.address)
                ray.init(address=setup.address, **quiet)
    except EnvironmentProblem:
        raise
    except Exception as problem:
        where = "be started" if setup.address is None else f"be reached at {setup.address}"
        raise EnvironmentProblem(
            f"Ray must run, but it cannot {where} ({' '.join(str(problem).split())[:200]}). "
            "Use execution.executor=inline to do without it."
        ) from None
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():  # ray.init put its own there
            signal.signal(number, handler)
    try:
        parallel = setup.parallel
        if setup.address is not None and not setup.parallel_given:
            parallel = max(1, int(ray.cluster_resources().get("CPU", 1) // setup.threads))
        yield parallel
    finally:
        ray.shutdown()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)


def _short_home() -> Path:
    """A fresh folder whose path leaves room for Ray's sockets; those of processes that were killed are removed."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _PATH_ROOM:
        base = Path(os.sep, "tmp")
    for old in base.glob("fpl-*-*"):
        owner = old.name.split("-")[1]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"fpl-{os.getpid()}-", dir=base))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _reachable(address: str) -> None:
    """Raises `EnvironmentProblem` at once where nothing listens, instead of Ray's minutes of trying."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    until = time.monotonic() + CONNECT_SECONDS
    while True:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
            return
        if time.monotonic() > until - 1:
            raise EnvironmentProblem(
                f"Ray must be reachable at {address}, but nothing answers there. Check execution.address or "
                "RAY_ADDRESS, or leave it out to start Ray on this machine."
            )
        time.sleep(0.5)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Where Tune writes what we do not read; in the study's folder, so that all nodes see it."""
    scratch = folder / ".ray"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
