"""A study over a head and two worker nodes: figures, shipped code, caches, checkpoints at a URL, bad clusters."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fpl_tune
from fpl_tune.cli.doctor import check_cluster
from fpl_tune.execute.callback import Callback
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell

PLUGIN = """
from dataclasses import dataclass
import os, pathlib, fpl_tune
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Elsewhere(PromptFL):
    def merge(self, task, state, clients, local):
        if "FPL_TUNE_NODE" in os.environ:
            seen = pathlib.Path(os.environ["FPL_TUNE_NODE"]) / f"seen-{os.getpid()}"
            seen.write_text(f"{__file__}\\n{fpl_tune.__file__}\\n")
        return super().merge(task, state, clients, local)
"""
STUDY = """
defaults: [/study, {override /method: promptfl}, _self_]
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 3, epochs: 1}
"""
BODY = "axes: {optim: {lr: [0.01, 0.03, 0.1]}}\nreferences: [{method: 'elsewhere_method:Elsewhere', optim.lr: 0.1}]"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
Make = Callable[..., Any]


def built(cluster: Any, *nodes: str) -> list[bool]:
    """Which nodes have run a trial: they have features in a cache of their own."""
    return [any((cluster.folder / name / "cache").rglob("*.npy")) for name in nodes]


def test_a_study_over_nodes_has_the_figures_of_inline(
    cluster: Any, run: Make, figures: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "elsewhere_method.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(mine))
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "elsewhere_method")

    class Patience(Callback):
        """Where a node is slow to start its workers, others would have done all the trials by then."""

        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            if not all(built(cluster, "one", "two")):
                time.sleep(0.5)

    long, where = "protocol.rounds=20", ("execution.parallel=null", f"execution.address='{cluster.address}'")
    outcome = run(BODY, long, *where, callbacks=[Patience()], root="ray")
    assert (outcome.done, outcome.failed, outcome.exit_code) == (4, 0, 0), outcome.failures
    assert run(BODY, long, "execution.executor=inline", root="inline").done == 4
    pd.testing.assert_frame_equal(figures("ray"), figures("inline"), check_exact=True)
    for seen in [p for name in ("one", "two") for p in (cluster.folder / name).glob("seen-*")]:
        method, package = seen.read_text().splitlines()
        assert "py_modules_files" in method
        shipped = "py_modules_files" in package
        assert shipped or package == fpl_tune.__file__, "the driver's code runs, by its path where that is there"
    assert all(built(cluster, "one", "two")), "each node computes features once, into its own cache"


def other_torch(folder: Path) -> str:
    """A folder for a node's PYTHONPATH that makes it say that it has torch 0.0.1."""
    fake = folder / "fake" / "torch-0.0.1.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    return str(fake.parent)


WAITING = """
from dataclasses import dataclass
from functools import cached_property
import os, pathlib, time
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Waiting(PromptFL):
    @cached_property
    def merges(self):
        return []

    def merge(self, task, state, clients, local):
        if "FPL_TUNE_NODE" in os.environ:
            three = pathlib.Path(os.environ["FPL_TUNE_NODE"]).parent / "three"
            self.merges.append(time.monotonic())
            time.sleep(0.02)  # or a step of half a second, after which rounds are reported, could hold sixty
            while len(self.merges) > 60 and not any(three.rglob("*.npy")) and time.monotonic() - self.merges[0] < 300:
                time.sleep(0.1)
        return super().merge(task, state, clients, local)
"""


def test_nodes_leave_and_join_while_checkpoints_lie_at_a_url(
    cluster: Any, run: Make, figures: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is killed in mid-round; trials go on from checkpoints that no folder holds.

    Two others join: one that can run trials, and one that cannot, which is named and gets none. Trials of two seeds
    wait in their 31st round until the first of them runs one, however long a busy machine takes to start it.
    """
    (tmp_path / "waiting_method.py").write_text(WAITING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "waiting_method")
    long = ("method=waiting_method:Waiting", "protocol.rounds=60", "execution.checkpoint_every=3")
    body = "axes: {optim: {lr: [0.01, 0.03, 0.1, 0.2]}}"
    clocks: dict[tuple[str, int], set[float]] = defaultdict(set)
    had_checkpoints: set[str] = set()

    class Weather(Callback):
        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            clocks[cell.id, int(records[0]["round"])].add(records[0]["time/seconds"])
            begun = {name for name, number in clocks if number > 12}
            if len(begun) >= 3 and "two" in cluster.processes:
                had_checkpoints.update(begun)
                cluster.kill("two")
                cluster.start("odd", cpus=2, PYTHONPATH=other_torch(tmp_path))
                cluster.start("three", cpus=2)

        def on_warning(self, cell: Cell, text: str) -> None:
            """The trials of the killed node are named, and the odd node once a trial is sent there."""
            said.append(text)

    said: list[str] = []
    where = (f"execution.address='{cluster.address}'", f"execution.checkpoints='file://{tmp_path}/bucket'")
    outcome = run(body, *long, *where, "execution.parallel=null", callbacks=[Weather()], root="ray")
    assert (outcome.done, outcome.failed, outcome.exit_code) == (4, 0, 0), outcome.failures
    dead, refused = "the process of the trial died: ", "gets no trials: it has torch 0.0.1 (driver: "
    assert all(dead in text or refused in text for text in said), said
    again = {(name, number) for (name, number), read in clocks.items() if len(read) > 1}
    assert len(had_checkpoints) >= 3
    assert not {(name, 1) for name in had_checkpoints} & again, "clients had a checkpoint went on from it"
    assert built(cluster, "odd", "three") == [False, True], "trials ran on one of them only"
    assert run(body, *long, "execution.executor=inline", root="inline").exit_code == 0
    pd.testing.assert_frame_equal(figures("ray"), figures("inline"), check_exact=True)
    assert not [p for p in (tmp_path / "bucket").rglob("*") if p.is_file()], "what is finished is taken away"
    assert len(list((tmp_path / "ray").rglob("prompts.safetensors"))) == 8, "and was brought to the store"


def test_a_cluster_that_cannot_do_it_is_refused_with_what_was_found_where(
    cluster: Any, typed: Make, tmp_path: Path
) -> None:
    def refused(code: int, said: str, *overrides: str, patience: str = "200") -> None:
        ended = typed("axes: {}", *overrides, address=cluster.address, FPL_TUNE_NODE_SECONDS=patience)
        assert ended.code == code, ended.said
        assert re.search(said, ended.said)
        assert ended.at_once

    refused(2, r"asks for 1 CPU and 1 GPU, but no node has them.*0 GPU", "execution.gpus=1", "execution.device=cuda")
    alone = r"\(.*\) does not share memory://there with the driver"
    refused(3, alone, "execution.checkpoints='memory://there'")
    cluster.start("other", cpus=2, PYTHONPATH=other_torch(tmp_path))
    refused(3, r"has torch 0\.0\.1 \(driver: .*Install the same versions")
    rows = check_cluster(cluster.address, tmp_path, None, ())
    (wrong,) = [row for row in rows if row["state"] == "wrong"]
    assert "torch 0.0.1" in wrong["found"]
    assert wrong["remedy"]
    assert sum("CPU" in row["found"] for row in rows) >= 3, "every node is listed"
    os.kill(cluster.raylet("other"), signal.SIGSTOP)
    refused(3, r"cannot run a worker: no worker answered within 10 s", patience="10")


EIGHT = """
import gc, os, sys, traceback
from pathlib import Path
from fpl_tune import config
from fpl_tune.api import start_study as run_study
gc.freeze()
children = []
for name in sys.argv[1:]:
    children.append(os.fork())
    if children[-1] == 0:
        try:
            os._exit(run_study(config.compose_study(f"{name}.yaml", []), root=Path.cwd()).exit_code)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_eight_studies_at_once_do_not_mix(cluster: Any, run: Make, figures: Make, tmp_path: Path) -> None:
    """Each in a process of its own, forked from one that has imported what all need; but Ray, whose threads do not."""
    names = [f"s{number}" for number in range(1, 9)]
    levels = {name: [0.1 * number, 1 + 0.1 * number] for number, name in enumerate(names, 1)}
    quick = "protocol: {rounds: 2, epochs: 1}\nseeds: 1\ntracking: {enabled: false}\n"
    for name in names:
        body = STUDY.replace("protocol: {rounds: 3, epochs: 1}\n", quick)
        (tmp_path / f"{name}.yaml").write_text(f"{body}axes: {{optim: {{lr: {levels[name]}}}}}")
    known = {"RAY_ADDRESS": cluster.address, "FPL_TUNE_NODE_SECONDS": "200"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EIGHT, *names],
        env={**os.environ, **known, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=1200,
        check=False,
    )
    assert done.stdout.split() == ["0"] * 8, done.stderr
    every = [level for pair in levels.values() for level in pair]
    run(f"axes: {{optim: {{lr: {every}}}}}", "execution.executor=inline", "protocol.rounds=2", "seeds=1", root="inline")
    wanted = figures("inline")
    for name in names:
        found = pd.read_csv(tmp_path / name / "results.csv").drop(columns="time/seconds")
        alike = wanted[wanted["cell"].isin(found["cell"])].reset_index(drop=True)
        pd.testing.assert_frame_equal(found, alike[found.columns], check_exact=True)
        assert sorted(set(found["optim.lr"])) == pytest.approx(levels[name])
        assert set(found["status"]) == {"done"}
