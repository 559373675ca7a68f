"""Standard output and error of a command: a console that fails is no command that fails."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TextIO

from fpl_tune.cli import output
from fpl_tune.core.errors import EnvironmentProblem


@contextmanager
def unfailing() -> Iterator[None]:
    """Lets the block write to standard output and error whatever becomes of them.

    Letters that a terminal lacks are replaced. What a full disk, or a reader that had enough, refuses is dropped; a
    line on standard error says so at the end, unless the reader had enough.

    Raises:
        SystemExit: with 3: standard output could not be written, and the block did not exit by a code of its own.
    """
    for number in (0, 1, 2):  # the next file that is opened would get the number of a closed one, and what is printed
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before = sys.stdout, sys.stderr
    (sys.stdout, outlet), (sys.stderr, _) = _guarded(sys.stdout), _guarded(sys.stderr)
    out, err, problem = sys.stdout, sys.stderr, None
    try:
        yield
    finally:
        out.flush()
        problem = outlet and outlet.problem
        if problem is not None and not isinstance(problem, BrokenPipeError):
            output.warn(
                f"fpl-tune: Standard output cannot be written ({problem.strerror}). Free some space, or send it to "
                "another place.",
                "red",
            )
        err.flush()
        sys.stdout, sys.stderr = before
    if problem is not None and not isinstance(problem, BrokenPipeError):
        sys.exit(EnvironmentProblem.exit_code)


def _guarded(stream: TextIO | None) -> tuple[TextIO, _Outlet | None]:
    """A stream of text whose writing never fails, and where its bytes go; one in memory as it is."""
    if stream is None:  # its descriptor was closed when Python started
        return open(os.devnull, "w", encoding="utf-8", errors="replace"), None
    if not hasattr(stream, "buffer"):
        return stream, None
    outlet = _Outlet(stream)
    return io.TextIOWrapper(
        outlet,
        stream.encoding,
        errors="replace",
        line_buffering=bool(stream.line_buffering),
        write_through=getattr(stream, "write_through", False),
    ), outlet


class _Outlet(io.BufferedIOBase):
    """Passes bytes on to a standard stream, and keeps its first error, after which they go nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream  # closes its buffer once nothing holds it
        self._into: BinaryIO = stream.buffer
        self.name = getattr(stream, "name", "")
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._into.isatty()

    def fileno(self) -> int:
        return self._into.fileno()

    def write(self, data: Any, /) -> int:
        try:
            self._into.write(data)
        except OSError as problem:
            self._give_up(problem)
        return len(data)

    def flush(self) -> None:
        try:
            self._into.flush()
        except OSError as problem:
            self._give_up(problem)

    def _give_up(self, problem: OSError) -> None:
        """Turns the descriptor to nowhere: what is still held for it, and what other processes write, must not fail."""
        self.problem = self.problem or problem
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._into.fileno())
