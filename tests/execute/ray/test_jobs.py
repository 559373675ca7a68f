"""A study's job in an actor with a GPU: its share of the memory, its own peak, and errors that end the process."""

import pickle
import re
import socket
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.exceptions import GetTimeoutError

from fpl_tune import FederatedTrainable, config
from fpl_tune.config.specs import ExecutionSpec
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute import job as job_module
from fpl_tune.execute import ray as ray_executor
from fpl_tune.execute.job import ExecutionContext, Failure, Job, Report
from fpl_tune.execute.ray import connect, executor, nodes, trainable
from fpl_tune.execute.ray.executor import JobScheduler, JobSearcher, cause_of_death
from fpl_tune.execute.ray.trainable import JOB, REPORT, SentJob
from fpl_tune.execute.resources import setup_of
from fpl_tune.study.cells import Cell
from fpl_tune.study.grid import expand
from fpl_tune.study.lock import STOP_FILE
from fpl_tune.study.versions import versions

from ...conftest import Heard, start_study, there


class Round:
    """Stands in for `Simulation`: what a round does is given."""

    def __init__(self, *rounds: Exception | None) -> None:
        self.rounds, self.round, self.done = list(rounds), 0, False

    def step(self) -> list[Any]:
        self.round += 1
        if problem := self.rounds.pop(0):
            raise problem
        return []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of CUDA, in order."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("empty"))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: found.append(f"share {share}"))
    return found


def sent(
    job: Job, context: ExecutionContext, drivers: dict[str, str] | None = None, share: float = 0.3
) -> dict[str, Any]:
    return {JOB: SentJob(pickle.dumps((job, context, drivers or {}, []))), "GPU": share}


def one_job() -> Job:
    return Job(Cell("0", 0, "", "cell", {}, config.compose_run()), (1,))


def on_gpu(folder: Path) -> ExecutionContext:
    return ExecutionContext(folder, folder, device="cuda")


def _actor(
    monkeypatch: pytest.MonkeyPatch, folder: Path, calls: list[str], *rounds: Exception | None
) -> FederatedTrainable:
    def begin(*_: Any, **__: Any) -> Round:
        calls.append("begin")
        return Round(*rounds)

    monkeypatch.setattr(job_module, "Simulation", begin)
    monkeypatch.setattr(trainable, "STEP_SECONDS", 0.0)
    return FederatedTrainable(sent(one_job(), on_gpu(folder)))


def test_a_job_has_its_share_of_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]) -> None:
    _actor(monkeypatch, tmp_path, calls, None).step()
    assert calls == ["empty", "share 0.3", "begin"]


def test_a_job_brings_the_modules_that_the_driver_trusts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    """The workers of an application's Ray may be older than the trust."""
    actor = _actor(monkeypatch, tmp_path, calls, None)
    monkeypatch.setenv(plugins.VARIABLE, "theirs")
    message = {JOB: SentJob.of(one_job(), on_gpu(tmp_path)), "GPU": 0.3}
    monkeypatch.setenv(plugins.VARIABLE, "here")
    actor.reset_config(message)
    assert plugins.trusted() == ["here", "theirs"]


def test_a_job_without_a_share_may_take_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]) -> None:
    """`execution.gpus=0`: a fraction of 0 would leave it no byte."""
    actor = _actor(monkeypatch, tmp_path, calls, None)
    calls.clear()
    assert actor.reset_config(sent(one_job(), on_gpu(tmp_path), share=0.0))
    assert calls == ["empty"]


def test_out_of_memory_is_reported_and_a_lost_context_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    memory = RuntimeError("CUDA error: out of memory")
    assert _actor(monkeypatch, tmp_path, calls, memory).step()[REPORT].failure.kind == "memory"
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(EnvironmentProblem, match="the CUDA context is lost"):
        _actor(monkeypatch, tmp_path, calls, lost).step()


def test_a_study_that_stopped_while_the_process_started_begins_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / STOP_FILE).touch()
    report = _actor(monkeypatch, tmp_path, calls).step()[REPORT]
    assert "begin" not in calls
    assert (report.rounds, report.output, report.failure, report.last) == ([], None, None, True)


def test_an_actor_drops_what_it_held_before_the_next_job_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    """Else both would have to fit."""
    actor = _actor(monkeypatch, tmp_path, calls)
    held, seen = weakref.ref(actor._run), []
    monkeypatch.setattr(trainable, "JobRun", lambda *_: seen.append(held()))
    assert actor.reset_config(sent(one_job(), on_gpu(tmp_path)))
    assert seen == [None]


def test_an_actor_without_the_studys_folder_sends_its_files_to_the_url(compose: Any, tmp_path: Path) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", f"execution.checkpoints=file://{tmp_path}/bucket")
    (cell,) = expand(made)
    job, context = Job(cell, (1, 2)), replace(setup_of(made, tmp_path / "tiny", [made]), address="head:1")
    actor = FederatedTrainable(sent(job, context, versions()))
    reports = [actor.train()[REPORT]]
    while not reports[-1].last:
        reports.append(actor.train()[REPORT])
    assert [records[0]["round"] for report in reports for records in report.rounds] == [1, 2]
    names = {name for _, name in reports[-1].output.values()}
    assert names == {"prompts-1.safetensors", "prompts-2.safetensors"}
    found = {path.name for path in (tmp_path / "bucket" / "tiny" / job.path).iterdir()}
    assert found >= names
    assert not (tmp_path / "tiny").exists()


def test_a_node_that_joins_with_other_versions_runs_no_job_and_says_so(tmp_path: Path) -> None:
    actor = FederatedTrainable(sent(one_job(), on_gpu(tmp_path), {"torch": "0.0.1"}))
    failure = actor.step()[REPORT].failure
    assert failure.kind == "environment"
    assert f"{socket.gethostname()} (" in failure.error
    assert re.search(r"joined later, has torch .* \(driver: 0\.0\.1\)\. Install .* the same command", failure.error)


def test_a_study_whose_node_is_unfit_ends_with_that_and_charges_no_job(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of the unfit node reports, between those of others; the same command then continues."""

    def execute(driver: Any, context: ExecutionContext) -> None:
        jobs = JobSearcher(driver, replace(context, parallel=2))
        assert jobs.suggest("good")
        assert jobs.suggest("bad")
        assert not jobs.receive("bad", Report([], failure=Failure("Every node must be able, but one", "environment")))
        assert not jobs.receive("good", Report([], last=False)), "nothing else goes on"
        assert jobs.suggest("next") == "FINISHED"
        assert jobs.problem is not None
        raise jobs.problem

    made, heard = compose("axes: {optim: {lr: [0.01, 0.1]}}"), Heard()
    with monkeypatch.context() as patch:
        patch.setattr("fpl_tune.execute.inline.execute", execute)
        with pytest.raises(EnvironmentProblem, match="Every node must be able, but one"):
            start_study(made, root=tmp_path / "out", callbacks=[heard])
    assert [(outcome.failed, outcome.pending) for outcome in heard.outcomes] == [(0, 2)]
    assert start_study(made, root=tmp_path / "out").exit_code == 0


def test_every_node_that_is_alive_is_checked_and_what_it_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One is dead, one dies meanwhile, one does not answer, and one has another version of a package."""
    names = {f"{number:056x}": name for number, name in enumerate(("dead", "dies", "mute", "old", "fit"), 1)}
    asked, limits = list[str](), list[float]()

    def nodes_now() -> list[dict[str, Any]]:
        gone = {"dead", "dies"} if asked else {"dead"}
        return [
            {
                **{"NodeID": key, "NodeManagerHostname": name, "NodeManagerAddress": "192.0.2.1"},
                **{"Alive": name not in gone, "Resources": {"CPU": 4.0, "GPU": 2.0} if name == "fit" else {"CPU": 2.0}},
            }
            for key, name in names.items()
        ]

    def on(strategy: Any) -> Any:
        def probed(storage: str, token: str, roots: Any, drivers: Any, gpus: bool) -> str:
            asked.append(name := names[strategy.node_id])
            assert (Path(storage) / token).is_file(), "which the node must see, too"
            assert gpus == (name == "fit")
            return name

        return SimpleNamespace(remote=probed)

    def get(name: str, timeout: float) -> tuple[str, tuple[int, ...]]:
        if name == "mute":
            raise GetTimeoutError
        return {"old": ("has torch 0.0.1", ()), "fit": ("", (8, 8))}[name]

    worker = SimpleNamespace(options=lambda scheduling_strategy: on(scheduling_strategy))
    calls: dict[str, Any] = {"remote": lambda **_: lambda probe: worker, "nodes": nodes_now, "get": get}
    calls["wait"] = lambda refs, num_returns, timeout: limits.append(timeout)
    monkeypatch.setattr(nodes, "ray", SimpleNamespace(**calls))
    mute, old, fit = nodes.check_nodes(str(tmp_path))
    assert asked == ["dies", "mute", "old", "fit"]
    assert mute.problem.startswith(f"cannot run a worker: no worker answered within {limits[0]:.0f} s.")
    assert (old.name, old.problem) == ("old (192.0.2.1)", "has torch 0.0.1")
    assert (fit.problem, fit.cpus, fit.gpus, fit.gpu_bytes) == ("", 4.0, 2.0, (8, 8))
    assert limits[0] > nodes.ANSWER_SECONDS, "PyTorch, which says what GPUs have, takes longer"
    assert list(tmp_path.iterdir()) == [], "nothing is left at the place"


def test_gpus_are_filled_by_the_shares_of_their_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One more job than fits may wait. One that was out of memory beside others asks for a GPU of its own."""
    monkeypatch.setattr(executor.ray, "cluster_resources", lambda: {"GPU": 1.0})
    queue = [Job(SimpleNamespace(id=str(n), run=None), (1,)) for n in range(5)]  # type: ignore[arg-type]
    queue[0].alone = True
    driver: Any = SimpleNamespace(next_leg=lambda: queue.pop(0), over=False)
    context = ExecutionContext(tmp_path, tmp_path, device="cuda", gpus=0.4, parallel=8)
    jobs = JobSearcher(driver, context)
    assert jobs.suggest("0")["GPU"] == 1.0
    assert jobs.suggest("1") is None
    del jobs.running["0"]
    assert [(jobs.suggest(str(n)) or {}).get("GPU") for n in range(1, 5)] == [0.4, 0.4, 0.4, None]


@pytest.mark.parametrize(
    ("gpus", "parallel", "number"), [(0.0, None, 4), (0.4, None, 2), (1.0, None, 1), (0.0, 3, 3), (0.4, 3, 2)]
)
def test_trials_side_by_side_are_as_many_as_processors_gpus_and_the_study_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: float, parallel: int | None, number: int
) -> None:
    monkeypatch.setattr(nodes.ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    context = ExecutionContext(tmp_path, tmp_path, ExecutionSpec(parallel=parallel), threads=2, gpus=gpus)
    assert nodes.slots(context) == number


def test_the_end_of_a_trials_process_is_a_failure_of_its_job_unless_that_is_over(tmp_path: Path) -> None:
    told: list[tuple[Job, Report]] = []
    driver: Any = SimpleNamespace(receive=lambda job, report: told.append((job, report)) or False, stopping=False)
    jobs = JobSearcher(driver, ExecutionContext(tmp_path, tmp_path))
    job = jobs.running["one"] = one_job()
    (tmp_path / "error.txt").write_text(NODE)
    for name in ("other", "one", "one"):
        trial = SimpleNamespace(trial_id=name, error_file=str(tmp_path / "error.txt"))
        JobScheduler(jobs).on_trial_error(None, trial)
    ((of, report),) = told
    assert of is job
    assert report.failure is not None
    assert report.failure.kind == "died"
    assert "health check failed (node 192.0.2.3)" in report.failure.error
    assert str(tmp_path) in report.warnings[0], "where Ray's messages are"
    for path in (None, str(tmp_path / "not yet there")):
        jobs.running["two"] = one_job()
        JobScheduler(jobs).on_trial_error(None, SimpleNamespace(trial_id="two", error_file=path))
        assert there(told[-1][1].failure).error.endswith("killed, or out of memory")


def test_a_trial_goes_on_as_long_as_the_driver_says(tmp_path: Path) -> None:
    driver: Any = SimpleNamespace(receive=lambda job, report: not report.last, stopping=False)
    jobs = JobSearcher(driver, ExecutionContext(tmp_path, tmp_path))
    jobs.running["one"] = one_job()
    trial, decisions = SimpleNamespace(trial_id="one"), []
    for last in (False, False, True):
        decisions.append(JobScheduler(jobs).on_trial_result(None, trial, {REPORT: Report([], last=last)}))
    assert decisions == ["CONTINUE", "CONTINUE", "STOP"]
    assert not jobs.running


STARTED = """Failure # 1 (occurred at 2026-01-01_00-00-00)
The actor died because of an error raised in its creation task, ray::FederatedTrainable.__init__() (pid=7, ip=192.0.2.1)
  File "actor.py", line 3, in setup
    import torch
ImportError: libfoo.so: cannot open shared object file
"""
ENDED = """Failure # 1 (occurred at 2026-01-01_00-00-00)
The actor died unexpectedly before finishing this task.
\tactor_id: 3e0d
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: {} Some causes
"""
NODE = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tpid: 7
\tip: 192.0.2.3
The actor died because its node has died. Node Id: 699b
\tthe actor's node was terminated unexpectedly: health check failed.
"""


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (NODE, "the actor's node was terminated unexpectedly: health check failed (node 192.0.2.3)"),
        (STARTED, "ImportError: libfoo.so: cannot open shared object file"),
        (ENDED.format("The leased worker's node died."), "The actor is dead because its worker process has died. "),
        ("", "killed, or out of memory"),
    ],
)
def test_why_a_process_died(said: str, read: str) -> None:
    found = cause_of_death(said)
    assert found.startswith(f"the process of the trial died: {read}")
    assert "\n" not in found


def test_no_sentence_of_ray_is_cut() -> None:
    """One that is too long is left out, and so is what follows it."""
    short, long = "The worker has died", f"It ended {'x' * 600}"
    assert cause_of_death(f"\tpid: 7\n{short}. And why. {long}. Another one.").endswith(f"{short}. And why")
    assert cause_of_death(f"{long}.").endswith(": killed, or out of memory")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("gpus", "given", "settled"),
    [
        ((), {"device": "auto", "gpus": None}, ("cpu", 2, 0.0, 0)),
        (((8, 8), (4,)), {"device": "auto", "gpus": None}, ("cuda", 1, None, 4 * GIB)),
        (((8, 8), (4,)), {"device": "auto", "gpus": 0.5}, ("cuda", 1, 0.5, 4 * GIB)),
        (((8,),), {"device": "cpu", "gpus": None}, ("cpu", 2, 0.0, 8 * GIB)),
        (((8,),), {"device": "auto", "gpus": None, "execution": ExecutionSpec(threads=2)}, ("cuda", 2, None, 8 * GIB)),
    ],
)
def test_the_nodes_of_a_cluster_decide_device_threads_and_memory(
    gpus: tuple[tuple[int, ...], ...],
    given: dict[str, Any],
    settled: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A trial on a GPU has one core unless it is told more, and the smallest GPU says what a share of it is."""
    found = [
        nodes.Node("plain", 8, 0),
        *(nodes.Node("gpu", 8, len(each), "", tuple(n * GIB for n in each)) for each in gpus),
    ]
    monkeypatch.setattr(executor, "check_nodes", lambda storage, roots: found)
    context = executor.settle(ExecutionContext(tmp_path, tmp_path, **{"threads": 2, "address": "head:1", **given}))
    assert (context.device, context.threads, context.gpus, context.gpu_bytes) == settled


def test_gpus_that_pytorch_does_not_see_are_an_error_here_and_on_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(executor, "check_nodes", lambda storage, roots: [nodes.Node("gpu", 8, 1)])
    here, there = (
        ExecutionContext(tmp_path, tmp_path, device="cuda", gpus=None, address=at) for at in (None, "head:1")
    )
    for seen in ((), ((3, 2), (2, 1))):
        monkeypatch.setattr(executor, "gpus_here", lambda seen=seen: seen)
        with pytest.raises(EnvironmentProblem, match="PyTorch sees no GPU where trials run"):
            executor.settle(here if not seen else there)
    assert executor.settle(here).gpu_bytes == 2, "the memory of the smallest"


def test_nodes_are_rejected_where_none_has_room_or_one_with_room_lacks_something() -> None:
    small, large = nodes.Node("small", 1, 0, "has torch 0.0.1"), nodes.Node("large", 8, 1)
    nodes.reject_unfit([small, large], 2, 0)
    nodes.reject_unfit([small, large], 1, 1)
    nodes.reject_unfit([small, large], 8, 1)
    with pytest.raises(EnvironmentProblem, match=r"but small has torch 0\.0\.1\.$"):
        nodes.reject_unfit([small, large], 1, 0)
    for cpus, gpus in ((9, 0), (1, 2)):
        with pytest.raises(ConfigError, match=f"asks for {cpus} CPU and {gpus} GPU, .* small: 1 CPU, 0 GPU; large: 8"):
            nodes.reject_unfit([small, large], cpus, gpus)


def test_nodes_count_while_they_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        connect, "connected", lambda address, **how: joined.append((address, how)) or nullcontext("/tmp")
    )
    monkeypatch.setattr(nodes.ray, "nodes", lambda: [{"Alive": True}, {"Alive": False}, {"Alive": True}])
    assert ray_executor.alive("head:1") == 2
    assert joined == [("head:1", {"ship": False})], "nothing runs there"
    monkeypatch.setattr(nodes, "check_nodes", lambda storage, roots: [storage, *roots])
    assert ray_executor.inspect("head:1", "s3://bucket", ["data"]) == ["s3://bucket", "data"]
