"""A cluster of a head and two workers on one machine, each a Ray node of its own with its own feature cache."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil
import pytest

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.execute.callback import Callback, Outcome

STUDY = """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 3, epochs: 1}
execution: {parallel: 2, checkpoint_every: 2}
seeds: 2
"""


PATIENCE = 300.0
"""Seconds for what takes a few on a machine that does nothing else; other tests run beside these."""


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "dying_method,elsewhere_method")


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(body, *overrides, root=..., name=..., callbacks=...): a tiny study, its results below `tmp_path / root`."""

    def go(
        body: str, *overrides: str, callbacks: Sequence[Callback] = (), root: str = "out", name: str = "tiny"
    ) -> Outcome:
        path = tmp_path / f"{name}.yaml"
        path.write_text(STUDY + body)
        return run_study(config.compose_study(str(path), overrides), root=tmp_path / root, callbacks=callbacks)

    return go


@pytest.fixture
def figures(tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """figures(root): what a study found, without what depends on the clock."""

    def read(root: str, name: str = "tiny") -> pd.DataFrame:
        return pd.read_csv(tmp_path / root / name / "results.csv").drop(columns="time/seconds")

    return read


class Wires:
    """Network namespaces on one switch, one a node: each has its address, its name of host and its mounts."""

    def __init__(self) -> None:
        self._prefix = f"fpl-{os.getpid()}-"
        self._hosts: dict[str, str] = {}
        self._call("netns", "add", f"{self._prefix}switch")
        self._call("-n", f"{self._prefix}switch", "link", "add", "switch", "type", "bridge")
        self._call("-n", f"{self._prefix}switch", "link", "set", "switch", "up")

    def plug(self, host: str) -> None:
        """A namespace of that name, wired to the others; 10.87.0.2 for the first."""
        space, switch = self._prefix + host, f"{self._prefix}switch"
        self._hosts[host] = f"10.87.0.{len(self._hosts) + 2}"
        self._call("netns", "add", space)
        self._call(*f"-n {switch} link add {host} type veth peer name eth0 netns {space}".split())
        self._call(*f"-n {switch} link set {host} master switch up".split())
        self._call(*f"-n {space} addr add {self._hosts[host]}/24 dev eth0".split())
        for device in ("lo", "eth0"):
            self._call("-n", space, "link", "set", device, "up")
        self._call("-n", space, "route", "add", "default", "dev", "eth0")  # Ray asks it for this host's address

    def on(self, host: str, read_only: Path | None = None) -> list[str]:
        """Words before a command that make it run there; it cannot write below `read_only`."""
        mount = f"mount --bind -o ro {read_only} {read_only} && " if read_only else ""
        script = f'hostname {host} && {mount}exec "$@"'
        return ["ip", "netns", "exec", self._prefix + host, "unshare", "--uts", "--mount", "sh", "-c", script, "sh"]

    def cut(self) -> None:
        for host in [*self._hosts, "switch"]:
            subprocess.run(["ip", "netns", "del", self._prefix + host], check=False, capture_output=True)

    @staticmethod
    def _call(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Typed:
    """How a command ended."""

    code: int
    said: str
    seconds: float

    @property
    def at_once(self) -> bool:
        return self.seconds < 180  # 20 s on a machine that does nothing else; limits of waiting are longer


@pytest.fixture
def typed(tmp_path: Path) -> Callable[..., Typed]:
    """typed(body, *overrides, address=..., within=wires.on(host)): `fpl-tune study` in a process of its own."""

    def go(body: str, *overrides: str, address: str, within: Sequence[str] = (), **environment: str) -> Typed:
        (tmp_path / "tiny.yaml").write_text(STUDY + body)
        known = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "FPL_TUNE_OUTPUT": str(tmp_path / "typed")}
        words = [sys.executable, "-m", "fpl_tune", "study", "tiny.yaml", "tracking.enabled=false", *overrides]
        began = time.monotonic()
        done = subprocess.run(
            [*within, *words, "--format", "json"],
            env={**os.environ, "OMP_NUM_THREADS": "1", **known, **environment},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
            cwd=tmp_path,
        )
        return Typed(done.returncode, done.stderr, time.monotonic() - began)

    return go


@dataclass
class Cluster:
    """Ray nodes as processes of this machine, each in a namespace of its own where there are wires."""

    folder: Path
    """Short, for Ray's sockets."""
    wires: Wires | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    address: str = ""

    def start(self, name: str, *, cpus: int, read_only: Path | None = None, **environment: str) -> None:
        """Starts a node and waits until it has joined; the first is the head."""
        home = self.folder / name
        home.mkdir(exist_ok=True)  # it may have been there, and been killed
        where = [f"--address={self.address}"] if self.address else ["--head", "--port=0", "--include-dashboard=false"]
        if not self.address:
            where.append(f"--temp-dir={self.folder / 'ray'}")
        here: list[str] = []
        if self.wires:
            self.wires.plug(name)
            here = self.wires.on(name, read_only)
        words = ["start", "--block", "--disable-usage-stats", f"--num-cpus={cpus}", "--num-gpus=0", *where]
        known = {
            "FPL_TUNE_CACHE": str(home / "cache"),
            "FPL_TUNE_NODE": str(home),
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled",
        }
        until = time.monotonic() + PATIENCE
        while True:
            with (home / "log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    [*here, sys.executable, "-m", "ray.scripts.scripts", *words, "--object-store-memory=80000000"],
                    env={**os.environ, **known, **environment},
                    stdout=log,
                    stderr=log,
                    cwd=home,
                    start_new_session=True,
                )
            if self._said(name, "Ray runtime started", until):
                break
            self.kill(name)  # on a busy machine Ray gives a node up after half a minute
        if not self.address:
            self.address = self._said(name, "--address=", until).partition("--address=")[2].strip(" '")

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

    def raylet(self, name: str) -> int:
        """The process that runs a node's workers."""
        group = self.processes[name].pid
        found = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if path.read_bytes().split(b"\0")[0].endswith(b"/raylet") and os.getpgid(int(path.parent.name)) == group
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


@contextmanager
def started(wires: Wires | None = None) -> Iterator[Cluster]:
    """A head that runs no trials, and two workers of two cores."""
    folder = Path(tempfile.mkdtemp(prefix="fpl-", dir="/tmp"))
    made = Cluster(folder, wires)
    try:
        made.start("head", cpus=0)
        made.start("one", cpus=2)
        made.start("two", cpus=2)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def _nodes() -> Iterator[Cluster]:
    """On one address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setattr("fpl_tune.execute.ray.nodes.ANSWER_SECONDS", PATIENCE)
        with started() as made:
            yield made


@pytest.fixture
def cluster(_nodes: Cluster) -> Iterator[Cluster]:
    """The nodes head, one and two, which the next test finds again whatever happens in this one."""
    try:
        yield _nodes
    finally:
        _nodes.restore(("head", "one", "two"))


@pytest.fixture(scope="module")
def apart() -> Iterator[Cluster]:
    """Each node with an address, a name of host and mounts of its own, as on several machines."""
    try:
        wires = Wires()
    except OSError as problem:
        pytest.skip(f"needs network namespaces, which only root can make ({problem})")
    try:
        with started(wires) as made:
            yield made
    finally:
        wires.cut()
