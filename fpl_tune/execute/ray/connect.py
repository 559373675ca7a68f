"""Starting Ray on this machine, or joining a cluster."""

from __future__ import annotations

import itertools
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
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil
import ray

from fpl_tune.core import plugins
from fpl_tune.core.device import cores
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.ray.group import apart
from fpl_tune.execute.resources import head_of

CONNECT_SECONDS = 5.0
"""Time limit of a TCP connection to the head."""
LOST_SECONDS = 20.0
"""Seconds without an answer after which the head counts as lost."""
_PROCESSES_EVERY = 5
"""Seconds between two listings of Ray's processes."""

ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # else glibc keeps the memory that image threads free in separate heaps: 200 MB a worker
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # lets the check of a node, which reserves no GPU, see its GPUs
    "RAY_AIR_NEW_OUTPUT": "0",  # no tables of Tune
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_gcs_rpc_server_connect_timeout_s": "30",  # of the head; Ray's 5 s are not enough on a busy machine
    # By default a worker without messages closes its connection after 20 s, which the driver notices only after 300 s
    # if the link was cut meanwhile; both take a node as dead after half a minute.
    "RAY_grpc_keepalive_timeout_ms": "120000",
    "RAY_worker_niceness": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",  # Tune's own state is never restored
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # the searcher limits the number of concurrent trials
    "TUNE_RESULT_BUFFER_LENGTH": "1",
}
"""Ray's settings while a study runs; variables that the user has set take precedence."""
_LOGGERS = ("ray", "ray.tune", "ray.data", "ray.air")
_SENT = (
    "MALLOC_ARENA_MAX",
    "RAY_CHDIR_TO_TRIAL_DIR",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "RAY_grpc_keepalive_timeout_ms",
)
"""Settings that are also sent to the workers of a cluster."""


@contextmanager
def connected(
    address: str | None,
    *,
    ship: bool = True,
    log: Path | None = None,
    on_lost: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Starts Ray on this machine, joins a cluster, or uses the Ray that this process has started or joined already.

    The latter, such as that of a `tune.Tuner`, is left as it is: settings of `ray.init` and of its workers are the
    application's, and it still runs afterwards.

    Args:
        address: address of the cluster's head, `auto`, or None to start Ray.
        ship: True to send the code of this process to the cluster's workers.
        log: file for Ray's own messages, such as tracebacks of lost workers; None: they are dropped.
        on_lost: called before the process ends because Ray is lost; see `_watched`.

    Yields:
        A temporary folder.

    Raises:
        EnvironmentProblem: Ray cannot be started or joined.
        ConfigError: the address is malformed, or this process uses the Ray at another one.
    """
    head = head_of(address) if address is not None else None
    if ray.is_initialized():
        _reject_other(address, head)
        with _environment(own=False) as folder, _errors_alone(), _logged(log), _watched(address, on_lost, set()):
            yield folder
        return
    if head is not None and not _answers(*head):
        raise _unreachable(address, "nothing answers there")
    options: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    if address is not None:
        options = {"address": address, "namespace": "fpl-tune", "runtime_env": runtime_env() if ship else None}
    others, children = set(threading.enumerate()), set(psutil.Process().children())
    with _environment(address is None) as folder, _errors_alone():
        if address is None:
            options["runtime_env"] = _folder_behind_libraries(Path(folder, "empty"))
        printed: list[str] = []
        group = apart() if address is None else nullcontext()
        try:
            with group, _handlers_kept(), _held_back(printed):
                ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (Exception, SystemExit) as problem:  # Ray exits at SIGTERM, and if the head does not answer
            if isinstance(problem, SystemExit) and problem.code == signal.SIGTERM:
                ray.shutdown()
                signal.raise_signal(signal.SIGTERM)  # to the study's handler: it ends without Ray
                yield folder
                return
            refused = "InvalidAuthToken" in "".join(printed)
            raise _unreachable(address, "it has another token" if refused else str(problem)) from None
        output: Any = _Shared(sys.stdout, set(threading.enumerate()) - others)
        with _logged(log):
            try:
                started = set(psutil.Process().children()) - children
                with redirect_stdout(output), _watched(address, on_lost, started):
                    yield folder
            finally:
                output.threads.add(threading.current_thread())
                with redirect_stdout(output):  # Ray prints the buffered lines of its threads to it
                    ray.shutdown()


def _reject_other(address: str | None, head: tuple[str, int] | None) -> None:
    """Checks that an address is that of the Ray which this process uses.

    Raises:
        ConfigError: it is another one.
    """
    if head is None or str(address).startswith("ray://"):
        return
    (host, port), asked = addresses()[0], head[0]
    with suppress(OSError):  # a name that nobody knows
        host, asked = socket.gethostbyname(host), socket.gethostbyname(asked)
    if head[1] != port or (asked != host and not asked.startswith("127.")):
        raise ConfigError(
            f"This process already uses the Ray at {host}:{port}, but execution.address or RAY_ADDRESS is {address}. "
            "Leave it out to run the study there, or call ray.shutdown() first."
        )


@contextmanager
def _errors_alone() -> Iterator[None]:
    """Silences Ray's loggers, but for errors."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _LOGGERS}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _logged(log: Path | None) -> Iterator[None]:
    """Sends Ray's messages to a file; None: they are dropped. `ray.init` removes handlers that are older."""
    handler = logging.FileHandler(log or os.devnull, delay=True)  # the file is created with the first message
    logging.getLogger("ray").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("ray").removeHandler(handler)
        handler.close()


@contextmanager
def _held_back(printed: list[str]) -> Iterator[None]:
    """Captures in a list what Ray writes to the standard error descriptor, such as a line a second without a head."""
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))


class _Shared:
    """A stream for `sys.stdout` that sends lines of Ray's threads, such as the last lines of a node, to Ray's log.

    Args:
        stream: receives everything else.
        threads: Ray's threads.
    """

    def __init__(self, stream: TextIO, threads: set[threading.Thread]) -> None:
        self._stream, self.threads = stream, threads

    def write(self, text: str) -> int:
        """Writes a string."""
        if threading.current_thread() not in self.threads:
            return self._stream.write(text)
        if text.strip():
            logging.getLogger("ray").error("%s", text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _watched(address: str | None, on_lost: Callable[[], object], started: set[psutil.Process]) -> Iterator[None]:
    """Ends the process once Ray's head, or the node of this process, has not answered for `LOST_SECONDS`.

    Calls to a lost head neither return nor can be interrupted; Ray itself would end the process after a minute, with a
    dump. The processes that Ray has `started` here, and their children, are ended too.
    """
    over, servers = threading.Event(), [] if (address or "").startswith("ray://") else addresses()

    def watch() -> None:
        seen, family = time.monotonic(), set(started)
        for count in itertools.count():
            if over.wait(1.0):
                return
            if all(_answers(*server) for server in servers):
                seen = time.monotonic()
                if count % _PROCESSES_EVERY == 0:  # when a process dies, its children get another parent
                    for process in started:
                        with suppress(psutil.Error):
                            family.update(process.children(recursive=True))
            elif time.monotonic() - seen > LOST_SECONDS:
                with suppress(Exception):
                    on_lost()
                for process in family:
                    with suppress(psutil.Error):  # psutil compares start times, so a reused id is safe
                        process.kill()
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

    Other variables are not restored: the recorder's thread sets MLflow's meanwhile. The folder's path is short, since
    paths of Ray's sockets are limited to 107 characters. The folder of Ray's token, which Ray would create readable for
    everyone, is made private.
    """
    before, private = dict(os.environ), Path.home() / ".ray"
    remove_leftover_folders()
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


def remove_leftover_folders() -> None:
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


def _folder_behind_libraries(empty: Path) -> dict[str, Any]:
    """The part of Ray's runtime environment that keeps files of the current folder from hiding libraries in workers.

    Ray puts the driver's folder in front of `sys.path` in workers without a `working_dir`. Theirs is therefore an empty
    one, from which they return to the driver's folder, with the driver's `sys.path`.
    """
    empty.mkdir()
    here, path = os.getcwd(), [*sys.path]

    def enter() -> None:  # Ray pickles it by value: nothing of fpl-tune is imported before `sys.path` is set
        os.chdir(here)
        sys.path[:] = path

    return {"working_dir": str(empty), "worker_process_setup_hook": enter}


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

    Nodes need only the requirements of fpl-tune, not fpl-tune itself.
    """
    package = Path(__file__).parents[2]
    environment = {**ENVIRONMENT, **os.environ}
    variables = {name: environment[name] for name in (plugins.VARIABLE, *_SENT) if name in environment}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in plugins.modules()]
    paths = {Path(file).resolve() for file in files if file}
    mine = sorted(str(path.parent if path.name == "__init__.py" else path) for path in paths)
    return {"py_modules": [str(package), *mine], "excludes": ["**/__pycache__/", "*.pyc"], "env_vars": variables}
