"""Starting Ray on this machine, or joining a cluster."""

from __future__ import annotations

import inspect
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
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
from fpl_tune.core.errors import EnvironmentProblem, FplTuneError
from fpl_tune.execute.ray.nodes import ANSWER_SECONDS
from fpl_tune.execute.resources import head_of

JOIN_SECONDS = max(60.0, ANSWER_SECONDS)
"""Time limit of joining a cluster: 5 s on an idle machine. Ray itself tries for minutes."""
CONNECT_SECONDS = 5.0
"""Time limit of a TCP connection to the head."""
LOST_SECONDS = 20.0
"""A head that does not answer for this long is lost."""

ENVIRONMENT = {
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

_JOIN = "import sys, ray; ray.init(address=sys.argv[1], namespace='fpl-tune', log_to_driver=False)"


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
    with _environment(address is None) as folder:
        try:
            options: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
            if address is None:
                _private_token()
            else:
                _check_joining(address)
                options = {"address": address, "namespace": "fpl-tune", "runtime_env": runtime_env() if ship else None}
            with _signals_kept():
                ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except FplTuneError:
            raise
        except (Exception, SystemExit) as problem:  # Ray exits if the head does not answer
            raise _unreachable(address, str(problem)) from None
        try:
            with _logged(log), _watched(address, on_lost):
                yield folder
        finally:
            if address is None:
                _end_own()
            else:
                ray.shutdown()


@contextmanager
def _logged(log: Path | None) -> Iterator[None]:
    """Writes messages of Ray's loggers to a file, which exists from the first one on. `ray.init` removes handlers."""
    if log is None:
        yield
        return
    logger, handler = logging.getLogger("ray"), logging.FileHandler(log, delay=True)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _watched(address: str | None, on_lost: Callable[[], object]) -> Iterator[None]:
    """Ends the process once Ray's head, or the node of this process, has not answered for `LOST_SECONDS`.

    Calls to a lost head neither return nor can be interrupted; Ray itself ends the process after a minute, with a dump.
    """
    over, parts = threading.Event(), {} if (address or "").startswith("ray://") else addresses()

    def watch() -> None:
        seen = time.monotonic()
        while not over.wait(1.0):
            silent = next((part for part, there in parts.items() if not _answers(there)), None)
            if silent is None:
                seen = time.monotonic()
            elif time.monotonic() - seen > LOST_SECONDS:
                with suppress(Exception):
                    on_lost()
                said = (
                    f"error: lost Ray: its {silent} at {parts[silent]} has not answered for {LOST_SECONDS:g} s. "
                    "Finished results are stored; restart Ray, or leave execution.address out, and run the same "
                    "command to continue."
                )
                with suppress(Exception):
                    print(said, file=sys.stderr, flush=True)
                os._exit(EnvironmentProblem.exit_code)

    thread = threading.Thread(target=watch, name="ray-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def addresses() -> dict[str, str]:
    """Addresses of the head and of the node that this process is connected through."""
    here = ray.get_runtime_context()
    mine = next(node for node in ray.nodes() if node["NodeID"] == here.get_node_id())
    return {"head": here.gcs_address, "node": f"{mine['NodeManagerAddress']}:{mine['NodeManagerPort']}"}


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS):
        return True
    return False


_TO_DISCONNECT = 0.3  # seconds in which the driver leaves its raylet after Ray counts as shut down


def _end_own() -> None:
    """Ends the Ray that this process started: disconnects, and kills its processes.

    They block SIGTERM (see `_signals_kept`), for which `ray.shutdown` alone would wait a second each.
    """
    processes: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(os.environ["RAY_TMPDIR"] in word for word in child.cmdline()):
                processes += [*child.children(recursive=True), child]

    def kill() -> None:
        while ray.is_initialized():
            time.sleep(0.01)
        time.sleep(_TO_DISCONNECT)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    ray.shutdown()
    thread.join()


@contextmanager
def _environment(own: bool) -> Iterator[str]:
    """Sets Ray's variables for the study and restores the environment. Yields the temporary folder of our own Ray.

    The folder's path is short, since the paths of Ray's sockets are limited to 107 characters.
    """
    before, short = dict(os.environ), "/tmp" if os.path.isdir("/tmp") else None
    with tempfile.TemporaryDirectory(prefix=f"fpl-{os.getpid()}-", dir=short, ignore_cleanup_errors=True) as home:
        for name, value in {**ENVIRONMENT, **({"RAY_TMPDIR": home} if own else {})}.items():
            os.environ.setdefault(name, value)
        try:
            yield home
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps this process's handlers of SIGINT and SIGTERM; Ray's processes start with both signals blocked.

    Terminals, `timeout` and batch systems signal the whole process group. Ray's processes must outlive the signal
    until trials have written their checkpoints.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _private_token() -> None:
    """Writes Ray's token with mode 0600 if there is none. Ray 2.60 writes it with the process's umask."""
    if os.environ.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        return
    path = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))


def _check_joining(address: str) -> None:
    """Joins the cluster in a child process first, which can be given a time limit.

    Raises:
        ConfigError: the address is malformed.
        EnvironmentProblem: nothing answers there, or it is not a Ray cluster that lets this process in.
    """
    head = head_of(address)
    try:
        if head is not None:
            socket.create_connection(head, timeout=CONNECT_SECONDS).close()
        joined = subprocess.run(
            [sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=JOIN_SECONDS, check=False
        )
    except OSError:
        raise _unreachable(address, "nothing answers there") from None
    except subprocess.TimeoutExpired:
        raise _unreachable(
            address, f"what answers there did not accept this process within {JOIN_SECONDS:g} s"
        ) from None
    if joined.returncode:
        raise _unreachable(address, (joined.stderr.strip().splitlines() or ["no reason given"])[-1])


def _unreachable(address: str | None, problem: str) -> EnvironmentProblem:
    problem = " ".join(problem.split())[-400:].rstrip(".")
    if address is None:
        return EnvironmentProblem(f"cannot start Ray: {problem}. Use execution.executor=inline to run without it.")
    remedy = (
        "Check execution.address or RAY_ADDRESS; `ray start --head` prints the address. If the cluster uses a token, "
        "name its file in RAY_AUTH_TOKEN_PATH; if it does not, set RAY_AUTH_MODE=disabled."
    )
    if "Version mismatch" in problem:
        remedy = "Install the same versions of Ray and Python here and on the cluster."
    elif address == "auto":
        remedy = "Start one with `ray start --head`, or name the head: execution.address=host:port."
    return EnvironmentProblem(f"cannot join the Ray cluster at {address}: {problem}. {remedy}")


def runtime_env() -> dict[str, Any]:
    """Ray's runtime environment of a study: this package and the modules of plug-in methods.

    Nodes need the requirements of fpl-tune, not fpl-tune itself.
    """
    package = Path(inspect.getfile(fpl_tune)).parent
    variables = {
        name: os.environ[name]
        for name in (plugins.VARIABLE, "RAY_CHDIR_TO_TRIAL_DIR", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
        if name in os.environ
    }
    return {"py_modules": [str(package), *_plugins()], "excludes": ["**/__pycache__/", "*.pyc"], "env_vars": variables}


def _plugins() -> list[str]:
    """Files and packages of plug-ins that are imported and not installed, such as those in the user's folder."""
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in plugins.modules()]
    paths = {Path(file).resolve() for file in files if file}
    own = [path for path in paths if not any(path.is_relative_to(folder) for folder in installed)]
    return sorted(str(path.parent if path.name == "__init__.py" else path) for path in own)
