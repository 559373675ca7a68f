"""A cluster of a head and two workers on one machine, each a Ray node of its own with its own feature cache."""

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

from fpl_tune.api import start_study as run_study
from fpl_tune.execute.callback import Callback, Outcome

from ...conftest import Compose, figures_of

PATIENCE = 300.0
"""Seconds for what takes a few on a machine that does nothing else; other tests run beside these."""


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "dying_method,elsewhere_method")


Run = Callable[..., Outcome]


@pytest.fixture
def run(compose: Compose, tmp_path: Path) -> Run:
    """run(body, *overrides, root=..., callbacks=...): a tiny study, its results below `tmp_path / root`."""

    def go(body: str, *overrides: str, callbacks: Sequence[Callback] = (), root: str = "out") -> Outcome:
        made = compose(body, "execution.executor=ray", "execution.parallel=2", "protocol.rounds=3", *overrides)
        return run_study(made, root=tmp_path / root, callbacks=callbacks)

    return go


@pytest.fixture
def figures(tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """figures(root): what a study found, without what depends on the clock."""
    return lambda root: figures_of(tmp_path / root)


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
        where = [f"--address={self.address}"] if self.address else ["--head", "--port=0", "--include-dashboard=false"]
        if not self.address:
            where.append(f"--temp-dir={self.folder / 'ray'}")
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
                    [sys.executable, "-m", "ray.scripts.scripts", *words, "--object-store-memory=80000000"],
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
def started() -> Iterator[Cluster]:
    """A head that runs no trials, and two workers of two cores."""
    folder = Path(tempfile.mkdtemp(prefix="fpl-", dir="/tmp"))
    made = Cluster(folder)
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
