"""One process per study: a lock whose owner is named. The system lets go of it when the owner dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fpl_tune.errors import ConfigError
from fpl_tune.redact import redact


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Holds the study in `folder`. Yields whether the process that held it last was killed.

    Raises:
        ConfigError: another process does; names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "study.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"A study is run by one process at a time, but {folder.name} is run by {_owner(folder)}. "
                f"Wait for it, or stop it with `fpl-tune stop {folder.name}`."
            ) from None
        file.seek(0)
        killed = file.read() != ""
        file.truncate(0)
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": redact(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:200],
        }
        file.write(json.dumps(owner))
        file.flush()
        try:
            yield killed
        finally:
            file.truncate(0)


def owner(folder: Path) -> dict[str, str] | None:
    """Who holds the study: pid, host, since, command; None where nobody does."""
    path = folder / "study.lock"
    if not path.is_file():
        return None
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read()
            return json.loads(text) if text else {}
    return None


def _owner(folder: Path) -> str:
    found = owner(folder) or {}
    if not found:
        return "another process"
    return f"process {found['pid']} on {found['host']} since {found['since']} ({found['command']})"
