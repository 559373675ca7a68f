"""Errors of one line: the code that the process ends with, and the names that are suggested."""

from collections.abc import Callable

import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, FplTuneError, did_you_mean, nearest, unknown


def test_the_exit_code_says_whose_fault_it_is() -> None:
    assert [kind.exit_code for kind in (FplTuneError, ConfigError, EnvironmentProblem)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("epoch", ["epochs", "rounds", "lr"], ["epochs"]),
        ("lr", ["lr", "lrs", "lrx", "lry"], ["lr"]),  # the others are much less like it
        ("rate_a", ["rate_b", "rate_c", "rate_d", "rate_e"], 3),
        ("zzz", ["epochs", "rounds"], []),
        ("nope", ["coop", "promptfl"], []),
    ],
)
def test_the_nearest_names_are_those_about_as_like_as_the_first(
    name: str, known: list[str], near: list[str] | int
) -> None:
    found = nearest(name, known)
    assert len(found) == near if isinstance(near, int) else found == near


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        (lambda: did_you_mean("epoch", ["epochs"]), "Did you mean 'epochs'?"),
        (lambda: did_you_mean("x", ["epochs"], ["a", "b", "c", "d"]), "Did you mean 'a' or 'b' or 'c'?"),
        (lambda: did_you_mean("zzz", ["b", "a"]), "Known: a, b."),
        (lambda: did_you_mean("zzz", ["b", "a"], listing="fpl-tune ls"), "See fpl-tune ls."),
        (lambda: did_you_mean("zzz", []), "There is none."),
        (lambda: did_you_mean("zzz", [f"n{i:02d}" for i in range(40)])[-4:], "n39."),
        (lambda: did_you_mean("zzz", [f"n{i:02d}" for i in range(42)])[-15:], "n39 and 2 more."),
        (lambda: str(unknown("study", "zo", ["zoo"])), "There is no study 'zo'. Did you mean 'zoo'?"),
    ],
)
def test_a_wrong_name_is_answered_by_names_that_exist(sentence: Callable[[], str], text: str) -> None:
    assert sentence() == text
