"""Commands in processes of their own, and what they do to files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fpl_tune.core.errors import ConfigError, FplTuneError

LIMIT = 30
"""Seconds that a command may take; with the true simulation, four times as many."""


@dataclass
class End:
    """How a command ended."""

    kind: str
    """done, refused (nothing may have changed), environment, killed, slow (see `LIMIT`), or error."""
    text: str = ""
    code: int = 0
    pending: int = 0
    ran: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    """Label, seed and error of each failed seed."""


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def watch(root: Path, hears: Callable[[str], None]) -> None:
    """From now on, calls `hears` before each operation of this process that changes a file below a folder."""
    inside = f"{root.resolve()}{os.sep}"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES and not (event == "open" and not args[2] & _WRITES):
            path = args[0]
            if not isinstance(path, int) and os.path.abspath(os.fsdecode(path)).startswith(inside):
                hears(event)

    sys.addaudithook(hook)


def in_child(work: Callable[[], End], aside: Path, limit: int = LIMIT) -> End:
    """Forks a process that does the work."""
    answer = aside / "answer"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            said = os.open(aside / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 1)
            os.dup2(said, 2)
            signal.alarm(limit)
            sys.dont_write_bytecode = True
            os.fsync = lambda fd: None  # no event here asks for it, and it takes most of the time
            warnings.simplefilter("ignore")
            end = work()
        except ConfigError as problem:
            end = End("refused", str(problem), problem.exit_code)
        except FplTuneError as problem:
            end = End("environment", str(problem), problem.exit_code)
        except BaseException:
            end = End("error", traceback.format_exc())
        try:
            answer.write_text(json.dumps(asdict(end)))
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        return End("killed")
    if status == -signal.SIGALRM:
        return End("slow", f"it took more than {limit} seconds")
    if not answer.exists():
        return End("error", f"the process ended with status {status}")
    return End(**json.loads(answer.read_text()))


def picture_of_files(root: Path) -> dict[str, str]:
    """Digests of the files below a folder, locks left out."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")) if root.exists() else ():
        if path.is_file() and path.name not in ("study.lock", "study.owner"):
            found[str(path.relative_to(root))] = hashlib.md5(path.read_bytes()).hexdigest()
    return found
