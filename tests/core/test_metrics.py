"""The table of metrics: what is in it, what a method adds, and what is made from a name alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import figure, percent, quantity
from fpl_tune.core.metrics import (
    CHOICES,
    METRICS,
    SUCCESS,
    Metric,
    add_metric,
    check_chosen_by,
    check_reported,
    comparable,
    metric,
    objectives,
    of_method,
    report_rules,
    shown_beside,
)
from fpl_tune.methods.coop import CoOp
from fpl_tune.study.results import rules_of


@pytest.mark.parametrize(
    ("name", "title", "unit", "maximize"),
    [
        ("val/acc_mean", "validation accuracy", "%", True),
        ("test/base/acc_std", "test base accuracy, std", "%", False),
        ("cost/learned", "parameters that a client learns", "M", False),
        ("comm/total_bytes", "communication", "B", False),
        ("reader/domain1/acc_mean", "reader domain1 accuracy", "%", True),
        ("privacy/accountant_orders", "privacy accountant orders", "", None),
    ],
)
def test_every_name_has_a_row(name: str, title: str, unit: str, maximize: bool | None) -> None:
    found = metric(name)
    assert (found.name, found.title, found.unit, found.maximize) == (name, title, unit, maximize)


def test_accuracies_are_the_better_the_higher_and_all_else_the_lower() -> None:
    """But for numbers of images and clients, and their part of the bytes, which are neither."""
    for name, row in METRICS.items():
        if name.endswith(("/images", "/clients", "/sampled", "/vain_bytes")):
            assert row.maximize is None, name
            continue
        lower = name.endswith(("_std", "/ece", "/success")) or (row.unit != "%" and name != "test/auroc")
        assert row.maximize == (not lower), name


def test_what_is_sent_and_spent_adds_up_and_what_is_learned_is_counted_once() -> None:
    """All else is a figure of each round, which may be averaged over rounds."""
    for name, row in METRICS.items():
        total = name.startswith("comm/") or name == "time/seconds"
        last = name.startswith("cost/") or name in ("test/auroc", "test/fpr95") or name.endswith("/images")
        assert row.source == ("total" if total else "last" if last else "round"), name
    assert metric("train/own").source == metric("test/novel/loss").source == "round"


def test_a_word_that_holds_acc_is_no_accuracy() -> None:
    assert figure(3.0, "privacy/accountant_orders") == "3"
    assert percent("acc")
    assert quantity("test/harmonic_mean") == "HM(test, base, novel) (%)"


def test_a_mistyped_metric_of_another_test_set_gets_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'test/novel/acc_mean'"):
        check_reported("test/novel/acc_mea")


def test_the_success_of_an_attack_is_shown_and_chooses_nothing() -> None:
    """It is measured on test images."""
    assert metric(SUCCESS).maximize is False
    with pytest.raises(ConfigError, match="Do not select on test data"):
        check_chosen_by(SUCCESS, "search.objectives")
    check_reported(SUCCESS)
    assert shown_beside({"test/acc_mean": 0.5, SUCCESS: 0.2, "attack/other": 0.1}) == [SUCCESS, "attack/other"]


def test_methods_add_rows_that_reports_and_searches_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"report\.metric: no run reports 'train/gate_entropy'"):
        check_reported("train/gate_entropy")
    monkeypatch.setattr("fpl_tune.core.metrics.METRICS", METRICS.copy())
    type("Gated", (CoOp,), {"own_metrics": (Metric("train/gate_entropy", "entropy of the gate", maximize=False),)})
    check_reported("train/gate_entropy")
    assert "train/gate_entropy" in objectives()
    assert quantity("train/gate_entropy") == "entropy of the gate"
    with pytest.raises(ConfigError, match="Every simulation reports 'test/acc_mean'"):
        add_metric(Metric("test/acc_mean"))


def test_selection_reads_no_test_metric() -> None:
    assert "val/acc_mean" in objectives()
    assert not [name for name in objectives() if name.startswith("test/")]


def test_results_hold_other_test_sets_and_what_a_method_adds_at_the_round_of_each_rule(monkeypatch) -> None:
    def record(number: int, val: float, own: float) -> dict[str, object]:
        sets = {"test/acc_mean": 0.5, "test/novel/acc_mean": own, "test/novel/loss": 1.0, "test/harmonic_mean": 0.4}
        rest = {"train/loss": 1.0, "comm/up_bytes": 8, "time/seconds": 1.0, "clients/test": [0.5], "train/own": own}
        rest |= {"test/domain/photo/acc_mean": 0.5, "test/cross/cifar10/acc_mean": 0.5}  # of parts
        rest |= {"test/domain/own": own, "own": own}
        return {"seed": 1, "round": number, "val/acc_mean": val, **sets, **rest, "unbounded/own": math.inf}

    assert of_method("train/own")
    assert not any(map(of_method, ("train/loss", "test/novel/acc_mean", "time/seconds")))
    assert shown_beside(record(1, 0.1, 0.2)) == ["test/novel/acc_mean", "test/harmonic_mean", "train/own", "own"]
    rules = rules_of([record(1, 0.9, 0.25), record(2, 0.1, 0.75)])
    assert {name: rule["train/own"] for name, rule in rules.items() if name != "best_test"} == {
        "final": 0.75, "best_val": 0.25, "mean_last5": 0.5,
    }  # fmt: skip
    monkeypatch.setattr("fpl_tune.core.metrics.METRICS", METRICS.copy())
    add_metric(Metric("train/own", source="total"))
    assert rules_of([record(1, 0.9, 0.25), record(2, 0.1, 0.75)])["mean_last5"]["train/own"] == 0.75, "not averaged"


def test_each_rule_reports_both_figures_of_its_round() -> None:
    rng = np.random.default_rng(0)
    for rounds in (1, 4, 5, 12):
        val, test = rng.integers(0, 4, (2, rounds)) / 4  # some rounds are equal: the earliest of them counts
        rules = report_rules([{"val/acc_mean": v, "test/acc_mean": t} for v, t in zip(val, test, strict=True)])
        for name, at in (("final", rounds - 1), ("best_val", val.argmax()), ("best_test", test.argmax())):
            assert rules[name] == {"round": at + 1, "val/acc_mean": val[at], "test/acc_mean": test[at]}
        last = {"round": rounds, "val/acc_mean": val[-5:].mean(), "test/acc_mean": test[-5:].mean()}
        assert rules["mean_last5"] == pytest.approx(last)


COUNTS = st.integers(1, 12).flatmap(
    lambda size: st.lists(st.integers(0, size), min_size=2, max_size=10).map(lambda right: (size, right))
)


@given(clients=COUNTS, seed=st.integers(0, 2**16))
def test_equal_counts_are_a_tie_however_clients_share_them_and_one_image_more_is_none(
    clients: tuple[int, list[int]], seed: int
) -> None:
    """The earliest round is chosen, and the step of a mean does not depend on the order of its terms."""
    size, right = clients
    draw, dealt = np.random.default_rng(seed), [0] * len(right)
    for _ in range(sum(right)):
        dealt[draw.choice([i for i, n in enumerate(dealt) if n < size])] += 1
    means = [float(np.mean(np.array(each) / size)) for each in (right, dealt)]
    means += [sum(right) / (size * len(right)), math.fsum(n / size for n in dealt) / len(dealt)]
    assert len({*map(comparable, means)}) == 1
    assert {CHOICES["best_val"]([0.0, *order]) for order in (means, means[::-1])} == {1 if sum(right) else 0}
    if sum(right) < size * len(right):
        assert comparable(means[0] + 1 / (size * len(right))) > comparable(means[0])


_series = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)


@given(_series)
def test_permuting_test_figures_changes_no_choice(series: list[tuple[float, float]]) -> None:
    records = [{"val/acc_mean": v, "test/acc_mean": t} for v, t in series]
    backwards = [{"val/acc_mean": v, "test/acc_mean": t} for (v, _), (_, t) in zip(series, series[::-1], strict=True)]
    for rule in CHOICES:
        assert report_rules(records)[rule]["round"] == report_rules(backwards)[rule]["round"]
