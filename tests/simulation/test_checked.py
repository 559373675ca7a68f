"""What hooks of a method return is checked where a simulation calls them."""

from typing import Any

import pytest
import torch

from fpl_tune.method import Local, State, Traffic, generator
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.checked import MethodError, checked
from fpl_tune.testing import EVERYONE, play, toy_task

WRONG: tuple[Any, ...] = (torch.ones(2), torch.ones(3).long(), torch.tensor([1, -1]), 1.0, None)
"""No counts of scalars, of two clients."""
GROWN = State({"prompt": torch.zeros(3, 32)}, {}, {})


@pytest.mark.parametrize(
    ("hook", "returned", "message"),
    [
        ("init", None, r"Mine\.init must return a State, but returned None: a `return` is missing\."),
        ("start", ({}, {}), r"Mine\.start must return a Local, but returned a tuple\."),
        ("start", Local({"prompt": torch.zeros(1, 2, 32)}, {}), r"a row for each of the 2 clients, but .*\(1, 2, 32\)"),
        ("loss", (torch.zeros(()), {}), r"Mine\.loss must return the losses \(2,\) and the buffers\."),
        ("loss", (torch.zeros(2), {}, 0), r"Mine\.loss must return the losses \(2,\) and the buffers\."),
        ("loss", None, r"Mine\.loss must return a tuple, but returned None"),
        ("logits", None, r"Mine\.logits must return a Tensor, but returned None"),
        (
            "traffic",
            Traffic({"prompt": -1}, {}),
            r"an int >= 0, or int64 \[2\], but returned \(\{'prompt': -1\}, \{\}\)",
        ),
        *(
            ("traffic", Traffic({}, {"prompt": counted}), r"Mine\.traffic must count scalars by an int")
            for counted in WRONG
        ),
        ("merge", GROWN, r"Mine\.merge must keep .* \{'prompt': \(2, 32\)\}, but returned \{'prompt': \(3, 32\)\}\."),
    ],
)
def test_a_wrong_result_names_class_and_hook(hook: str, returned: Any, message: str) -> None:
    mine = type("Mine", (PromptFL,), {hook: lambda *_: returned})
    with pytest.raises(MethodError, match=message):
        play(checked(mine(n_ctx=2)), [toy_task()], cohorts=[[0, 1]])


@pytest.mark.parametrize(
    ("hook", "returned", "message"),
    [
        ("logits", torch.zeros(4, 2, 5), r"logits must return \(4, 2, 6\), or more .*, but returned \(4, 2, 5\)\."),
        ("certainty", torch.zeros(4), r"certainty must return \(4, 2\), but returned \(4,\)\."),
        ("diagnose", {"share": torch.zeros(4)}, r"diagnose must return \[C, n\] shares by name"),
        ("metrics", {"mine": "high"}, r"metrics must return numbers by name, but returned {'mine': 'high'}\."),
        (
            "deploy",
            Local({}, {"own": torch.zeros(3)}),
            r"deploy must return leaves with a row for each of the 4 clients",
        ),
        ("diagnose", {"share": 1.0}, r"diagnose must return \[C, n\] shares by name, but returned {'share': 1\.0}\."),
    ],
)
def test_logits_and_what_follows_from_them_have_their_shapes(hook: str, returned: Any, message: str) -> None:
    mine, task = type("Mine", (PromptFL,), {hook: lambda *_: returned}), toy_task()
    method = checked(mine(n_ctx=2))
    local = method.start(task, method.init(task, generator("begin")), EVERYONE)
    batch = task.train.batch(EVERYONE, torch.arange(2).expand(4, -1))
    more = {"metrics": (local,), "deploy": (local, EVERYONE)}.get(hook, (local, batch))
    with pytest.raises(MethodError, match=rf"Mine\.{message}"):
        getattr(method, hook)(task, *more)


@pytest.mark.parametrize(
    ("hook", "returned"),
    [
        ("logits", torch.zeros(4, 2, 7)),
        ("certainty", torch.zeros(4, 2)),
        ("diagnose", {"share": torch.zeros(4, 3)}),
        ("traffic", Traffic({"prompt": 0, "all": torch.zeros(4, dtype=torch.int64)}, {"none": 3})),
        ("deploy", Local({}, {})),
        ("metrics", {"mine/rate": 1, "mine/share": 0.5}),
        ("check", None),
    ],
)
def test_what_an_interface_allows_is_returned_as_it_is(hook: str, returned: Any) -> None:
    mine, task = type("Mine", (PromptFL,), {hook: lambda *_: returned}), toy_task()
    batch = task.train.batch(EVERYONE, torch.arange(2).expand(4, -1))
    more = {"metrics": (None,), "check": ()}.get(hook, (None, batch if hook in ("logits", "certainty") else EVERYONE))
    assert getattr(checked(mine(n_ctx=2)), hook)(task, *more) is returned


def test_a_loss_that_fails_on_its_logits_names_them() -> None:
    """What the logits should have returned says more than the error in the loss; another error of it stands."""
    task, batch = toy_task(), toy_task().train.batch(EVERYONE, torch.arange(2).expand(4, -1))
    local = PromptFL(n_ctx=2).start(task, PromptFL(n_ctx=2).init(task, generator("begin")), EVERYONE)
    blamed = type("Mine", (PromptFL,), {"logits": lambda *_: None})
    with pytest.raises(MethodError, match=r"Mine\.logits must return a Tensor"):
        checked(blamed(n_ctx=2)).loss(task, local, batch)

    def loss(*_: Any) -> Any:
        raise ValueError("of the loss")

    own = type("Mine", (PromptFL,), {"loss": loss})
    with pytest.raises(ValueError, match="of the loss"):
        checked(own(n_ctx=2)).loss(task, local, batch)


def test_an_exit_is_an_error_and_the_end_of_the_process_is_not() -> None:
    class Ended(SystemExit):
        """As a signal's."""

    def ends(problem: SystemExit) -> Any:
        def check(*_: Any) -> None:
            raise problem

        return checked(type("Mine", (PromptFL,), {"check": check})(n_ctx=2))

    with pytest.raises(MethodError, match=r"Mine\.check called sys\.exit\(3\)\."):
        ends(SystemExit(3)).check(toy_task())
    with pytest.raises(Ended):
        ends(Ended(3)).check(toy_task())
