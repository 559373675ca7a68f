"""A round that left the range of sane numbers is named by seed, client and round; others' numbers do not matter."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import State
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.divergence import GUESSES, Diverged, watch
from fpl_tune.simulation.evaluate import Score
from fpl_tune.testing import toy_task

SPEC = OptimSpec(lr=0.25)
TASKS = [toy_task(sizes=(9, 0, 7, 3)), toy_task(seed=1)]
COHORTS = [Cohort(5, 4, torch.tensor([0, 1, 2])), Cohort(6, 4, torch.tensor([1, 3]))]
LIMIT = GUESSES * math.log(6)


def _states(group: str = "", place: int = 0, value: float = 0.0) -> list[State]:
    """Of both seeds, one number of the second one's changed."""
    states = []
    for _ in TASKS:
        leaves = {"a": torch.zeros(4, 2), "count": torch.ones(4, dtype=torch.int64), "none": torch.zeros(4, 0)}
        states.append(State(*({n: leaf.clone() for n, leaf in leaves.items()} for _ in range(3))))
    if group:
        getattr(states[1], group)["a"][place] = value
    return states


def _watch(losses: list[list[float]] | None, spec: OptimSpec = SPEC, states: Any = None) -> list[Tensor] | None:
    given = None if losses is None else [torch.tensor(row) for row in losses]
    return watch(spec, TASKS, states or _states(), COHORTS, given)


def test_the_losses_of_clients_that_hold_images_are_read() -> None:
    """The second client of the first seed has none: its loss is NaN, and no mistake."""
    found = _watch([[0.5, math.nan, -LIMIT + 0.1], [LIMIT - 0.1, 0.25]])
    assert found is not None
    wanted = [[0.5, -LIMIT + 0.1], [LIMIT - 0.1, 0.25]]
    assert [row.tolist() for row in found] == [pytest.approx(row) for row in wanted]
    assert _watch(None) is None


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (math.nan, "loss is NaN"),
        (math.inf, "loss is inf"),
        (-math.inf, "loss is -inf"),
        (LIMIT + 1, rf"loss is 180\.2, beyond {LIMIT:.0f}, 100 times that of guessing"),
        (-LIMIT - 1, r"loss is -180\.2, beyond"),
    ],
)
def test_a_loss_out_of_range_is_named_with_its_client(loss: float, what: str) -> None:
    where = r"\(seed 6, client 3, round 4\); lower optim\.lr \(now 0\.25\)$"
    with pytest.raises(Diverged, match=f"training diverged: {what}.* {where}"):
        _watch([[0.5, math.nan, 0.5], [0.5, loss]])
    with pytest.raises(Diverged, match=r"lower optim\.lr \(now 0\.25\) or optim\.groups \(now {'gate': 3"):
        _watch([[0.5, math.nan, 0.5], [0.5, loss]], replace(SPEC, groups={"gate": 3.0}))


def test_guessing_is_taken_among_two_classes_at_least() -> None:
    task = toy_task(n_classes=1)
    below, beyond = (GUESSES * math.log(2) + away for away in (-1, 1))
    for loss in (below, beyond):
        given = SPEC, [task], _states()[:1], [Cohort(1, 1, torch.tensor([0]))], [torch.tensor([loss])]
        if loss == below:
            assert watch(*given) is not None
        else:
            with pytest.raises(Diverged, match="beyond 69"):
                watch(*given)


@pytest.mark.parametrize("group", State._fields)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_state_that_is_not_finite_is_named_with_its_seed(group: str, value: float) -> None:
    for losses in (None, [[0.5, math.nan, 0.5], [0.5, 0.5]]):
        with pytest.raises(Diverged, match=r"what was learned is NaN or inf \(seed 6, round 4\)"):
            _watch(losses, states=_states(group, 3, value))


def test_rows_of_clients_that_did_not_train_are_not_read() -> None:
    _watch(None, states=_states("personal", 0, math.nan))


def test_deployed_models_without_a_number_have_diverged() -> None:
    numbers = torch.ones(4)
    scores = [{"test": Score(numbers, numbers, numbers, numbers, ece)} for ece in (0.1, math.nan)]
    watch(SPEC, TASKS, _states(), COHORTS, None, [scores[0]] * 2)
    with pytest.raises(Diverged, match=r"logits of deployed models are NaN \(seed 6, round 4\)"):
        watch(SPEC, TASKS, _states(), COHORTS, None, scores)
