"""One process per study: a file lock that names its owner. The operating system releases it when the owner dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.redact import redact


class Held(ConfigError):
    """Another process runs the study."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the study in `folder`.

    Raises:
        Held: another process holds it; the message names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "study.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            by = owner(folder) or {}
            raise Held(
                f"A study is run by one process at a time, but {folder.name} is run by process {by.get('pid')} on "
                f"{by.get('host')} since {by.get('since')} ({by.get('command')}). Wait for it, or stop it with "
                f"`fpl-tune stop {folder.name}`."
            ) from None
        file.truncate(0)
        me = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": redact(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:200],
        }
        file.write(json.dumps(me))
        file.flush()
        yield


def owner(folder: Path) -> dict[str, Any] | None:
    """The process that holds the study: pid, host, since, command.

    Returns:
        None if no process holds it; an empty dict if the file does not name the process.
    """
    path = folder / "study.lock"
    if not path.is_file():
        return None
    with path.open(errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with suppress(ValueError):
                return json.load(file)
            return {}
    return None
