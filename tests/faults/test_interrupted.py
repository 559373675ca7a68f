"""Signals, damaged checkpoints, a full disk, and cells that go wrong: the rest is what it would be without them."""

import errno
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.job import Failure, Report
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.lock import STOP_FILE, owner
from fpl_tune.study.store import Store

from ..conftest import Heard, note_steps, there
from ..conftest import start_study as run_study

ONE = "axes: {optim: {lr: [0.1]}}"


class Signals(Callback):
    """Sends itself signals after a round, and notes what it hears."""

    def __init__(self, number: int = 0, *signals: int) -> None:
        self.number, self.signals = number, signals
        self.heard: list[str] = []

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if records[0]["round"] == self.number:
            for one in self.signals:
                os.kill(os.getpid(), one)

    def on_warning(self, cell: Cell, text: str) -> None:
        self.heard.append(text)

    def on_study_end(self, store: Any, outcome: Any) -> None:
        self.heard.append("end")

    def on_abort(self) -> None:
        self.heard.append("cut")


@pytest.mark.parametrize(("first", "second", "code"), [("SIGINT", "SIGINT", 130), ("SIGINT", "SIGTERM", 143)])
def test_the_second_signal_ends_at_once_with_its_code(
    compose: Any,
    left: Any,
    whole: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
    code: int,
) -> None:
    made, root = compose(ONE), tmp_path / "cut"
    twice = Signals(2, signal.Signals[first], signal.Signals[second])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as caught:
        run_study(made, root=root, callbacks=[twice])
    assert caught.value.code == code
    assert twice.heard == ["cut"]
    assert signal.getsignal(signal.SIGINT) is before
    assert owner(root / "tiny") is None
    steps = note_steps(monkeypatch)
    assert run_study(made, root=root).exit_code == 0
    assert steps == [3, 4]
    assert not (root / "tiny" / STOP_FILE).exists()
    assert left(root) == whole(made)


@pytest.mark.parametrize(("damaged", "done"), [(1, [3, 4]), (2, [1, 2, 3, 4])])
def test_the_newest_checkpoint_that_is_whole_is_used(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int, done: list[int]
) -> None:
    """Round 3 was in the newest; without one, a cell begins anew."""
    made, root, ear = compose(ONE), tmp_path / "damaged", Signals()
    assert run_study(made, root=root, callbacks=[Signals(3, signal.SIGTERM)]).exit_code == 143
    (slot,) = root.rglob("ckpt-*")
    newest, *others = checkpoint.list_newest(slot)
    content = newest.read_bytes()
    newest.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    for path in others[: damaged - 1]:
        path.write_bytes(path.read_bytes()[:50])
    steps = note_steps(monkeypatch)
    assert run_study(made, root=root, callbacks=[ear]).exit_code == 0
    assert steps == done
    assert damaged > 1 or (len(ear.heard) == 2 and "corrupt" in ear.heard[0])
    assert left(root) == whole(made)


def test_a_seed_stored_before_a_kill_stays_as_it_was_when_its_cell_resumes(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both seeds have one checkpoint, so both train again; only the second is stored then."""
    made, put = compose(ONE), Store.put

    def dying(store: Store, cell: Cell, seed: int, *args: Any) -> None:
        if seed == 2:
            raise KeyboardInterrupt
        put(store, cell, seed, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            run_study(made, root=tmp_path)
    first = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed=1/*")}
    assert {path.name for path in first} == {"metrics.jsonl", "prompts.safetensors", "result.json"}
    assert run_study(made, root=tmp_path).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("seed=1/*")} == first
    assert left(tmp_path) == whole(made)


@pytest.mark.parametrize("limit", [100, 6000])
def test_no_room_for_results_is_exit_code_3_and_the_same_command_continues(
    compose: Any, left: Any, whole: Any, tmp_path: Path, limit: int
) -> None:
    """The system itself refuses: 100 bytes stop the first file, 6,000 the prompts."""
    made, root = compose(ONE), tmp_path / "full"
    undisturbed = whole(made)  # first, so that features are in the cache already
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(EnvironmentProblem) as refused:
            run_study(made, root=root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.exit_code == 3
    for words in ("The disk refuses to store results", "File too large", "name another folder in FPL_TUNE_OUTPUT"):
        assert words in str(refused.value)
    assert not list(root.rglob("result.json"))
    assert not list(root.rglob("*.part"))
    assert run_study(made, root=root).exit_code == 0
    assert left(root) == undisturbed


def test_a_checkpoint_that_cannot_be_written_is_told_and_the_study_goes_on(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, write, ear = compose(ONE), checkpoint.write, Heard()

    def full(folder: Path, snapshot: Snapshot) -> Path:
        if snapshot.meta["round"] == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return write(folder, snapshot)

    monkeypatch.setattr(checkpoint, "write", full)
    assert run_study(made, root=tmp_path / "full", callbacks=[ear]).exit_code == 0
    assert len(ear.warnings) == 1
    assert "A checkpoint after round 2 could not be written (No space left on device)" in ear.warnings[0]
    assert left(tmp_path / "full") == whole(made)


def test_listeners_hear_the_end_when_a_result_cannot_be_stored(compose, left, whole, tmp_path, monkeypatch) -> None:
    """No record of the study stays open; the cell that was finished before is not run again."""
    made, ear, put, stored = compose(), Heard(), Store.put, []

    def full(self: Store, *args: Any, **kwargs: Any) -> None:
        if len(stored) == 3:  # the second cell's second seed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "result.json")
        stored.append(args[1])
        put(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", full)
        with pytest.raises(EnvironmentProblem, match="No space left on device: result"):
            run_study(made, root=tmp_path / "full", callbacks=[ear])
    (ended,) = ear.outcomes
    assert (ended.done, ended.pending) == (1, 1)
    outcome = run_study(made, root=tmp_path / "full")
    assert (outcome.done, outcome.skipped, outcome.exit_code) == (1, 1, 0)
    assert left(tmp_path / "full") == whole(made)


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
    results = {c.label: [there(store.result(c, s)) for s in (1, 2)] for c in store.cells()}
    states = {label.removeprefix("trouble="): [r.status for r in both] for label, both in results.items()}
    ends = {"none": "done", "raise": "failed", "nan": "diverged", "memory": "failed"}
    assert states == {trouble: [status] * 2 for trouble, status in ends.items()}
    for both in results.values():  # the trouble is in round 3: two rounds are told and stored
        assert {r.rounds for r in both} == ({4} if both[0].status == "done" else {2})
    assert "one too many" in str(results["trouble=raise"][0].error)
    assert "training diverged: loss is NaN (seed 1, client 0, round 3)" in str(results["trouble=nan"][0].error)
    assert "does not fit into this machine's memory" in str(results["trouble=memory"][0].error)
    run_study(compose("axes: {method.trouble: [calm, none]}", shaky), root=tmp_path / "calm")
    troubled, calm = left(tmp_path / "troubled"), left(tmp_path / "calm")
    same = [name for name in calm if name.startswith(store.cell("trouble=none").id)]
    assert len(same) == 8
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

    def execute(driver: Any, setup: Any) -> None:
        while (job := driver.next_leg()) is not None:
            rounds = next(reach)
            heard.append((job.seeds, rounds))
            records = [[{"seed": s, "round": r + 1, "time/seconds": 1.0} for s in job.seeds] for r in range(rounds)]
            failure = Failure("The process of the trial died.", "died")
            assert not driver.receive(job, Report(records, failure=failure))

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
