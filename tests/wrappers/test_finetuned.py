import pytest
import torch

from fpl_tune.method import Method, generator
from fpl_tune.methods.feddpt import FedDPT
from fpl_tune.methods.fedpgp import FedPGP
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, assert_same, play, toy_task
from fpl_tune.wrappers.finetuned import FineTuned

PROMPT = PromptFL(n_ctx=2)
MIXED = PFedMoAP(n_ctx=2, experts=3, d_gating=12, heads=3)


@pytest.mark.parametrize("inner", [PROMPT, MIXED], ids=["promptfl", "pfedmoap"])
def test_fine_tuning_starts_from_what_the_stage_before_deployed(task: ClientTask, inner: Method) -> None:
    before = play(inner, [task])[-1][0]
    method = FineTuned(inner)
    state = method.init(task, generator("ft"), before)
    assert_same(method.deploy(task, state, EVERYONE), inner.deploy(task, before, EVERYONE))
    *_, (after,) = play(method, [task], states=[state], cohorts=[[0, 3]])
    assert_same(after._replace(personal={}, server={}), state._replace(personal={}, server={}))
    moved = (after.personal["own.prompt"] != state.personal["own.prompt"]).flatten(1).any(1)
    assert moved.tolist() == [True, False, False, True]


def test_the_model_is_received_once_and_nothing_is_sent(task: ClientTask) -> None:
    (first,), (second,) = play(FineTuned(PROMPT), [task], cohorts=[[0, 3]])
    for state, down in ((first, [64] * 4), (second, [0, 64, 64, 0])):
        traffic = FineTuned(PROMPT).traffic(task, state, EVERYONE)
        assert traffic.up == {}
        assert torch.as_tensor(traffic.down["prompt"]).tolist() == down


@pytest.mark.parametrize(
    "inner",
    [PROMPT, MIXED, FedPGP(n_ctx=2, rank=1), FedDPT(n_ctx=2), FedDPT(n_ctx=2, text="all", visual="split")],
    ids=["promptfl", "pfedmoap", "fedpgp", "feddpt", "feddpt-split"],
)
def test_a_client_is_evaluated_with_the_function_that_it_trained(inner: Method) -> None:
    """The same experts for the one that mixes, the prompts of all domains in their places for the one with domains."""
    task, method = toy_task(inner.needs), FineTuned(inner)
    before = play(inner, [task], cohorts=[[0, 1, 2, 3]] * 2, epochs=1)[-1][0]
    states = play(method, [task], states=[method.init(task, generator("ft"), before)], cohorts=[[0, 1, 2, 3]], epochs=1)
    batch = task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))
    trained, deployed = (half(task, states[-1][0], EVERYONE) for half in (method.start, method.deploy))
    torch.testing.assert_close(method.logits(task, trained, batch), method.logits(task, deployed, batch))
