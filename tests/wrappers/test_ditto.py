"""Ditto's personal copies."""

from __future__ import annotations

import torch

from fpl_tune.method import Local, generator
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play
from fpl_tune.wrappers.ditto import Ditto

PROMPT = PromptFL(n_ctx=2)


def test_the_copys_gradient_is_its_own_and_the_way_from_what_was_received(task, gradients) -> None:
    method = Ditto(PROMPT, lam=0.7)
    local = method.start(task, play(method, [task])[-1][0], EVERYONE)
    found, copies = gradients(method, local), local.params["prompt.ditto"]
    for name, leaf, pull in (("prompt", local.params["prompt"], 0), ("prompt.ditto", copies, 0.7)):
        plain = gradients(PROMPT, Local({"prompt": leaf}, {}))["prompt"]
        torch.testing.assert_close(found[name], plain + pull * (leaf - local.params["prompt"]))
    assert (copies - local.params["prompt"]).abs().max() > 1e-3


def test_without_the_term_the_evaluated_copies_are_coops(task: ClientTask) -> None:
    alone, method = CoOp(n_ctx=2), Ditto(PROMPT, lam=0.0)
    state, wanted = (play(m, [task], cohorts=[(0, 1)] * 2)[-1][0] for m in (method, alone))
    found = method.deploy(task, state, EVERYONE).params["prompt"]
    torch.testing.assert_close(found, wanted.personal["prompt"], rtol=0, atol=1e-12)
    assert method.traffic(task, method.init(task, generator("ditto")), EVERYONE).up == {"prompt": 64}
