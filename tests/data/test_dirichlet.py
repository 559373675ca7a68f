from __future__ import annotations

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.data import dirichlet
from fpl_tune.data.partition import Deal, Shares


def labels(n_classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(n_classes), each)


def histogram(shares: Shares, label: np.ndarray, n_clients: int) -> np.ndarray:
    """[N, K]"""
    table = np.zeros((n_clients, int(label.max()) + 1))
    np.add.at(table, (shares.client, label[shares.row]), 1)
    return table


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_every_image_has_one_client_and_every_client_its_minimum(alpha: float, balanced: bool) -> None:
    train, test = labels(10, 200), labels(10, 60)
    deal = dirichlet.by_label(train, test, 8, alpha, 5, np.random.default_rng(0), balanced=balanced)
    for shares, label in ((deal.train, train), (deal.test, test)):
        assert sorted(shares.row.tolist()) == list(range(len(label)))
        assert np.bincount(shares.client, minlength=8).min() >= 5


def test_test_labels_follow_the_clients_own_training_labels() -> None:
    train, test = labels(10, 500), labels(10, 100)
    deal = dirichlet.by_label(train, test, 10, 0.5, 5, np.random.default_rng(3))
    held, tested = histogram(deal.train, train, 10), histogram(deal.test, test, 10)
    assert np.abs(held / 5 - tested).max() <= 1.2  # cut at the same shares: off by the rounding of two edges


def test_a_full_client_gets_nothing_more() -> None:
    train = labels(20, 100)
    deal = dirichlet.by_label(train, train, 10, 0.3, 5, np.random.default_rng(0))
    held = histogram(deal.train, train, 10).cumsum(1)
    fair = len(train) / 10
    full = held[:, :-1] >= fair
    assert full.any()
    grown = np.diff(held, axis=1)
    assert (grown[full] <= 1).all()  # at most the rounding of the last edge


def test_small_alpha_is_skewed_and_infinite_alpha_is_not() -> None:
    label = labels(10, 100)

    def share_of_top(alpha: float) -> float:
        deal = dirichlet.by_label(label, label, 5, alpha, 1, np.random.default_rng(0))
        table = histogram(deal.train, label, 5)
        return float((table.max(1) / table.sum(1)).mean())

    assert share_of_top(np.inf) == pytest.approx(0.1)
    assert share_of_top(0.05) > 0.3


def test_more_minimum_than_images_is_refused_before_drawing() -> None:
    with pytest.raises(ConfigError, match=r"40 test images cannot give 9 clients 5 each"):
        dirichlet.by_label(labels(4, 100), labels(4, 10), 9, 0.5, 5, np.random.default_rng(0))


def test_an_infeasible_draw_ends_with_the_best_that_was_reached() -> None:
    label = labels(3, 40)
    with pytest.raises(ConfigError, match=r"None of 5000 Dirichlet draws with alpha 0\.01 gave each of 20 clients 6"):
        dirichlet.by_label(label, label, 20, 0.01, 6, np.random.default_rng(0))


def test_two_level_draw_gives_everybody_the_same_number_of_all_images() -> None:
    train, test, coarse = labels(20, 50), labels(20, 10), np.arange(20) // 5
    deal = dirichlet.by_superclass(train, test, coarse, 10, 0.5, np.random.default_rng(0))
    both = np.bincount(deal.train.client, minlength=10) + np.bincount(deal.test.client, minlength=10)
    assert (both == 120).all()
    assert len(np.unique(deal.train.row)) == len(train)
    assert len(np.unique(deal.test.row)) == len(test)


def test_two_level_draw_concentrates_on_super_classes() -> None:
    train, test, coarse = labels(100, 100), labels(100, 20), np.arange(100) // 5
    deal = dirichlet.by_superclass(train, test, coarse, 20, 0.1, np.random.default_rng(0))
    by_coarse = histogram(deal.train, coarse[train], 20)[:5]  # the first clients draw from full shelves
    top = by_coarse.max(1) / by_coarse.sum(1)
    assert top.mean() > 0.3  # of twenty super-classes, where IID would give 0.05


def constant_prediction(deal: Deal, train: np.ndarray, test: np.ndarray, n_clients: int) -> float:
    """Accuracy of each client's most frequent training class on its own test images, mean over clients."""
    held, tested = histogram(deal.train, train, n_clients), histogram(deal.test, test, n_clients)
    return float(np.mean(tested[np.arange(n_clients), held.argmax(1)] / tested.sum(1)))


def test_the_published_fixed_draw_gives_the_majority_rate_of_the_printed_tables() -> None:
    train, test = labels(10, 400), labels(10, 100)
    deal = dirichlet.fixed_by_label(train, test, 5, 0.3)
    assert round(100 * constant_prediction(deal, train, test, 5), 1) == 37.0
