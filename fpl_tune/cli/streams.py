"""Standard output and error of a command: a broken console must not fail the command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from fpl_tune.cli import output
from fpl_tune.core.errors import EnvironmentProblem


@contextmanager
def unfailing() -> Iterator[None]:
    """Lets the block write to standard output and error even if they are closed or full.

    Characters that a terminal lacks are replaced. After an error, further output is dropped, and a line on standard
    error reports it at the end, unless the reader has closed the pipe.

    Raises:
        SystemExit: with 3 if standard output could not be written, and the block did not exit with another code.
    """
    for number in (0, 1, 2):  # else the next file that is opened gets a closed number, and so the printed text
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before: Any = sys.stdout, sys.stderr
    out, err = guarded = _Guarded(sys.stdout), _Guarded(sys.stderr)
    try:
        sys.stdout, sys.stderr = guarded  # pyright: ignore[reportAttributeAccessIssue]
        yield
    finally:
        out.flush()
        if out.problem is not None:
            output.warn(
                f"fpl-tune: Standard output cannot be written ({out.problem.strerror}). Free some space, or send it "
                "to another place.",
                "red",
            )
        err.flush()
        sys.stdout, sys.stderr = before
    if out.problem is not None:
        sys.exit(EnvironmentProblem.exit_code)


class _Guarded:
    """A text stream that never fails to write. It keeps its first error, unless the reader has closed the pipe."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or io.StringIO()  # None where the descriptor was closed when Python started
        self.problem: OSError | None = None
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        """Writes a string, or drops it."""
        try:
            self._stream.write(text)
        except OSError as problem:
            self._give_up(problem)
        return len(text)

    def flush(self) -> None:
        """Writes buffered text, or drops it."""
        try:
            self._stream.flush()
        except OSError as problem:
            self._give_up(problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, problem: OSError) -> None:
        """Points the descriptor to /dev/null, for text that is still buffered and for output of other processes."""
        if not isinstance(problem, BrokenPipeError):
            self.problem = self.problem or problem
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
