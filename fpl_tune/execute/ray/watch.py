"""Watching what the driver hangs on of Ray, which would end the process after a minute, with code 1 and no word."""

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
from ray.util import client

from fpl_tune.errors import EnvironmentProblem

LOST_SECONDS = 20.0
"""So long nothing may answer before Ray is given up."""
_PERIOD = 1.0


def watched(work: Callable[[], object]) -> None:
    """Does `work` in a thread, as calls to a head that is gone neither return nor can be interrupted.

    Signals are heard meanwhile. Where Ray is gone it must not be spoken to again, nor be unloaded: the process
    can go on, but ends with the exit code of this error.

    Raises:
        EnvironmentProblem: Ray's head, or this process's node, has not answered for `LOST_SECONDS`.
        BaseException: what `work` raises.
    """
    parts = _parts()
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
        thread.join(_PERIOD)
        silent = next((part for part, address in parts.items() if not _answers(address)), None)
        if silent is None:
            seen = time.monotonic()
        elif time.monotonic() - seen > LOST_SECONDS:
            atexit.register(_leave)
            raise RayGone(
                f"Ray's {silent} must answer at {parts[silent]}, but has not for {LOST_SECONDS:g} s. What was finished "
                "is kept: restart Ray, or leave execution.address out, and the same command continues."
            )
    if raised:
        raise raised[0]


class RayGone(EnvironmentProblem):
    """Ray can no longer be shut down in an orderly way."""


def _parts() -> dict[str, str]:
    """What must be there, with its address: the head, and the node that this process hangs on. A client has neither."""
    if client.ray.is_connected():
        return {}
    here = ray.get_runtime_context()
    mine = next(node for node in ray.nodes() if node["NodeID"] == here.get_node_id())
    return {"head": here.gcs_address, "node": f"{mine['NodeManagerAddress']}:{mine['NodeManagerPort']}"}


def _leave() -> None:
    """Before Ray's own hooks, which wait for the head for a minute, and its libraries, which crash without it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(RayGone.exit_code)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=5):
        return True
    return False
