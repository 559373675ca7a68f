"""Whether a Ray answers at an address, before Ray itself tries for minutes."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.resources import head_of

CONNECT_SECONDS = 5.0


def answers(address: str) -> None:
    """Takes at most twice `CONNECT_SECONDS`, where Ray itself tries for two minutes.

    Raises:
        ConfigError: it is no address.
        EnvironmentProblem: no Ray answers there.
    """
    head = head_of(address)
    if head is None:
        return
    until = time.monotonic() + CONNECT_SECONDS
    while True:
        with suppress(OSError), socket.create_connection(head, timeout=CONNECT_SECONDS / 2) as line:
            if os.environ.get("RAY_USE_TLS") == "1" or _speaks_grpc(line):
                return
            raise EnvironmentProblem(
                f"Ray must be reachable at {address}, but what answers there is no head of a Ray cluster, or hangs. "
                "Check execution.address or RAY_ADDRESS; `ray start --head` prints the right one."
            )
        if time.monotonic() > until - 1:
            raise EnvironmentProblem(
                f"Ray must be reachable at {address}, but nothing answers there. Check execution.address or "
                "RAY_ADDRESS, or leave it out to start Ray on this machine."
            )
        time.sleep(0.5)


def _speaks_grpc(line: socket.socket) -> bool:
    """Whether the other side greets in HTTP/2, as the head's service does: the first frame is its settings."""
    with suppress(OSError):
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        head = b""
        while len(head) < 9 and (more := line.recv(9 - len(head))):
            head += more
        return head[3:5] == b"\x04\x00"
    return False
