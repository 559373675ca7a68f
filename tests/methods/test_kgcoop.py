from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Batch, Tree, generator
from fpl_tune.methods.kgcoop import KgCoOp
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


def test_loss_and_gradient_are_those_of_clients_alone(task: ClientTask, assert_equal_to_clients_alone: Any) -> None:
    method = KgCoOp(w=3.0, n_ctx=2, words="")
    local = method.start(task, play(method, [task])[-1][0], EVERYONE)

    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        text = task.encode_prompts(leaf["prompt"])
        away = 1 - F.cosine_similarity(text, task.hand_text).mean()
        assert away > 1e-6
        return F.cross_entropy(task.scale * F.normalize(images, dim=-1) @ text.T, labels) + 3 * away

    assert_equal_to_clients_alone(method, task, local, plain)


def test_the_templates_own_words_are_at_distance_zero(task: ClientTask, batch: Batch) -> None:
    """The default starts there: "a photo of a {}." is the toy task's template."""
    method = KgCoOp()
    local = method.start(task, method.init(task, generator("words")), EVERYONE)
    text = task.encode_prompts(local.params["prompt"])
    torch.testing.assert_close(text, task.hand_text.expand_as(text), rtol=0, atol=1e-6)
    guided, free = (KgCoOp(w=w).loss(task, local, batch)[0] for w in (8.0, 0.0))
    torch.testing.assert_close(guided, free, rtol=0, atol=1e-6)


def test_a_large_weight_leads_back_to_the_hand_written_prompts(task: ClientTask) -> None:
    def away(w: float) -> float:
        spec = OptimSpec(lr=0.002, batch=16, weight_decay=0.0)
        state = play(KgCoOp(w=w, n_ctx=2, words=""), [task], cohorts=[[0, 1, 2, 3]], spec=spec, epochs=30)[-1][0]
        return 1 - float((task.encode_prompts(state.shared["prompt"]) * task.hand_text).sum(-1).mean())

    assert away(8.0) < away(1.0) < away(0.0)


def test_refuses_a_context_longer_than_its_words(task: ClientTask) -> None:
    with pytest.raises(ConfigError, match=r"method\.n_ctx must be at most 4"):
        KgCoOp(n_ctx=5).init(task, generator("words"))
