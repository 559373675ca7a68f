"""What a study on a cluster of hosts survives: links that are cut, nodes, heads and drivers that are killed.

Each fault strikes a study of six cells in mid-round. Where the study ends, the same command runs again. Its results
and what MLflow holds are compared with those of a calm run on one machine.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosts import Hosts, wired

STUDY = """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 24, epochs: 1}
execution: {checkpoint_every: 2, device: cpu}
axes: {optim: {lr: [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]}}
seeds: 2
"""
WORKERS = ("one", "two")
LIMIT = 400.0
"""Seconds after which a study hangs."""


@dataclass
class Run:
    """A study on hosts.

    Args:
        hosts: with Ray.
        root: the output folder.
        bucket: where checkpoints are; None: in the study's folder.
    """

    hosts: Hosts
    root: Path
    bucket: Path | None = None
    codes: list[int] = field(default_factory=list)
    """Exit codes so far."""
    said: str = ""
    """What the last command printed."""
    pause: float = 0.0
    """The longest time in seconds in which the last command left nothing on disk, from mid-round on."""

    def start(self) -> None:
        """Starts the driver, waits until trials are in mid-round, and watches them from then on."""
        words = [f"execution.address='{self.hosts.address}'"]
        if self.bucket:
            words.append(f"execution.checkpoints='file://{self.bucket}'")
        self.driver = started(self.root, *words, within=self.hosts.within("head"))
        before = self.reached()
        while self.driver.poll() is None and self.reached() < before + 3:
            time.sleep(0.1)
        self.pause = 0.0
        self.watch = threading.Thread(target=self._watch)
        self.watch.start()

    def reached(self) -> int:
        """A number that grows with every checkpoint and result."""
        where = [self.root / "hosts", *([self.bucket] if self.bucket else [])]
        # os.walk passes over folders that trials remove meanwhile; rglob fails on them.
        names = [Path(name) for folder in where for *_, files in os.walk(folder) for name in files]
        rounds = [int(name.stem[6:]) for name in names if name.match("round-*.safetensors")]
        return sum(rounds) + 1000 * sum(name.name == "result.json" for name in names)

    def _watch(self) -> None:
        last, since = self.reached(), time.monotonic()
        while self.driver.poll() is None:
            time.sleep(0.1)
            now, reached = time.monotonic(), self.reached()
            self.pause = max(self.pause, now - since)
            if reached != last:
                last, since = reached, now

    def follow(self) -> None:
        """Waits for the end, and kills a driver that hangs."""
        try:
            self.said = self.driver.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.said = self.driver.communicate()[0]
        self.watch.join()
        self.codes.append(self.driver.returncode)


def started(root: Path, *words: str, within: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Starts the command of the study."""
    root.mkdir(exist_ok=True)
    (file := root.parent / "hosts.yaml").write_text(STUDY)
    known = {"FPL_TUNE_OUTPUT": str(root), "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*within, sys.executable, "-m", "fpl_tune", "study", str(file), *words],
        env={**os.environ, **known},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def cut(names: Sequence[str], seconds: float) -> Callable[[Run], None]:
    """Links are cut and restored."""

    def strike(run: Run) -> None:
        run.hosts.cut(*names)
        time.sleep(seconds)
        run.hosts.mend(*names)

    return strike


def cut_for_good(run: Run) -> None:
    """All links to workers are cut until Ray has given their nodes up, which then start again."""
    cut(WORKERS, 45.0)(run)
    for name in WORKERS:
        with suppress(subprocess.TimeoutExpired):
            run.hosts.processes[name].wait(30)
    restored(run.hosts)


def cut_and_left(run: Run) -> None:
    """The same, and they do not start again before the study has ended."""
    run.hosts.cut(*WORKERS)


def killed(name: str, program: str) -> Callable[[Run], None]:
    """A process of Ray is killed."""
    return lambda run: os.kill(run.hosts.part(name, program), signal.SIGKILL)


def driver_killed(run: Run) -> None:
    """The driver is killed while a link is cut."""
    run.hosts.cut("one")
    time.sleep(5)
    run.driver.kill()
    run.hosts.mend("one")


def node_joins(run: Run) -> None:
    """A node joins whose clock is an hour ahead."""
    run.hosts.start("three", cpus=2, **run.hosts.ahead(3600))


FAULTS: dict[str, Callable[[Run], None]] = {
    "none": lambda run: None,
    "one link cut for 10 s": cut(WORKERS[:1], 10),
    "one link cut for 26 s": cut(WORKERS[:1], 26),
    "one link cut for 70 s": cut(WORKERS[:1], 70),
    "all links cut for 26 s": cut(WORKERS, 26),
    "all links cut for 45 s, nodes start again": cut_for_good,
    "all links cut": cut_and_left,
    "raylet of a node killed": killed("one", "raylet"),
    "raylet of the driver killed": killed("head", "raylet"),
    "GCS killed": killed("head", "gcs_server"),
    "driver killed during a cut": driver_killed,
    "a node joins, its clock an hour ahead": node_joins,
}

AT_URL = (
    "one link cut for 70 s",
    "all links cut for 45 s, nodes start again",
    "driver killed during a cut",
    "a node joins, its clock an hour ahead",
)
"""Faults that also strike where nodes share a URL instead of the study's folder."""


def calm(folder: Path) -> dict[str, Any]:
    """What the study leaves on one machine."""
    run = started(folder / "calm", "execution.executor=inline")
    said, _ = run.communicate()
    assert run.returncode == 0, said
    return left(folder / "calm")


def left(root: Path) -> dict[str, Any]:
    """What a study left in its store and in MLflow, without clocks; a run that is there twice is listed twice."""
    found: dict[str, Any] = {}
    for path in sorted((root / "hosts" / "cells").rglob("metrics.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        key = "/".join(path.parts[-3:])
        found[key] = [{k: v for k, v in r.items() if not k.startswith("time/")} for r in records]
    found |= {"/".join(p.parts[-3:]): p.read_bytes() for p in (root / "hosts").rglob("prompts.safetensors")}
    with sqlite3.connect(root / "mlflow.db") as database:
        rows = database.execute(
            "SELECT t.value, r.status, m.key, m.value FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid AND "
            "t.key = 'fpl.key' LEFT JOIN latest_metrics m ON m.run_uuid = r.run_uuid "
            "WHERE r.lifecycle_stage = 'active' AND (m.key IS NULL OR m.key NOT LIKE '%seconds%')"
        )
        found["MLflow"] = sorted(map(str, rows))
    database.close()
    return found


def restored(hosts: Hosts) -> None:
    """Starts what is gone of the head, which runs no trials, and of the workers."""
    hosts.mend(*WORKERS)
    if "head" not in hosts.processes:
        hosts.address = ""
        hosts.start("head", cpus=0)
    hosts.restore(("head", *WORKERS))


def struck(hosts: Hosts, fault: str, *, url: bool = False, number: int = 0) -> Run:
    """A study that a fault strikes. Where it ends for that, the cluster starts again, and the same command runs."""
    restored(hosts)
    run = Run(hosts, hosts.folder / f"out{number}", hosts.folder / f"bucket{number}" if url else None)
    run.start()
    FAULTS[fault](run)
    run.follow()
    pause = run.pause
    while run.codes[-1] in (3, -signal.SIGKILL) and len(run.codes) < 3:
        if run.codes[-1] == 3:
            hosts.stop()
        restored(hosts)
        run.start()
        run.follow()
    run.pause = pause
    if {*hosts.processes} != {"head", *WORKERS}:  # Ray takes a node for alive for a while after it was killed
        hosts.stop()
    return run


def bench_hosts(progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """One row for each fault and kind of storage.

    Raises:
        NotAllowed: this machine does not let this process make network namespaces.
    """
    rows: list[dict[str, Any]] = []
    with wired() as hosts:
        expected = calm(hosts.folder)
        cases = [*((fault, False) for fault in FAULTS), *((fault, True) for fault in AT_URL)]
        for number, (fault, url) in enumerate(cases):
            run = struck(hosts, fault, url=url, number=number)
            found = left(run.root)
            rows.append(
                {
                    "fault": fault,
                    "checkpoints": "URL" if url else "folder",
                    "longest pause (s)": round(run.pause, 1),
                    "exit codes": run.codes,
                    "store equal": {**found, "MLflow": 0} == {**expected, "MLflow": 0},
                    "MLflow equal": found["MLflow"] == expected["MLflow"],
                    "lines": len(run.said.splitlines()),
                }
            )
            progress(number + 1, len(cases))
    return rows
