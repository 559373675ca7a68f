"""A study over a head and two worker nodes: figures, shipped code, caches, checkpoints at a URL, bad clusters."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fpl_tune
from fpl_tune.cli.doctor import check_cluster
from fpl_tune.core.errors import FplTuneError
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
BODY = "axes: {optim: {lr: [0.01, 0.03, 0.1]}}\nreferences: [{method: 'elsewhere_method:Elsewhere', optim.lr: 0.1}]"
SMALL = "axes: {optim: {lr: [0.01, 0.03, 0.1]}}"

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


def test_a_node_leaves_while_checkpoints_lie_at_a_url(cluster: Any, run: Make, figures: Make, tmp_path: Path) -> None:
    """It is killed in mid-round; its trials go on from checkpoints that no folder holds, and what is lost is named."""
    long = ("protocol.rounds=60", "execution.checkpoint_every=3")
    body = "axes: {optim: {lr: [0.01, 0.03, 0.1, 0.2]}}"
    clocks: dict[tuple[str, int], set[float]] = defaultdict(set)
    had_checkpoints: set[str] = set()
    said: list[str] = []

    class Weather(Callback):
        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            clocks[cell.id, int(records[0]["round"])].add(records[0]["time/seconds"])
            begun = {name for name, number in clocks if number > 12}
            if len(begun) >= 3 and "two" in cluster.processes:
                had_checkpoints.update(begun)
                cluster.kill("two")

        def on_warning(self, cell: Cell, text: str) -> None:
            said.append(text)

    where = (f"execution.address='{cluster.address}'", f"execution.checkpoints='file://{tmp_path}/bucket'")
    outcome = run(body, *long, *where, "execution.parallel=null", callbacks=[Weather()], root="ray")
    assert (outcome.done, outcome.failed, outcome.exit_code) == (4, 0, 0), outcome.failures
    assert all(text.startswith("the process of the trial died: ") for text in said), said
    again = {(name, number) for (name, number), read in clocks.items() if len(read) > 1}
    assert len(had_checkpoints) >= 3
    assert not {(name, 1) for name in had_checkpoints} & again, "trials with a checkpoint went on from it"
    assert run(body, *long, "execution.executor=inline", root="inline").exit_code == 0
    pd.testing.assert_frame_equal(figures("ray"), figures("inline"), check_exact=True)
    assert not [p for p in (tmp_path / "bucket").rglob("*") if p.is_file()], "what is finished is taken away"
    assert len(list((tmp_path / "ray").rglob("prompts.safetensors"))) == 8, "and was brought to the store"


def test_a_cluster_without_nodes_ends_the_study_and_is_joined_once_it_has_some(
    cluster: Any, run: Make, figures: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fpl_tune.execute.ray.nodes.ABSENT_SECONDS", 2.0)

    class Kill(Callback):
        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            for name in {"one", "two"} & cluster.processes.keys():
                cluster.kill(name)

    long = ("protocol.rounds=20", "execution.checkpoint_every=1")
    where = ("execution.parallel=null", f"execution.address='{cluster.address}'")
    with pytest.raises(
        FplTuneError, match=r"No node that can run trials is alive.* the same command continues"
    ) as caught:
        run(SMALL, *long, *where, callbacks=[Kill()], root="ray")
    assert caught.value.exit_code == 3
    cluster.restore(("head", "one", "two"))
    assert run(SMALL, *long, *where, root="ray").exit_code == 0
    assert run(SMALL, *long, "execution.executor=inline", root="inline").exit_code == 0
    pd.testing.assert_frame_equal(figures("ray"), figures("inline"), check_exact=True)


def test_a_node_that_joins_late_with_other_versions_ends_the_study_and_charges_no_trial(
    cluster: Any, run: Make, tmp_path: Path
) -> None:
    class Late(Callback):
        """The other nodes are full, so that the next trial is for the one that joins."""

        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            if "late" not in cluster.processes:
                cluster.start("late", cpus=2, PYTHONPATH=other_torch(tmp_path))

        def on_study_end(self, store: Any, outcome: Any) -> None:
            assert outcome.failed == 0

    body = "axes: {optim: {lr: [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]}}"
    where = ("execution.parallel=null", f"execution.address='{cluster.address}'")
    with pytest.raises(FplTuneError, match=r"joined later, has torch 0\.0\.1 .* the same command continues") as caught:
        run(body, "protocol.rounds=400", *where, callbacks=[Late()])
    assert caught.value.exit_code == 3
    assert not list((tmp_path / "out").rglob("result.json"))


def test_a_cluster_that_cannot_do_it_is_refused_with_what_was_found_where(
    cluster: Any, run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(said: str, *overrides: str) -> None:
        with pytest.raises(FplTuneError, match=said):
            run("axes: {}", f"execution.address='{cluster.address}'", *overrides)

    refused(r"asks for 1 CPU and 1 GPU, but no node has them.*0 GPU", "execution.gpus=1", "execution.device=cuda")
    refused(r"\(.*\) does not share memory://there with the driver", "execution.checkpoints='memory://there'")
    cluster.start("other", cpus=2, PYTHONPATH=other_torch(tmp_path))
    refused(r"has torch 0\.0\.1 \(driver: .*Install the same versions")
    rows = check_cluster(cluster.address, tmp_path)
    (wrong,) = [row for row in rows if row["state"] == "wrong"]
    assert "torch 0.0.1" in wrong["found"]
    assert wrong["remedy"]
    assert sum("CPU" in row["found"] for row in rows) >= 3, "every node is listed"
    os.kill(cluster.part("other", "raylet"), signal.SIGSTOP)
    monkeypatch.setattr("fpl_tune.execute.ray.nodes.ANSWER_SECONDS", 10.0)
    refused(r"cannot run a worker: no worker answered within 10 s")
