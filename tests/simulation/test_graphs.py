"""Recorded steps end where eager ones end, on the CPU and on the simulated accelerator; what cannot be recorded."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_device import CaptureError, counting
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Batch, Local, Tree
from fpl_tune.methods.full_model import FullModel
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.batches import Cohort, plan_round
from fpl_tune.simulation.graphs import Disagrees, Graphs, capture
from fpl_tune.testing import assert_same, play, toy_task

SPEC = OptimSpec(lr=0.02, batch=4, name="adamw", schedule="cosine")
METHOD = PFedMoAP(n_ctx=2, experts=3, heads=3, d_gating=12)
COHORTS = ((0, 2), (2, 1), (1, 3))


@pytest.mark.parametrize("sizes", [(9, 5, 7, 3), (9, 0, 7, 3)], ids=["uneven", "one without images"])
def test_static_steps_end_where_shrinking_ones_end(sizes: tuple[int, ...]) -> None:
    """On the CPU: clients without a batch left take part untouched, and moments, rates and losses are their own."""
    task = toy_task(sizes=sizes)
    eager, static = (
        play(METHOD, [task], cohorts=COHORTS, spec=SPEC, graphs=graphs)[-1][0] for graphs in (None, Graphs(always=True))
    )
    assert_same(static, eager, tolerance=1e-8)


def test_a_replayed_step_is_one_launch_and_a_graph_serves_all_rounds(sim, monkeypatch) -> None:
    recorded = 0

    def counted(*args: Any) -> Any:
        nonlocal recorded
        recorded += 1
        return capture(*args)

    monkeypatch.setattr("fpl_tune.simulation.graphs.capture", counted)
    graphs, launches = Graphs(always=True), []
    task = toy_task(sizes=(8, 8, 8, 8), device=sim)
    (state,) = play(METHOD, [task], cohorts=COHORTS, spec=SPEC, epochs=3, graphs=graphs)[-1]
    for epochs in (2, 2, 3):  # the first one encodes experts that the others remember
        with counting() as seen:
            play(METHOD, [task], cohorts=COHORTS[:1], states=[state], spec=SPEC, epochs=epochs, graphs=graphs)
        launches.append(seen.launches.total())
    assert recorded == 1
    assert launches[2] - launches[1] == 2, "two more steps of two clients"


class _Waning(PromptFL):
    """Its loss depends on the round."""

    def loss(self, task: Any, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, fixed = super().loss(task, local, batch)
        return loss / task.round, fixed


def test_a_loss_that_reads_the_round_is_recorded_in_each(sim: torch.device) -> None:
    task = toy_task(device=sim)
    eager, static = (
        play(_Waning(n_ctx=2), [task], cohorts=COHORTS, graphs=graphs)[-1][0] for graphs in (None, Graphs(always=True))
    )
    assert_same(static, eager, tolerance=1e-9)
    (other,) = play(PromptFL(n_ctx=2), [task], cohorts=COHORTS)[-1]
    assert not torch.allclose(other.shared["prompt"], eager.shared["prompt"])


class _Reads(PromptFL):
    """Its loss looks at a value."""

    def loss(self, task: Any, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, fixed = super().loss(task, local, batch)
        return (loss * 2 if float(loss.detach().sum()) < 0 else loss), fixed


def test_a_step_that_waits_is_refused_or_runs_eagerly(sim: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy_task(device=sim)
    with pytest.raises(CaptureError, match=r"not permitted.*test_graphs\.py"):
        play(_Reads(n_ctx=2), [task], cohorts=[(0, 2)], graphs=Graphs(always=True))
    graphs = Graphs()
    monkeypatch.setattr(graphs, "suit", lambda *_: not graphs.refused)
    with pytest.warns(UserWarning, match="Steps run eagerly, as one cannot be recorded"):
        (found,) = play(_Reads(n_ctx=2), [task], cohorts=[(0, 2), (1, 2)], graphs=graphs)[-1]
    (wanted,) = play(PromptFL(n_ctx=2), [task], cohorts=[(0, 2), (1, 2)])[-1]
    for name, leaf in wanted.shared.items():
        torch.testing.assert_close(found.shared[name].cpu(), leaf.cpu(), rtol=1e-10, atol=1e-10)


class _Differs(PromptFL):
    """Its fourth loss, which is recorded after two eager steps and one to warm up, is twice what it should be."""

    def loss(self, task: Any, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        calls = getattr(self, "calls", 0) + 1
        object.__setattr__(self, "calls", calls)
        loss, fixed = super().loss(task, local, batch)
        return loss * (2 if calls == 4 else 1), fixed


def test_a_replay_that_differs_from_the_step_is_refused_or_runs_eagerly(sim, monkeypatch) -> None:
    """It is compared once, and the steps that were compared are not counted."""
    task, cohorts = toy_task(device=sim), [(0, 2), (1, 2)]
    with pytest.raises(Disagrees, match=r"replayed, it changes params prompt, .*loss in another way"):
        play(_Differs(n_ctx=2), [task], cohorts=cohorts, graphs=Graphs(always=True))
    told: list[str] = []
    graphs = Graphs(warn=told.append)
    monkeypatch.setattr(graphs, "suit", lambda *_: not graphs.refused)
    (found,) = play(_Differs(n_ctx=2), [task], cohorts=cohorts, graphs=graphs)[-1]
    (wanted,) = play(PromptFL(n_ctx=2), [task], cohorts=cohorts)[-1]
    assert len(told) == 1
    assert_same(found, wanted, tolerance=1e-9)


def test_an_error_of_the_device_is_not_taken_for_a_refusal(sim: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory makes blocks smaller, and a lost context ends the process."""
    task, graphs = toy_task(device=sim), Graphs()
    monkeypatch.setattr(graphs, "suit", lambda *_: True)
    for text in ("CUDA out of memory. Tried to allocate 2 GiB", "CUDA error: an illegal memory access"):

        def broken(*_: Any, text: str = text) -> Any:
            raise RuntimeError(text)

        monkeypatch.setattr("fpl_tune.simulation.graphs.capture", broken)
        with pytest.raises(RuntimeError, match=text[:20]):
            play(METHOD, [task], cohorts=[(0, 2)], graphs=graphs)


def test_methods_whose_clients_take_turns_are_not_recorded() -> None:
    seen: list[bool] = []
    for method in (PromptFL(n_ctx=2), FullModel()):
        task = toy_task(method.needs)
        plan = plan_round([task], [Cohort(0, 1, torch.tensor([0, 1]))], [torch.tensor([0, 1])], 1, SPEC)
        on_cuda = plan._replace(last=SimpleNamespace(device=torch.device("cuda")))  # type: ignore[arg-type]
        seen.append(Graphs().suit(method, on_cuda))
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("steps", "device", "suits"),
    [([4, 4], "cuda", True), ([4, 2], "cuda", True), ([4, 1], "cuda", False), ([4, 4], "cpu", False)],
)
def test_steps_are_recorded_on_cuda_unless_a_quarter_of_them_would_be_idle(
    steps: list[int], device: str, suits: bool
) -> None:
    task, clients = toy_task(), torch.tensor([0, 1])
    plan = plan_round([task], [Cohort(0, 1, clients)], [clients], 1, SPEC)
    there: Any = SimpleNamespace(device=torch.device(device))
    plan = plan._replace(last=there, steps=torch.tensor(steps))
    assert Graphs().suit(PromptFL(n_ctx=2), plan) == suits
    assert Graphs(always=True).suit(PromptFL(n_ctx=2), plan)


def test_a_capture_may_neither_copy_nor_read(sim: torch.device) -> None:
    x = torch.ones(3, device=sim)
    steps: list[Callable[[], object]] = [lambda: x.copy_(torch.zeros(3)), lambda: x.nonzero(), lambda: x[x > 0]]
    for step in steps:
        with pytest.raises(CaptureError):
            capture(step, x.device)
    y = torch.zeros(3, device=x.device)
    replay = capture(lambda: y.add_((x * 2).view(3)), x.device)
    y.zero_()
    x.fill_(3.0)
    for _ in range(2):
        replay()
    assert y.tolist() == [12.0] * 3
