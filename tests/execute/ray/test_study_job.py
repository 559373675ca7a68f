"""A study's job in an actor with a GPU: its share of the memory, its own peak, and errors that end the process."""

from __future__ import annotations

import pickle
import re
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fpl_tune.execute.job import ExecutionContext, Job, JobRun
from fpl_tune.execute.ray import study_job
from fpl_tune.execute.ray.bridge import Bridge
from fpl_tune.execute.ray.study_job import REPORT, STUDY, Assignment, ContextLost, StudyTrainable
from fpl_tune.execute.resources import setup_of
from fpl_tune.study.cells import expand
from fpl_tune.study.versions import versions


class Round:
    """Stands in for `Trial`: what a round does is given."""

    def __init__(self, *rounds: Exception | None) -> None:
        self.rounds, self.round, self.done = list(rounds), 0, False

    def step(self) -> list[Any]:
        self.round += 1
        if problem := self.rounds.pop(0):
            raise problem
        return []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA, in order; the peak is that of the last process since it was reset."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: found.append("reset"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: found.append(f"share {share}"))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 7 << 30)
    return found


def _actor(
    monkeypatch: pytest.MonkeyPatch, folder: Path, calls: list[str], *rounds: Exception | None
) -> StudyTrainable:
    def begin(*_: Any) -> Round:
        calls.append("begin")
        return Round(*rounds)

    monkeypatch.setattr(JobRun, "_begin", begin)
    monkeypatch.setattr(study_job, "STEP_SECONDS", 0.0)
    return StudyTrainable({STUDY: pickle.dumps(assignment(folder))})


def assignment(folder: Path) -> Assignment:
    cell: Any = SimpleNamespace(id="0")
    return Assignment(Job(cell, (1,)), ExecutionContext(folder, folder, device="cuda"), {}, gpus=0.3)


def test_a_peak_is_the_jobs_own_and_known_from_the_second_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    actor = _actor(monkeypatch, tmp_path, calls, None, None)
    assert [actor.step()[REPORT].peak_device_bytes for _ in range(2)] == [0, 7 << 30]
    assert calls[:4] == ["empty", "reset", "share 0.3", "begin"]


def test_out_of_memory_is_reported_and_a_lost_context_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    memory = RuntimeError("CUDA error: out of memory")
    assert _actor(monkeypatch, tmp_path, calls, memory).step()[REPORT].failure.kind == "memory"
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(ContextLost, match="the CUDA context is lost"):
        _actor(monkeypatch, tmp_path, calls, lost).step()


def test_a_study_that_stopped_while_the_process_started_begins_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / study_job.STOP_FILE).touch()
    report = _actor(monkeypatch, tmp_path, calls).step()[REPORT]
    assert "begin" not in calls
    assert (report.rounds, report.output, report.failure, report.last) == ([], None, None, True)


def test_an_actor_drops_what_it_held_before_the_next_job_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    """Else the next job's peak would count it."""
    actor = _actor(monkeypatch, tmp_path, calls)
    held, seen = weakref.ref(actor._run), []  # type: ignore[arg-type]
    monkeypatch.setattr(study_job, "JobRun", lambda *_: seen.append(held()))
    assert actor.reset_config({STUDY: pickle.dumps(assignment(tmp_path))})
    assert seen == [None]


def test_an_actor_without_the_studys_folder_sends_its_files_to_the_url(compose: Any, tmp_path: Path) -> None:
    spec, _ = made = compose("axes: {optim: {lr: [0.1]}}", f"execution.checkpoints=file://{tmp_path}/bucket")
    (cell,) = expand(*made)
    job, setup = Job(cell, (1, 2)), replace(setup_of(spec, tmp_path / "tiny"), address="head:1")
    actor = StudyTrainable({STUDY: pickle.dumps(Assignment(job, setup, versions()))})
    reports = [actor.train()[REPORT]]
    while not reports[-1].last:
        reports.append(actor.train()[REPORT])
    assert [records[0]["round"] for report in reports for records in report.rounds] == [1, 2]
    assert sorted(reports[-1].output.prompts.values()) == ["prompts-1.safetensors", "prompts-2.safetensors"]
    found = {path.name for path in (tmp_path / "bucket" / "tiny" / job.path).iterdir()}
    assert found >= set(reports[-1].output.prompts.values())
    assert not (tmp_path / "tiny").exists()


def test_a_node_with_other_versions_declines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scheduler queues the job again, and the node gets no more."""
    monkeypatch.setattr(study_job.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0123456789"))
    sent = replace(assignment(tmp_path), versions={"torch": "0.0.1"})
    sent = replace(sent, setup=replace(sent.setup, address="head:1"))
    report = StudyTrainable({STUDY: pickle.dumps(sent)}).step()[REPORT]
    received, said = [], []
    scheduler: Any = SimpleNamespace(
        receive=lambda job, report: received.append(report), warn=lambda job, text: said.append(text)
    )
    bridge = Bridge(scheduler, sent.setup)
    for number in ("first", "second"):
        bridge.running[number] = sent.job
        assert not bridge.receive(number, report)
    assert bridge.refused == {"0123456789"}
    assert len(said) == 1
    assert re.match(r"node 012345 gets no trials: it has torch .* \(driver: 0.0.1\). See `fpl-tune doctor`", said[0])
    assert [found.failure.kind for found in received] == ["declined"] * 2
