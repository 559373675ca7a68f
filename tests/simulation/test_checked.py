"""What hooks of a method return is checked where a simulation calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fpl_tune.method import Local, State, generator
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.checked import MethodError, checked
from fpl_tune.testing import EVERYONE, play, toy_task

GROWN = State({"prompt": torch.zeros(3, 32)}, {}, {})


@pytest.mark.parametrize(
    ("hook", "returned", "message"),
    [
        ("init", None, r"Mine\.init must return a State, but returned None: a `return` is missing\."),
        ("start", ({}, {}), r"Mine\.start must return a Local, but returned a tuple\."),
        ("start", Local({"prompt": torch.zeros(1, 2, 32)}, {}), r"a row for each of the 2 clients, but .*\(1, 2, 32\)"),
        ("loss", (torch.zeros(()), {}), r"Mine\.loss must return the losses \(2,\) and the buffers\."),
        ("merge", GROWN, r"Mine\.merge must keep .* \{'prompt': \(2, 32\)\}, but returned \{'prompt': \(3, 32\)\}\."),
    ],
)
def test_a_wrong_result_names_class_and_hook(hook: str, returned: Any, message: str) -> None:
    mine = type("Mine", (PromptFL,), {hook: lambda *_: returned})
    with pytest.raises(MethodError, match=message):
        play(checked(mine(n_ctx=2)), [toy_task()], cohorts=[[0, 1]])


def test_logits_of_other_classes_are_refused() -> None:
    mine, task = type("Mine", (PromptFL,), {"logits": lambda *_: torch.zeros(4, 2, 5)}), toy_task()
    method = checked(mine(n_ctx=2))
    local = method.start(task, method.init(task, generator("begin")), EVERYONE)
    batch = task.train.batch(EVERYONE, torch.arange(2).expand(4, -1))
    with pytest.raises(MethodError, match=r"Mine\.logits must return \(4, 2, 6\), but returned \(4, 2, 5\)\."):
        method.logits(task, local, batch)
