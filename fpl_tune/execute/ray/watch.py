"""Detection of a lost head of Ray, whose calls neither return nor can be interrupted."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import ray

from fpl_tune.core.errors import EnvironmentProblem

CONNECT_SECONDS = 5.0
"""Time limit of a TCP connection to the head."""
LOST_SECONDS = 20.0
"""A head that does not answer for this long is lost."""


class RayGone(EnvironmentProblem):
    """The head of Ray is lost. Ray can no longer be shut down in an orderly way."""


def watched(address: str | None, work: Callable[[], object]) -> None:
    """Runs `work` in a thread while this one handles signals and checks that Ray's head answers.

    Calls to a lost head neither return nor can be interrupted, and Ray ends the process after a minute with exit
    code 1. After `RayGone` the process can go on, but must not call Ray, and exits with the code of this error.

    Args:
        address: of the cluster, as in `connected`.
        work: does not return before its calls of Ray have.

    Raises:
        RayGone: the head, or the node of this process, has not answered for `LOST_SECONDS`.
        BaseException: what `work` raises.
    """
    parts = {} if (address or "").startswith("ray://") else addresses()
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as problem:
            raised.append(problem)

    thread = threading.Thread(target=guarded, name="ray-tune", daemon=True)
    thread.start()
    seen = time.monotonic()
    while thread.is_alive():
        thread.join(1.0)
        silent = next((part for part, there in parts.items() if not _answers(there)), None)
        if silent is None:
            seen = time.monotonic()
        elif time.monotonic() - seen > LOST_SECONDS:
            atexit.register(_leave)
            raise RayGone(
                f"lost Ray: its {silent} at {parts[silent]} has not answered for {LOST_SECONDS:g} s. Finished results "
                "are stored; restart Ray, or leave execution.address out, and run the same command to continue."
            )
    if raised:
        raise raised[0]


def addresses() -> dict[str, str]:
    """Addresses of the head and of the node that this process is connected through."""
    here = ray.get_runtime_context()
    mine = next(node for node in ray.nodes() if node["NodeID"] == here.get_node_id())
    return {"head": here.gcs_address, "node": f"{mine['NodeManagerAddress']}:{mine['NodeManagerPort']}"}


def _leave() -> None:
    """Exits before Ray's own exit hooks, which wait for the lost head for a minute."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(RayGone.exit_code)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS):
        return True
    return False
