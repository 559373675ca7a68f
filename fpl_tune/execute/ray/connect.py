"""Starting a Ray of our own, or joining a cluster."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, utils, worker

from fpl_tune.errors import EnvironmentProblem, FplTuneError
from fpl_tune.execute.ray.address import answers
from fpl_tune.execute.ray.runtime_env import runtime_env
from fpl_tune.execute.ray.watch import RayGone
from fpl_tune.execute.resources import cores

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
LET_IN_SECONDS = 8
_PATH_ROOM = 22  # characters of a temporary folder that leave Ray's sockets within the system's limit of 107


@contextmanager
def connected(address: str | None, *, ship: bool = True) -> Iterator[None]:
    """A Ray of our own, or the cluster at an address; `ship`: its workers run the code of this process.

    Raises:
        EnvironmentProblem: it cannot be started or reached.
        ConfigError: the address is none.
    """
    for name in ("ray", "ray.tune", "ray.data", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)
    home = None
    heard: list[str] = []
    try:
        with warnings.catch_warnings(), _our_signals(), _our_environment():
            warnings.simplefilter("ignore")
            if address is None:
                home = short_home()
                own = {"num_cpus": cores(), "include_dashboard": False, "_temp_dir": str(home)}
                with _out_of_the_way(), _token_for_us_alone():
                    ray.init(address="local", **own, **_QUIET)
            else:
                answers(address)
                with _said(heard), _soon():
                    ray.init(
                        address=address, namespace="fpl-tune", runtime_env=runtime_env() if ship else None, **_QUIET
                    )
    except FplTuneError:
        raise
    except (Exception, SystemExit) as problem:  # ray exits where the head does not answer
        where = "be started" if address is None else f"be reached at {address}"
        raise EnvironmentProblem(
            f"Ray must run, but it cannot {where} ({' '.join([str(problem), *heard[-1:]])[:400].strip()}). "
            f"{_remedy(address, str(problem))}"
        ) from None
    gone = False
    try:
        with _notices():
            yield
    except RayGone:
        gone = True
        raise
    finally:
        if not gone:
            ray.shutdown()
            _forget_tokens()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)


def count_nodes() -> int:
    """Living nodes of the cluster that is joined."""
    return sum(node["Alive"] for node in ray.nodes())


def say(notice: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    """Ray's word on nodes and memory, the first sentence: on standard error, where Ray itself prints among results.

    Args:
        notice: as Ray's listening thread has it; `lines` are its messages.
        ignore_prefix: part of Ray's signature.
    """
    for message in notice["lines"]:
        sentence = re.split(r"(?<=[\w)]{2}[.])\s+(?=[A-Z])|\s+This can happen when", " ".join(message.split()))[0]
        print(f"Ray: {sentence}", file=sys.stderr)


@contextmanager
def _notices() -> Iterator[None]:
    before = worker.print_to_stdstream
    worker.print_to_stdstream = say
    try:
        yield
    finally:
        worker.print_to_stdstream = before


@contextmanager
def _said(lines: list[str]) -> Iterator[None]:
    """What Ray's own libraries print on standard error meanwhile, as lines; they say the same once a second."""
    with tempfile.TemporaryFile() as heard:
        kept = os.dup(2)
        os.dup2(heard.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            heard.seek(0)
            lines += heard.read().decode(errors="replace").splitlines()


@contextmanager
def _soon() -> Iterator[None]:
    """A head that answers but does not let us in is asked for `LET_IN_SECONDS`, not for 20."""
    name = "NUM_REDIS_GET_RETRIES"  # ray's own; tries are a second apart
    before = getattr(ray_constants, name, None)
    setattr(ray_constants, name, LET_IN_SECONDS)
    try:
        yield
    finally:
        setattr(ray_constants, name, before)


@contextmanager
def _our_signals() -> Iterator[None]:
    """Ray leaves signals to who had them before: its own answer is to exit at once, whatever is half done.

    Its libraries put theirs below Python's, so that Python's are set again.
    """
    before = utils.set_sigterm_handler
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    utils.set_sigterm_handler = lambda sigterm_handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _forget_tokens() -> None:
    """What the environment says of tokens is read again by the next connection.

    A Ray of our own asks for one. A process that went on asking would turn away the cluster that it joins next, which
    then takes it for dead and removes its actors (the symptom of ray#54841).
    """
    private: Any = sys.modules.get("ray._raylet")  # compiled, without types
    with suppress(AttributeError):
        private.AuthenticationTokenLoader.instance().reset_cache()
        private.Config.initialize("")


@contextmanager
def _token_for_us_alone() -> Iterator[None]:
    """Only we may read the token that Ray writes to ~/.ray where there is none: whoever has it runs code as us.

    Ray 2.60 leaves the file to the process's umask, with which others can read it on most machines.
    """
    setup: Any = sys.modules.get("ray._private.authentication.authentication_token_setup")  # not in every release
    write: Any = getattr(setup, "generate_and_save_token", None)
    if write is None:
        yield
        return

    def written() -> None:
        mask = os.umask(0o077)
        try:
            write()
        finally:
            os.umask(mask)

    setup.generate_and_save_token = written
    try:
        yield
    finally:
        setup.generate_and_save_token = write


@contextmanager
def _our_environment() -> Iterator[None]:
    """Ray tells its own processes by variables that they are to ask for a token; others of ours must not hear that."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _out_of_the_way() -> Iterator[None]:
    """Ray's processes are not in this one's group, whose signals they would take before trials have ended.

    Terminals, `timeout` and batch systems signal a whole group. Linux kills them where this process dies.
    """
    before: Any = services.ConsolePopen
    services.ConsolePopen = functools.partial(before, start_new_session=True)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        services.ConsolePopen = before  # type: ignore[misc]


def _remedy(address: str | None, problem: str) -> str:
    if address is None:
        return "Use execution.executor=inline to do without it."
    if "Version mismatch" in problem:
        return "Install the cluster's versions here, or these ones on all its nodes."
    if address == "auto":
        return "Start one with `ray start --head`, or name the head: execution.address=host:port."
    return (
        "If the cluster was started with a token, this process needs the same one (RAY_AUTH_TOKEN_PATH); if it was "
        "started without, RAY_AUTH_MODE=disabled."
    )


def short_home() -> Path:
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
