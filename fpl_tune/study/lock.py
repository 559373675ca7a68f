"""One process per study: a file lock, which the operating system releases when its owner dies.

There are two files, so that checking the owner never blocks a start and never names an earlier owner. Only a start
locks `study.lock`. The owner then describes itself in `study.owner`, a new file that it locks before moving it there; a
check locks that file for a moment, shared with other checks. (`filelock` has no shared locks.)
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.files import remove
from fpl_tune.core.redact import redact

STOP_FILE = "study.stop"
"""While this file is in the study's folder, trials stop after their round with a checkpoint."""
_OWNER_FILE = "study.owner"


class AlreadyRunning(ConfigError):
    """Another process runs the study."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the study in `folder` for this process, and removes requests to stop an earlier one.

    Raises:
        AlreadyRunning: another process runs it; the message names that process.
        EnvironmentProblem: the file system has no locks.
        OSError: the file cannot be opened.
    """
    with _lock_file(folder):
        path = folder / _OWNER_FILE
        fresh = path.with_suffix(".owner.part")
        for leftover in (folder / STOP_FILE, path, fresh):
            remove(leftover)
        with fresh.open("w") as description:
            try:
                _lock(description, fcntl.LOCK_EX)
                me = {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                    "command": redact(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:200],
                }
                description.write(json.dumps(me))
                description.flush()
                fresh.replace(path)
                yield
            finally:
                for mine in (fresh, path):
                    with suppress(OSError):
                        mine.unlink(missing_ok=True)


def _lock_file(folder: Path) -> IO[str]:
    """Locks study.lock, again if its owner has removed the folder of a new study meanwhile; see `locked`."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), ExitStack() as stack:
            file = stack.enter_context((folder / "study.lock").open("a"))
            if not _lock(file, fcntl.LOCK_EX):
                by, who = owner(folder), "another one, which is starting or ending"
                if by is not None:
                    who = f"process {by['pid']} on {by['host']} since {by['since']} ({by['command']})"
                raise AlreadyRunning(
                    f"A study is run by one process at a time, but {folder.name} is run by {who}. Wait for it, or stop "
                    f"it with `fpl-tune stop {folder.name}`."
                )
            if os.path.samestat(os.fstat(file.fileno()), (folder / "study.lock").stat()):
                stack.pop_all()
                return file


def owner(folder: Path) -> dict[str, Any] | None:
    """The process that runs the study: pid, host, since, command. None if no process does.

    Raises:
        EnvironmentProblem: the file system has no locks.
    """
    try:
        with (folder / _OWNER_FILE).open(errors="replace") as file:
            return None if _lock(file, fcntl.LOCK_SH) else json.load(file)
    except FileNotFoundError:
        return None


def _lock(file: IO[str], kind: int) -> bool:
    """Locks an open file until it is closed. Returns False if another process has locked it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as problem:
        raise EnvironmentProblem(
            "Only one process may run a study at a time, but its file system has no locks to enforce this "
            f"({problem.strerror}: {file.name}). Name a folder on another one in FPL_TUNE_OUTPUT."
        ) from None
    return True
