from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Tree, generator
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


def test_refuses_a_context_longer_than_its_words(task: ClientTask) -> None:
    with pytest.raises(ConfigError, match=r"method\.n_ctx must be at most 4"):
        KgCoOp(n_ctx=5).init(task, generator("words"))
