"""The contract finds what it is there to find: methods that break one rule each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from simulated_device import DeviceMix
from step_contract import a_step_waits_for_nothing
from torch import Tensor

from fpl_tune.method import Batch, Local, Method, State, Task, Traffic, Tree
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.testing import CONTRACT, Toy, check_method, contract, toy


@dataclass(frozen=True)
class MixesClients(PromptFL):
    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, fixed = super().loss(task, local, batch)
        return loss * loss.detach().mean(), fixed


@dataclass(frozen=True)
class SeesPadding(PromptFL):
    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        return super().loss(task, local, batch._replace(mask=torch.ones_like(batch.mask)))


@dataclass(frozen=True)
class TakesTheFirst(PromptFL):
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        return state._replace(shared={"prompt": local.params["prompt"][0]})


@dataclass(frozen=True)
class WritesInPlace(CoOp):
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        state.personal["prompt"][clients] = local.params["prompt"]
        return state


@dataclass(frozen=True)
class MovesTheAbsent(CoOp):
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        return state._replace(personal={"prompt": state.personal["prompt"] + 1e-9})


@dataclass(frozen=True)
class LooksAtOthers(CoOp):
    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        mean = state.personal["prompt"].mean(0, keepdim=True)
        return Local(params={"prompt": (state.personal["prompt"][clients] + mean) / 2}, buffers={})


@dataclass(frozen=True)
class Grows(PromptFL):
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        merged = super().merge(task, state, clients, local)
        return merged._replace(server={"seen": clients.new_zeros(len(state.server.get("seen", ())) + 1)})


@dataclass(frozen=True)
class CountsBytes(PromptFL):
    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        return Traffic(up={"prompt": torch.full_like(clients, 4.0, dtype=torch.float32)}, down={})


@dataclass(frozen=True)
class DividesByNothing(PromptFL):
    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        weight = 1 / task.size[clients].view(-1, 1, 1)
        return state._replace(shared={"prompt": (local.params["prompt"] * weight).sum(0)})


@dataclass(frozen=True)
class ReadsAValue(PromptFL):
    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, fixed = super().loss(task, local, batch)
        return (loss if bool(batch.mask.any()) else 2 * loss), fixed


@dataclass(frozen=True)
class StaysOnTheCPU(CoOp):
    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        return local._replace(buffers={"bias": torch.zeros(len(clients))})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, fixed = super().loss(task, local, batch)
        return loss + local.buffers["bias"], fixed


@dataclass(frozen=True)
class LoopsOverClients(CoOp):
    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        rows = []
        for client, prompt in enumerate(local.params["prompt"]):
            own = batch._replace(image=batch.image[client, None])
            rows.append(CoOp.logits(self, task, Local({"prompt": prompt[None]}, {}), own))
        return torch.cat(rows)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (MixesClients, contract.one_batch_equals_clients_alone),
        (MixesClients, contract.seeds_together_equal_seeds_alone),
        (SeesPadding, contract.padding_is_silent),
        (TakesTheFirst, contract.cohort_order_does_not_matter),
        (WritesInPlace, contract.arguments_are_not_written_to),
        (MovesTheAbsent, contract.absent_clients_are_untouched),
        (LooksAtOthers, contract.personal_state_stays_with_its_client),
        (Grows, contract.shapes_never_change),
        (CountsBytes, contract.traffic_counts_scalars),
        (DividesByNothing, contract.a_client_without_images_harms_nobody),
        (ReadsAValue, a_step_waits_for_nothing),
        (StaysOnTheCPU, a_step_waits_for_nothing),
        (LoopsOverClients, a_step_waits_for_nothing),
    ],
    ids=lambda value: value.__name__,
)
def test_a_broken_method_is_found(broken: type[Any], check: Callable[[Toy], None]) -> None:
    sound: Method = broken.__bases__[0](n_ctx=1)
    check(toy(sound))
    with pytest.raises((AssertionError, DeviceMix)):
        check(toy(broken(n_ctx=1)))


def test_a_method_that_keeps_the_contract_is_told_what_was_checked(capsys: pytest.CaptureFixture[str]) -> None:
    found = check_method(PromptFL(n_ctx=2))
    assert len(found) == len(CONTRACT)
    assert "seeds_together_equal_seeds_alone" in found
    assert capsys.readouterr().out == "", "whoever wants it prints it"
