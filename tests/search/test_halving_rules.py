"""Rules of successive halving: where its rungs lie, what it costs, for what it is the default, what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.config import PruneSpec
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.spec import validated
from fpl_tune.search.halving import check, expected_cost, leg_shares, resolved, rungs

from ..conftest import Compose, start_study


def test_halving_of_a_grid_is_refused(compose: Compose, tmp_path: Path) -> None:
    says = r"stops trials, but tiny has no search\. Remove prune.rule=halving, or set search.sampler=auto\.$"
    with pytest.raises(ConfigError, match=says):
        start_study(compose("axes: {optim: {lr: [1, 2]}}\nprune: {rule: halving}", "protocol.rounds=9"), root=tmp_path)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("every", "expected"), [(1, (1, 3, 9)), (2, (2, 4, 10)), (4, (4, 12)), (20, ())], ids=lambda value: str(value)
)
def test_rungs_fall_on_validated_rounds_before_the_last(compose: Compose, every: int, expected: tuple[int]) -> None:
    made = compose("axes: {}", "protocol.rounds=20", f"protocol.eval_every={every}")
    assert rungs(PruneSpec(rule="halving", first_rung=1), made) == expected
    assert rungs(PruneSpec(rule=None), made) == ()
    assert rungs(PruneSpec(rule="halving"), made) == ((7 + -7 % every,) if expected else ()), "a third of the rounds"


def test_the_cost_of_a_trial_is_what_a_third_at_each_rung_leaves(compose: Compose) -> None:
    made, spec = compose("axes: {}", "protocol.rounds=9"), PruneSpec(rule="halving", first_rung=1)
    assert expected_cost(spec, made, 2) == pytest.approx((1 + 2 / 3 + 6 / 9 + 9 / 27) / 18)
    assert expected_cost(PruneSpec(rule=None), made, 2) == 1


def test_the_cost_of_a_trial_includes_what_hedged_ones_run(compose: Compose) -> None:
    made = compose("axes: {}", "protocol.rounds=9")

    def spec(hedge: int | None) -> PruneSpec:
        return PruneSpec(rule="halving", first_rung=3, hedge=hedge)

    assert leg_shares(spec(4), made) == pytest.approx([1, 1 / 4 + 3 / 4 / 3, 1 / 9])
    assert expected_cost(spec(4), made, 2) == pytest.approx((3 + 6 / 2 + 9 / 9) / 18)
    assert expected_cost(spec(1), made, 2) == pytest.approx((9 + 9 / 9) / 18), "all run their first seed"
    assert expected_cost(spec(None), made, 2) < expected_cost(spec(5), made, 2) < expected_cost(spec(4), made, 2)


@pytest.mark.parametrize(
    ("body", "hedge"),
    [
        ("search: {sampler: tpe}", 3),
        ("search: {sampler: tpe}\nprune: {hedge: 5}", 5),
        ("search: {sampler: tpe}\nprune: {hedge: null}", None),
        ("search: {sampler: tpe}\nprune: {rule: null, hedge: 3}", None),
        ("prune: {rule: halving}", None),
    ],
)
def test_a_search_with_halving_has_a_hedge_by_default(compose: Compose, body: str, hedge: int | None) -> None:
    assert resolved(compose(f"axes: {{}}\n{body}")).hedge == hedge


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "search: {sampler: tpe}\nprune: {hedge: 4, reduction: 2}",
            "prune.hedge=4 lets trials pass rungs of rounds, but prune.reduction=2 with protocol.eval_every=8 of 8 "
            "rounds leaves none. Lower them, or set prune.hedge=auto.",
        ),
        (
            "prune: {rule: halving, hedge: 4}",
            "Halving stops trials, but tiny has no search. Remove prune.hedge=4, or set search.sampler=auto.",
        ),
    ],
)
def test_a_hedge_without_a_rung_or_a_search_is_refused(compose: Compose, body: str, says: str) -> None:
    made = compose(f"axes: {{}}\n{body}", "protocol.rounds=8", "protocol.eval_every=8")
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        check(made, [made])


@pytest.mark.parametrize(
    ("search", "rule"),
    [
        ("sampler: tpe", "halving"),
        ("sampler: {name: random}", "halving"),
        ("sampler: auto", "halving"),
        ("sampler: gp", "halving"),
        ("sampler: nsgaii", None),
        ("sampler: tpe, objectives: [val/acc_mean, comm/total_bytes]", "halving"),
        ("sampler: tpe, objectives: [val/acc_mean, time/seconds]", None),
        ("sampler: tpe, objectives: [val/loss]", None),
    ],
)
def test_by_default_samplers_that_were_measured_with_halving_get_it(
    compose: Compose, search: str, rule: str | None
) -> None:
    assert resolved(compose(f"axes: {{}}\nsearch: {{{search}}}")).rule == rule
    assert resolved(compose()).rule is None, "a grid of axes is never pruned unasked"
    assert resolved(compose(f"axes: {{}}\nsearch: {{{search}}}\nprune: {{rule: null}}")).rule is None


def test_where_no_round_precedes_the_last_validated_one_trials_run_whole_and_it_is_said(compose: Compose) -> None:
    made = compose("axes: {}\nsearch: {sampler: tpe}", "protocol.rounds=8", "protocol.eval_every=8")
    with pytest.warns(Notice, match="Every trial runs to its end: .* protocol.eval_every=8 of 8 rounds gives none"):
        check(made, [made])
    assert rungs(resolved(made), made) == ()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["protocol.rounds=4", "protocol.eval_every=4"], "protocol.eval_every=4 of 4 rounds gives none"),
        (["protocol.rounds=4", "prune.first_rung=4"], "of 4 rounds gives none with prune.first_rung=4. Lower them"),
        (
            ["protocol.rounds=8", "protocol.eval_every=3", "prune.first_rung=7"],
            "eval_every=3 of 8 rounds gives none with prune.first_rung=7",
        ),
    ],
)
def test_rungs_that_never_compare_are_refused(
    compose: Compose, tmp_path: Path, overrides: list[str], says: str
) -> None:
    body = "axes: {}\nsearch: {sampler: tpe}\nprune: {rule: halving}"
    with pytest.raises(ConfigError, match=says):
        start_study(compose(body, *overrides), root=tmp_path)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": "halve"}, "prune.rule"),
        ({"rule": {"name": "median"}}, "prune.rule"),
        ({"reduction": 1}, "prune.reduction must be >= 2"),
        ({"first_rung": 0}, "prune.first_rung must be >= 1"),
        ({"hedge": 0}, "prune.hedge must be >= 1"),
        ({"hedge": "often"}, "prune.hedge must be an integer, but is 'often'"),
    ],
)
def test_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        validated(PruneSpec, change, "prune")
