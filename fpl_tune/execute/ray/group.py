"""A process group for the processes of our own Ray, which a signal to the study's group must not end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RELAY = """
import os, signal
both, parent = {signal.SIGINT, signal.SIGTERM}, os.getppid()
signal.pthread_sigmask(signal.SIG_BLOCK, both)
print(flush=True)
while os.getppid() == parent:
    if found := signal.sigtimedwait(both, 1):
        os.kill(parent, found.si_signo)
"""


@contextmanager
def apart() -> Iterator[None]:
    """Puts this process into a new process group while it starts others, which stay there.

    `timeout` and job systems send SIGTERM to the group of a command. Processes in it would end at once, before trials
    have written their checkpoints. Meanwhile a process in the former group passes SIGINT and SIGTERM on.
    """
    if not hasattr(os, "setpgid") or os.getpid() == os.getsid(0):  # Windows; the leader of a session cannot leave
        yield
        return
    before = os.getpgrp()
    relay = subprocess.Popen([sys.executable, "-I", "-S", "-c", _RELAY], stdout=subprocess.PIPE)
    leader = subprocess.Popen(["sleep", "60"], process_group=0)
    try:
        assert relay.stdout is not None
        relay.stdout.readline()  # it is ready
        os.setpgid(0, leader.pid)
        leader.kill()
        yield
    finally:
        with suppress(OSError):  # the former group is gone
            os.setpgid(0, before)
        for process in (leader, relay):
            process.kill()
            process.wait()
        if relay.stdout is not None:
            relay.stdout.close()
