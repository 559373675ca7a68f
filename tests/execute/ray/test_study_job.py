"""A study's job in an actor with a GPU: its share of the memory, its own peak, and errors that end the process."""

from __future__ import annotations

import pickle
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fpl_tune.execute.job import Setup
from fpl_tune.execute.ray import study_job, trainable
from fpl_tune.execute.ray.study_job import Assignment, ContextLost, StudyWork


@dataclass
class Run:
    """Stands in for `JobRun`: what a step does is given."""

    steps: list[Any]
    done: bool = False

    def __post_init__(self) -> None:
        self.trial = SimpleNamespace(round=0)

    def advance(self, *_: Any) -> list[Any]:
        self.trial.round += 1
        if isinstance(problem := self.steps.pop(0), Exception):
            raise problem
        return []

    def unreported(self) -> list[Any]:
        return []

    warnings = unreported


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA, in order; the peak is that of the last process since it was reset."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: found.append("reset"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: found.append(f"share {share}"))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 7 << 30)
    return found


def _work(monkeypatch: pytest.MonkeyPatch, folder: Path, calls: list[str], *steps: Any) -> StudyWork:
    def begin(*_: Any) -> Run:
        calls.append("begin")
        return Run(list(steps))

    monkeypatch.setattr(study_job, "JobRun", begin)
    job: Any = None
    return StudyWork(Assignment(job, Setup(folder, folder, device="cuda"), {}, gpus=0.3))


def test_a_peak_is_the_jobs_own_and_known_from_the_second_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    work = _work(monkeypatch, tmp_path, calls, None, None)
    assert calls == ["empty", "reset", "share 0.3", "begin"]
    assert [work.step().peak_device_bytes for _ in range(2)] == [0, 7 << 30]


def test_out_of_memory_is_reported_and_a_lost_context_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    memory = RuntimeError("CUDA error: out of memory")
    report = _work(monkeypatch, tmp_path, calls, memory).step()
    assert report.failure is not None
    assert report.failure.kind == "memory"
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(ContextLost, match="the CUDA context is lost"):
        _work(monkeypatch, tmp_path, calls, lost).step()


def test_a_study_that_stopped_while_the_process_started_begins_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / study_job.STOP_FILE).touch()
    report = _work(monkeypatch, tmp_path, calls).step()
    assert "begin" not in calls
    assert (report.rounds, report.output, report.failure, report.last) == ([], None, None, True)


class Held:
    """What an actor holds."""


def test_an_actor_drops_what_it_held_before_the_next_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next job's peak would count it."""
    held, seen = Held(), []
    still = weakref.ref(held)
    actor = object.__new__(trainable.FederatedTrainable)
    actor._study = held  # type: ignore[assignment]
    del held
    monkeypatch.setattr(trainable, "StudyWork", lambda _: seen.append(still()))
    assert actor.reset_config({study_job.STUDY: pickle.dumps(None)})
    assert seen == [None]
