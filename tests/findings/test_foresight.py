"""What is said of rungs that foresee the end well or badly, and of looks."""

from typing import Any

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.findings import looks
from fpl_tune.findings.foresight import Foresight
from fpl_tune.findings.looks import Look

from ..conftest import Compose


def foresight(part: str = "", diverged: int = 0, **by_round: float) -> Foresight:
    """Of rungs after rounds 2 and 4 of eight."""
    return Foresight(part, (2, 4), 8, 12, diverged, {int(name[1:]): value for name, value in by_round.items()})


def test_rungs_that_foresee_the_end_give_no_warning() -> None:
    good = foresight(r2=0.1, r4=0.7, r6=0.8, r8=1.0)
    assert (good.low, good.warning()) == (False, "")
    text = "after round 2 the rank correlation with the final score is 0.10, after round 4 0.70, over 12 trials"
    assert good.figures() == f"{text} that passed every rung"


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (
            foresight(r2=0.09, r3=0.49, r4=0.5, r6=0.8, r8=1.0),
            "Set prune.first_rung=4 (0.50 there) or prune.rule=null.",
        ),
        (foresight(r1=0.9, r2=0.05, r4=0.3, r8=1.0), "Set prune.rule=null."),
        (foresight(r2=0.9, r4=-0.2, r8=1.0), "Set prune.rule=null."),
    ],
)
def test_a_rung_that_does_not_is_warned_of_with_a_later_round_that_does(found: Foresight, remedy: str) -> None:
    assert found.low
    assert found.warning().endswith(remedy)
    assert "with the final score is only " in found.warning()


def test_a_warning_names_the_search_and_what_it_leaves_out() -> None:
    text = foresight("promptfl", 3, r2=0.0, r4=0.3, r8=1.0).warning()
    assert text.startswith("Beware: promptfl: after round 2")
    assert "over 12 trials that passed every rung (3 that diverged left out)" in text


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (Look(3, 4, 1, ("a", "b"), (4, 5)), "1 of 4 comparisons decided after 3 seeds; 2 cells run on to 5 seeds"),
        (Look(1, 1, 1), "1 of 1 comparison decided after 1 seed"),
        (Look(5, 2, 1, ("a",), ()), "1 of 2 comparisons decided after 5 seeds"),
    ],
)
def test_a_look_in_words(look: Look, text: str) -> None:
    assert str(look) == text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("axes: {}\nsearch: {sampler: random, trials: 2}", "compares the cells of a grid, but tiny searches"),
        (
            "axes: {optim: {lr: [1, 2]}}\nreport: {claims: {a: {says: x, cells: {lr: 1}, versus: {lr: 2}}}}",
            "has claims",
        ),
    ],
)
def test_looks_are_for_grids_without_claims(compose: Compose, body: str, says: str) -> None:
    looks.check(compose(body))
    made: Any = compose(body, "seeds=until_decided")
    with pytest.raises(ConfigError, match=says):
        looks.check(made)
