"""Starting Ray on this machine, or joining a cluster."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

import fpl_tune
from fpl_tune.core import plugins
from fpl_tune.core.device import cores
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.resources import head_of

CONNECT_SECONDS = 5.0
"""Time limit of a TCP connection to the head."""
LOST_SECONDS = 20.0
"""A head that does not answer for this long is lost."""

ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # glibc keeps what threads that encode images free in heaps of their own: 200 MB a worker
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the check of a node, which reserves no GPU, sees its GPUs
    "RAY_AIR_NEW_OUTPUT": "0",  # no tables of Tune
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_gcs_rpc_server_connect_timeout_s": "30",  # of the head; Ray's 5 s are too few where its machine is busy
    "RAY_worker_niceness": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",  # Tune's own state is never restored
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # the searcher limits how many trials run at once
    "TUNE_RESULT_BUFFER_LENGTH": "1",
}
"""Ray's settings while a study runs; those that the user has set stay."""


@contextmanager
def connected(
    address: str | None,
    *,
    ship: bool = True,
    log: Path | None = None,
    on_lost: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Starts Ray on this machine, or joins a cluster.

    Args:
        address: of the cluster's head, `auto`, or None to start Ray.
        ship: whether the cluster's workers run the code of this process.
        log: file of Ray's own messages, such as tracebacks of lost workers; None: they are printed.
        on_lost: called before the process ends because Ray is lost; see `_watched`.

    Yields:
        A temporary folder.

    Raises:
        EnvironmentProblem: Ray cannot be started or joined.
        ConfigError: the address is malformed.
    """
    for name in ("ray", "ray.tune", "ray.data", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)
    head = head_of(address) if address is not None else None
    if head is not None and not _answers(*head):
        raise _unreachable(address, "nothing answers there")
    options: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    if address is not None:
        options = {"address": address, "namespace": "fpl-tune", "runtime_env": runtime_env() if ship else None}
    handler = logging.FileHandler(log or os.devnull, delay=True)  # the file exists from the first message on
    with _environment(address is None) as folder:
        try:
            with _handlers_kept():
                ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (Exception, SystemExit) as problem:  # Ray exits if the head does not answer
            raise _unreachable(address, str(problem)) from None
        try:
            logging.getLogger("ray").addHandler(handler)
            with _watched(address, on_lost):
                yield folder
        finally:
            ray.shutdown()
            logging.getLogger("ray").removeHandler(handler)
            handler.close()


@contextmanager
def _watched(address: str | None, on_lost: Callable[[], object]) -> Iterator[None]:
    """Ends the process once Ray's head, or the node of this process, has not answered for `LOST_SECONDS`.

    Calls to a lost head neither return nor can be interrupted; Ray itself ends the process after a minute, with a dump.
    """
    over, parts = threading.Event(), [] if (address or "").startswith("ray://") else addresses()

    def watch() -> None:
        seen = time.monotonic()
        while not over.wait(1.0):
            if all(_answers(*part) for part in parts):
                seen = time.monotonic()
            elif time.monotonic() - seen > LOST_SECONDS:
                with suppress(Exception):
                    on_lost()
                print(
                    f"error: lost Ray, which has not answered for {LOST_SECONDS:g} s. Finished results are stored; "
                    "restart Ray, or leave execution.address out, and run the same command to continue.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(EnvironmentProblem.exit_code)

    thread = threading.Thread(target=watch, name="ray-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def addresses() -> list[tuple[str, int]]:
    """Host and port of the head, and of the node that this process is connected through."""
    here = ray.get_runtime_context()
    mine = next(node for node in ray.nodes() if node["NodeID"] == here.get_node_id())
    host, _, port = here.gcs_address.rpartition(":")
    return [(host.strip("[]"), int(port)), (mine["NodeManagerAddress"], mine["NodeManagerPort"])]


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=CONNECT_SECONDS):
        return True
    return False


@contextmanager
def _environment(own: bool) -> Iterator[str]:
    """Sets Ray's variables for the study and restores them. Yields the temporary folder of our own Ray.

    Variables of others stay as they are by then: MLflow's are set by the recorder's thread meanwhile.
    The folder's path is short, since the paths of Ray's sockets are limited to 107 characters. The folder of Ray's
    token, which Ray makes for all to read, is made private.
    """
    before, private = dict(os.environ), Path.home() / ".ray"
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"fpl-{os.getpid()}-", dir=_SHORT, ignore_cleanup_errors=True) as home:
        for name, value in {**ENVIRONMENT, **({"RAY_TMPDIR": home} if own else {})}.items():
            os.environ.setdefault(name, value)
        with suppress(OSError):
            private.mkdir(exist_ok=True)
            private.chmod(0o700)
        try:
            yield home
        finally:
            for name in {*os.environ, *before}:
                if name in ENVIRONMENT or name.startswith("RAY_"):
                    os.environ.pop(name, None)
                    os.environ.update({name: before[name]} if name in before else {})


_SHORT = "/tmp" if os.path.isdir("/tmp") else None


def sweep() -> None:
    """Removes the temporary folders of processes that were killed: `fpl-<process>-<name>`."""
    for path in Path(_SHORT or tempfile.gettempdir()).glob("fpl-*-*"):
        number = path.name.split("-")[1]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keeps this process's handlers of SIGINT and SIGTERM, which Ray replaces."""
    mine = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if mine}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _unreachable(address: str | None, problem: str) -> EnvironmentProblem:
    problem = " ".join(problem.split())[-400:].rstrip(".")
    if address is None:
        return EnvironmentProblem(f"cannot start Ray: {problem}. Use execution.executor=inline to run without it.")
    return EnvironmentProblem(
        f"cannot join the Ray cluster at {address}: {problem}. Check execution.address or RAY_ADDRESS, which `ray "
        "start` prints, the token (RAY_AUTH_TOKEN_PATH, or RAY_AUTH_MODE=disabled), and that Ray and Python have the "
        "same versions here and there."
    )


def runtime_env() -> dict[str, Any]:
    """Ray's runtime environment of a study: this package and the modules of plug-in methods.

    Nodes need the requirements of fpl-tune, not fpl-tune itself.
    """
    package = Path(inspect.getfile(fpl_tune)).parent
    sent = (plugins.VARIABLE, "MALLOC_ARENA_MAX", "RAY_CHDIR_TO_TRIAL_DIR", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
    known = {**ENVIRONMENT, **os.environ}
    variables = {name: known[name] for name in sent if name in known}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in plugins.modules()]
    paths = {Path(file).resolve() for file in files if file}
    mine = sorted(str(path.parent if path.name == "__init__.py" else path) for path in paths)
    return {"py_modules": [str(package), *mine], "excludes": ["**/__pycache__/", "*.pyc"], "env_vars": variables}
