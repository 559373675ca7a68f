from __future__ import annotations

from collections.abc import Callable

import torch

from fpl_tune.method import Local, Method, Tree, generator
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE
from fpl_tune.wrappers.proximal import Proximal

Gradients = Callable[[Method, Local], Tree]
PROMPT = PromptFL(n_ctx=2)
MIXED = PFedMoAP(n_ctx=2, experts=3, d_gating=12, heads=3)


def test_the_proximal_gradient_is_mu_times_the_way_from_what_was_received(task, gradients) -> None:
    method = Proximal(PROMPT, mu=0.7)
    local = method.start(task, method.init(task, generator("prox")), EVERYONE)
    away = torch.randn(local.params["prompt"].shape, generator=generator("away"), dtype=task.dtype)
    moved = local._replace(params={"prompt": local.params["prompt"] + away})
    more = gradients(method, moved)["prompt"] - gradients(PROMPT, moved)["prompt"]
    torch.testing.assert_close(more, 0.7 * away, rtol=0, atol=1e-9)
    assert gradients(method, local)["prompt"].equal(gradients(PROMPT, local)["prompt"])


def test_only_what_the_server_sent_is_held(task: ClientTask) -> None:
    method = Proximal(MIXED, mu=0.5)
    local = method.start(task, method.init(task, generator("prox")), EVERYONE)
    assert [name for name in local.buffers if name.startswith("received.")] == ["received.prompt"]
