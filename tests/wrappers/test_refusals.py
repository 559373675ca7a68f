"""What cannot be wrapped, or not again."""

import pytest
import torch

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Method, generator
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.fedmgp import FedMGP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import toy_task
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.finetuned import FineTuned
from fpl_tune.wrappers.moon import Moon
from fpl_tune.wrappers.private import Private
from fpl_tune.wrappers.proximal import Proximal
from fpl_tune.wrappers.robust import Robust
from fpl_tune.wrappers.scaffold import Scaffold
from fpl_tune.wrappers.server import ServerOptimizer

PROMPT = PromptFL(n_ctx=2)


@pytest.mark.parametrize("wrapper", [Proximal, ServerOptimizer, Scaffold, Ditto, Moon, Robust])
def test_a_method_without_a_shared_part_is_refused(task: ClientTask, wrapper: type[Method]) -> None:
    method = wrapper(CoOp(n_ctx=2))  # pyright: ignore[reportCallIssue] - all have `inner`
    with pytest.raises(ConfigError, match=r"none of \['prompt'\] is exchanged.*Wrap a method with a shared part"):
        method.start(task, method.init(task, generator("wrapped")), torch.tensor([0]))


def test_control_variates_need_leaves_that_clients_train_as_received() -> None:
    with pytest.raises(ConfigError, match="scaffold acts on what clients exchange"):
        Scaffold(FedMGP()).init(toy_task("pixels"), generator("wrapped"))


@pytest.mark.parametrize("inner", [FineTuned(PROMPT), Private(FineTuned(PROMPT)), Ditto(PROMPT)], ids=["", "deep", "d"])
def test_what_has_copies_of_its_own_cannot_be_fine_tuned(task: ClientTask, inner: Method) -> None:
    FineTuned(Private(PROMPT)).check(task)
    with pytest.raises(
        ConfigError, match=r"method\.inner must not be wrapped in the same way again.*, but is '(FineTuned|Ditto)'"
    ):
        FineTuned(inner).check(task)


def test_copies_of_a_fine_tuned_model_cannot_be_kept_twice(task: ClientTask) -> None:
    with pytest.raises(ConfigError, match="nor keep copies of its own twice, but is 'FineTuned'"):
        Ditto(FineTuned(PROMPT)).check(task)
