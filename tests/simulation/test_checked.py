"""What hooks of a method return is checked where a simulation calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Local, State, Traffic, generator
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.checked import Checked, MethodError
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play, toy_task

GROWN = State({"prompt": torch.zeros(3, 32)}, {}, {})
MISTAKES: list[tuple[str, Any, str]] = [
    ("init", None, r"Mine\.init must return a State, but returned None: a `return` is missing\."),
    ("init", State({"prompt": 1.0}, {}, {}), r"Mine\.init: shared\['prompt'\] must be a tensor, but is 1\.0\."),  # type: ignore[dict-item]
    ("start", ({}, {}), r"Mine\.start must return a Local, but returned a tuple\."),
    ("start", Local({"prompt": torch.zeros(1, 2, 32)}, {}), r"a row for each of the 2 clients, but params\['prompt'\]"),
    ("loss", torch.zeros(2), r"Mine\.loss must return a tuple, but returned a Tensor\."),
    ("loss", (torch.zeros(()), {}), r"Mine\.loss must return \(2,\), but returned \(\)\."),
    ("loss", (torch.zeros(2), None), r"Mine\.loss: buffers must be a dict of tensors, but is None\."),
    ("merge", None, r"Mine\.merge must return a State, but returned None"),
    ("merge", GROWN, r"shared\['prompt'\] was \(2, 32\) and is \(3, 32\)\."),
    ("merge", State({}, {}, {}), r"shared\['prompt'\] was \(2, 32\) and is absent\."),
    ("traffic", Traffic({"prompt": -1}, {}), r"Mine\.traffic must not be negative, but up\['prompt'\] is -1\."),
]


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task()


@pytest.mark.parametrize(("hook", "returned", "message"), MISTAKES)
def test_a_wrong_result_names_class_and_hook(task: ClientTask, hook: str, returned: Any, message: str) -> None:
    mine = type("Mine", (PromptFL,), {hook: lambda *_: returned})
    with pytest.raises(MethodError, match=message):
        play(Checked(mine(n_ctx=2)), [task], cohorts=[[0, 1]])


def test_logits_of_other_classes_are_refused(task: ClientTask) -> None:
    mine = type("Mine", (PromptFL,), {"logits": lambda self, task, local, batch: torch.zeros(4, 2, 5)})
    method = Checked(mine(n_ctx=2))
    local = method.start(task, method.init(task, generator("begin")), EVERYONE)
    batch = task.train.batch(EVERYONE, torch.arange(2).expand(4, -1))
    with pytest.raises(MethodError, match=r"Mine\.logits must return \(4, 2, 6\), but returned \(4, 2, 5\)\."):
        method.logits(task, local, batch)


def test_a_right_method_is_itself(task: ClientTask) -> None:
    plain, spec = PromptFL(n_ctx=2), OptimSpec(lr=0.01, batch=4)
    states = [play(method, [task], cohorts=[[0, 1]], spec=spec)[-1][0] for method in (plain, Checked(plain))]
    assert torch.equal(states[0].shared["prompt"], states[1].shared["prompt"])
