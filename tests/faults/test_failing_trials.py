"""One cell goes wrong, in each of the ways a cell can: the others are what they would be without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.job import Failure, Report
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.study.store import Store

SHAKY = '''
from dataclasses import dataclass
import torch
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Shaky(PromptFL):
    """PromptFL that counts its rounds, and in the third one has a trouble of its own."""

    trouble: str = "none"

    def init(self, task, rng, before=None):
        return super().init(task, rng, before)._replace(server={"round": torch.zeros(())})

    def start(self, task, state, clients):
        clock = state.server["round"].expand(len(clients)) + 1
        return super().start(task, state, clients)._replace(buffers={"round": clock})

    def loss(self, task, local, batch):
        loss, fixed = super().loss(task, local, batch)
        third = local.buffers["round"] == 3
        if third.any() and self.trouble == "raise":
            raise RuntimeError("the third round is one too many")
        if third.any() and self.trouble == "memory":
            torch.empty(1 << 50)
        return torch.where(third, float("nan") if self.trouble == "nan" else 1.0, 1.0) * loss, fixed

    def merge(self, task, state, clients, local):
        return super().merge(task, state, clients, local)._replace(server={"round": state.server["round"] + 1})
'''


@pytest.fixture
def shaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shaky_method.py").write_text(SHAKY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    return "method=shaky_method:Shaky"


def test_a_cell_that_fails_diverges_or_has_no_memory_leaves_the_others_alone(compose, left, tmp_path, shaky) -> None:
    made = compose("axes: {method.trouble: [raise, none, nan, memory]}", shaky, "execution.retries=0")
    outcome = run_study(made, root=tmp_path / "troubled")
    assert (outcome.done, outcome.failed, outcome.pending, outcome.exit_code) == (1, 3, 0, 1)
    store = Store.open(tmp_path / "troubled", "tiny")
    results = {c.label: [store.result(c, s) or {} for s in (1, 2)] for c in store.cells()}
    states = {label.removeprefix("trouble="): [r["status"] for r in both] for label, both in results.items()}
    ends = {"none": "done", "raise": "failed", "nan": "diverged", "memory": "failed"}
    assert states == {trouble: [status] * 2 for trouble, status in ends.items()}
    for both in results.values():  # the trouble is in round 3: two rounds are told and stored
        assert {r["rounds"] for r in both} == ({4} if both[0]["status"] == "done" else {2})
    assert "one too many" in results["trouble=raise"][0]["error"]
    assert "training diverged: loss is NaN (seed 1, client 0, round 3)" in results["trouble=nan"][0]["error"]
    assert "does not fit into this machine's memory" in results["trouble=memory"][0]["error"]
    assert len(outcome.failures) == 6
    run_study(compose("axes: {method.trouble: [calm, none]}", shaky), root=tmp_path / "calm")
    troubled, calm = left(tmp_path / "troubled"), left(tmp_path / "calm")
    same = [name for name in calm if name.startswith(store.cell("trouble=none").id)]
    assert len(same) == 7
    assert {name: troubled[name] for name in same} == {name: calm[name] for name in same}
    assert not [name for name in troubled if "ckpt-" in name or name.endswith(".part")]
    again = run_study(made, root=tmp_path / "troubled")
    assert (again.skipped, again.failed, again.exit_code) == (1, 3, 1)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (MemoryError("could not allocate"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "memory"),
        (OSError(28, "No space left on device", "x"), "disk"),
        (OSError(5, "Input/output error", "x"), "error"),
        (RuntimeError("no luck"), "error"),
    ],
)
def test_kinds_of_failures(problem: Exception, kind: str) -> None:
    assert Failure.of(problem).kind == kind


def test_a_dead_process_continues_its_job_and_is_given_up_where_it_comes_no_further(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's policy: the same seeds from their checkpoint, whatever `retries`, as long as rounds are won."""
    heard: list[tuple[tuple[int, ...], int]] = []
    reach = iter([1, 0, 2, 3, *4 * [0], *8 * [0]])

    def execute(scheduler: Any, setup: Any) -> None:
        while (job := scheduler.next_job()) is not None:
            rounds = next(reach)
            heard.append((job.seeds, rounds))
            records = [[{"seed": s, "round": r + 1} for s in job.seeds] for r in range(rounds)]
            failure = Failure("The process of the trial died.", "died")
            assert not scheduler.receive(job, Report(records, failure=failure))

    monkeypatch.setattr("fpl_tune.execute.inline.execute", execute)
    outcome = run_study(compose("axes: {optim: {lr: [0.1]}}"), root=tmp_path)
    both = [((1, 2), rounds) for rounds in (1, 0, 2, 3, 0, 0, 0, 0)]
    assert heard == [*both, *4 * [((1,), 0)], *4 * [((2,), 0)]]
    assert (outcome.failed, outcome.exit_code) == (1, 1)


def test_a_lost_cuda_context_ends_the_process_and_the_study_continues(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, root, step = compose("axes: {optim: {lr: [0.01, 0.1]}}"), tmp_path / "out", Simulation.step

    def poisoned(self: Simulation) -> Any:
        if self.round == 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", poisoned)
        with pytest.raises(EnvironmentProblem, match=r"the CUDA context is lost .* Run the same command to continue"):
            run_study(made, root=root)
    assert run_study(made, root=root).exit_code == 0
    assert left(root) == whole(made)
