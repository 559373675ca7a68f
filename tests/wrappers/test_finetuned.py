from __future__ import annotations

import pytest
import torch

from fpl_tune.engine import generator
from fpl_tune.method import Method
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.task import ClientTask
from fpl_tune.testing import assert_same, play
from fpl_tune.wrappers.finetuned import FineTuned

EVERYONE = torch.arange(4)
PROMPT = PromptFL(n_ctx=2)
MIXED = PFedMoAP(n_ctx=2, experts=3, d_gating=12, heads=3)


def test_without_a_stage_before_fine_tuned_promptfl_is_coop(task: ClientTask) -> None:
    tuned, local = (play(m, [task])[-1][0] for m in (FineTuned(PROMPT), CoOp(n_ctx=2)))
    torch.testing.assert_close(tuned.personal["own.prompt"], local.personal["prompt"], rtol=0, atol=1e-12)


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
