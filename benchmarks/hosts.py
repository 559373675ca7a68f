"""Ray nodes that are started and killed one by one: on this machine, or on hosts with an address, a link and a clock.

Hosts are network namespaces on one switch, which takes root's rights; the file system is the machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PATIENCE = 300.0
"""Seconds for what takes a few on a machine that does nothing else."""
NET = "10.77.0"
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += AHEAD;
  return failed;
}
time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}
"""
"""A library that sets the clock of a process ahead."""


@dataclass
class Cluster:
    """Ray nodes as processes of this machine."""

    folder: Path
    """Short, for Ray's sockets."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    address: str = ""

    def start(self, name: str, *, cpus: int, **environment: str) -> None:
        """Starts a node and waits until it has joined; the first is the head."""
        home = self.folder / name
        home.mkdir(exist_ok=True)  # it may have been there, and been killed
        known = {
            "FPL_TUNE_CACHE": str(home / "cache"),
            "FPL_TUNE_NODE": str(home),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled",
        }
        words = ["start", "--block", "--disable-usage-stats", f"--num-cpus={cpus}", "--num-gpus=0", *self.place(name)]
        until = time.monotonic() + PATIENCE
        while True:
            with (home / "log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    [
                        *self.within(name), sys.executable, "-m", "ray.scripts.scripts", *words,
                        "--object-store-memory=80000000",
                    ],
                    env={**os.environ, **known, **environment},
                    stdout=log,
                    stderr=log,
                    cwd=home,
                    start_new_session=True,
                )  # fmt: skip
            if self._said(name, "Ray runtime started", until):
                break
            self.kill(name)  # on a busy machine Ray gives a node up after half a minute
        if not self.address:
            self.address = self._said(name, "--address=", until).partition("--address=")[2].strip(" '")

    def place(self, name: str) -> list[str]:
        """The options of `ray start` that say which head a node has, or that it is the head."""
        if self.address:
            return [f"--address={self.address}"]
        return ["--head", "--port=0", "--include-dashboard=false", f"--temp-dir={self.folder / 'ray'}"]

    def within(self, name: str) -> list[str]:
        """The words that run a command where a node is."""
        return []

    def _said(self, name: str, text: str, until: float) -> str:
        """The line with `text` of a node's log; empty if its process has ended without it."""
        log = self.folder / name / "log"
        while time.monotonic() < until:
            ended = self.processes[name].poll() is not None
            for line in log.read_text().splitlines():
                if text in line:
                    return line
            if ended:
                return ""
            time.sleep(0.1)
        raise AssertionError(log.read_text())

    def part(self, name: str, program: str) -> int:
        """The process of a node's `raylet`, which runs its workers, or of the head's `gcs_server`."""
        group = self.processes[name].pid
        found = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if path.read_bytes().split(b"\0")[0].endswith(f"/{program}".encode())
            and os.getpgid(int(path.parent.name)) == group
        ]
        return found[0]

    def kill(self, name: str) -> None:
        """The node is gone at once, with all its processes."""
        process = self.processes.pop(name)
        for pid in psutil.pids():  # workers have process groups of their own
            with suppress(ProcessLookupError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.wait()

    def restore(self, names: Sequence[str]) -> None:
        """Kills all nodes but `names`, and starts those of them that are gone."""
        for name, process in list(self.processes.items()):
            if name not in names or process.poll() is not None:
                self.kill(name)
        for name in names:
            if name not in self.processes:
                self.start(name, cpus=2)

    def stop(self) -> None:
        for name in reversed(list(self.processes)):
            self.kill(name)


class NotAllowed(Exception):
    """This machine does not let this process make network namespaces."""


@dataclass
class Hosts(Cluster):
    """A cluster whose nodes are hosts. Programs run on the head's host."""

    names: tuple[str, ...] = ("head", "one", "two", "three")
    """In the order of their addresses."""

    def host(self, name: str) -> str:
        """The address of a host."""
        return f"{NET}.{self.names.index(name) + 1}"

    def place(self, name: str) -> list[str]:
        return [*super().place(name), f"--node-ip-address={self.host(name)}"]

    def within(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(name)]

    def cut(self, *names: str) -> None:
        """Cuts the links of hosts."""
        for name in names:
            _ip("-n", self._space("switch"), "link", "set", name, "down")

    def mend(self, *names: str) -> None:
        """Restores their links."""
        for name in names:
            _ip("-n", self._space("switch"), "link", "set", name, "up")

    def keep_apart(self, *names: str) -> None:
        """Lets hosts reach the others, but not each other."""
        for name in names:
            words = ["link", "set", "dev", name, "isolated", "on"]
            subprocess.run(["bridge", "-n", self._space("switch"), *words], check=True, capture_output=True)

    def ahead(self, seconds: int) -> dict[str, str]:
        """The environment of a node whose clock is ahead. Needs a C compiler."""
        library = self.folder / f"ahead{seconds}.so"
        words = ["cc", "-shared", "-fPIC", f"-DAHEAD={seconds}", "-xc", "-", "-o", str(library), "-ldl"]
        subprocess.run(words, input=CLOCK, text=True, check=True)
        return {"LD_PRELOAD": str(library)}

    def wire(self) -> None:
        """Makes the hosts and the switch.

        Raises:
            NotAllowed: the machine refuses.
        """
        switch = self._space("switch")
        try:
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "addr", "add", f"{NET}.254/24", "dev", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for name in self.names:
                space = self._space(name)
                _ip("netns", "add", space)
                _ip("link", "add", name, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", space)
                _ip("-n", switch, "link", "set", name, "master", "bridge", "up")
                _ip("-n", space, "addr", "add", f"{self.host(name)}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    _ip("-n", space, "link", "set", link, "up")
                _ip("-n", space, "route", "add", "default", "via", f"{NET}.254")  # by which Ray finds its own address
        except (OSError, subprocess.CalledProcessError) as problem:
            raise NotAllowed(str(getattr(problem, "stderr", "") or problem).strip()) from None

    def unwire(self) -> None:
        """Removes them, and the links with them."""
        for name in ("switch", *self.names):
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "delete", self._space(name))

    def _space(self, name: str) -> str:
        return f"{self.folder.name}-{name}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def wired() -> Iterator[Hosts]:
    """Hosts without Ray.

    Raises:
        NotAllowed: the machine refuses.
    """
    made = Hosts(Path(tempfile.mkdtemp(prefix="fpl-", dir="/tmp")))
    try:
        made.wire()
        yield made
    finally:
        made.stop()
        made.unwire()
        shutil.rmtree(made.folder, ignore_errors=True)
