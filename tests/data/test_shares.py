"""Shares of images among clients, and the few of them that are trained on."""

import random

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.data import dirichlet, fewshot
from fpl_tune.data.partition import Assignment, Deal, assign_classes, assign_disjoint, by_class, iid, some_by_class


def labels(n_classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(n_classes), each)


def histogram(shares: Assignment, label: np.ndarray, n_clients: int) -> np.ndarray:
    """[N, K]"""
    table = np.zeros((n_clients, int(label.max()) + 1))
    np.add.at(table, (shares.client, label[shares.row]), 1)
    return table


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_every_image_has_one_client_and_every_client_its_minimum(alpha: float) -> None:
    train, test = labels(10, 200), labels(10, 60)
    deal = dirichlet.by_label(train, test, 8, alpha, 5, np.random.default_rng(0))
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


def concentration(squares: np.ndarray) -> float:
    """The concentration α of the Dirichlet distribution of n shares [..., n] whose squares have this mean.

    Under Dir(α·1_n), the square of a share has the mean (α + 1) / (n (nα + 1)).
    """
    n, mean = squares.shape[-1], float(squares.mean())
    return (1 - n * mean) / (n * (n * mean) - 1)


@pytest.mark.parametrize("alpha", [0.3, 3.0])
def test_shares_of_a_class_spread_as_the_concentration_says(alpha: float) -> None:
    label, rng = labels(1, 1000), np.random.default_rng(0)
    squares = []
    for _ in range(1000):
        for shares in dirichlet.by_label(label, label, 5, alpha, 0, rng):
            squares.append((histogram(shares, label, 5).ravel() / 1000) ** 2)
    assert concentration(np.array(squares)) == pytest.approx(alpha, rel=0.1)


def test_the_published_draw_spreads_as_the_concentration_says() -> None:
    """All of its classes have the same shares, so that the spread is that over numbers of clients."""
    found = []
    for n_clients in range(2, 60):
        label = labels(1, 1000 * n_clients)
        deal = dirichlet.fixed_by_label(label, label, n_clients, 2.0)
        found.append(concentration((histogram(deal.train, label, n_clients).T / len(label)) ** 2))
    assert np.median(found) == pytest.approx(2.0, rel=0.2)


def test_two_level_shares_spread_as_both_concentrations_say() -> None:
    """Of m draws, c with the share p: c(c − 1) / m(m − 1) has the mean p². The first clients draw from full shelves."""
    train, coarse, rng = labels(20, 2000), np.arange(20) // 5, np.random.default_rng(0)
    draws = [dirichlet.by_superclass(train, train[:0], coarse, 200, 2.0, rng).train for _ in range(8)]
    drawn = np.concatenate([histogram(shares, train, 200)[:20] for shares in draws]).reshape(-1, 4, 5)
    groups = drawn.sum(2)
    assert concentration(groups * (groups - 1) / (200 * 199)) == pytest.approx(2.0, rel=0.15)
    each, all_ = drawn[groups > 30], groups[groups > 30][:, None]
    assert concentration(each * (each - 1) / (all_ * (all_ - 1))) == pytest.approx(10.0, rel=0.15)


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


@pytest.mark.parametrize(
    ("n_classes", "client", "owned"),
    [(37, 0, [10, 14, 18, 23]), (37, 9, [24]), (47, 0, [3, 22, 23, 43, 45]), (47, 9, [24, 44])],
)
def test_seed_2023_deals_the_classes_that_published_code_deals(n_classes: int, client: int, owned: list[int]) -> None:
    assert np.flatnonzero(assign_disjoint(n_classes, 10, 2023)[client]).tolist() == owned


@pytest.mark.parametrize(
    ("n_classes", "sizes"),
    [(37, [4] * 9 + [1]), (47, [5] * 9 + [2]), (102, [10] * 9 + [12]), (101, [10] * 9 + [11]), (100, [10] * 10)],
)
def test_the_last_client_owns_what_is_left(n_classes: int, sizes: list[int]) -> None:
    owns = assign_disjoint(n_classes, 10, 2023)
    assert owns.sum(1).tolist() == sizes
    assert (owns.sum(0) == 1).all()


@pytest.mark.parametrize(("n_classes", "n_clients"), [(15, 10), (5, 10), (7, 8)])
def test_too_many_clients_for_disjoint_classes_are_refused_with_a_number_that_works(n_classes, n_clients) -> None:
    with pytest.raises(ConfigError, match=r"Set partition\.n_clients=(\d+)\.") as refused:
        assign_disjoint(n_classes, n_clients, 2023)
    suggested = int(str(refused.value).rsplit("=", 1)[1].rstrip("."))
    assert assign_disjoint(n_classes, suggested, 2023).any(1).all()


def test_every_client_draws_its_number_of_classes() -> None:
    owns = assign_classes(20, 100, 5, np.random.default_rng(0))
    assert (owns.sum(1) == 5).all()
    assert (owns.sum(0) > 0).all()
    assert assign_classes(20, 3, 20, np.random.default_rng(0)).all()
    with pytest.raises(ConfigError, match="at most the number of classes, 20"):
        assign_classes(20, 3, 21, np.random.default_rng(0))


def test_images_go_to_all_owners_of_their_class_and_to_nobody_else() -> None:
    rng = np.random.default_rng(1)
    label, owns = rng.integers(0, 6, 50), rng.random((4, 6)) < 0.5
    shares = by_class(owns, label)
    got = set(zip(shares.row.tolist(), shares.client.tolist(), strict=True))
    assert got == {(i, c) for i in range(50) for c in range(4) if owns[c, label[i]]}
    assert len(shares.row) == len(got)


def test_owners_of_few_images_get_all_and_of_many_a_fair_draw_of_their_own() -> None:
    rng = np.random.default_rng(1)
    label = rng.permutation(np.repeat([0, 1, 2], [3, 40, 0]))
    owns = np.ones((500, 3), dtype=bool)
    owns[0, 1] = False
    got, everything = some_by_class(owns, label, 4, rng), by_class(owns, label)
    pairs = set(zip(got.row.tolist(), got.client.tolist(), strict=True))
    assert pairs < set(zip(everything.row.tolist(), everything.client.tolist(), strict=True))
    assert len(pairs) == len(got.row) == 500 * 3 + 499 * 4, "nothing twice"
    assert (np.bincount(got.client) == [3] + [7] * 499).all()
    often = np.bincount(got.row, minlength=43)[label == 1]  # each of 40 images is drawn by 499 owners with chance 0.1
    assert np.abs(often - 49.9).max() < 5 * np.sqrt(499 * 0.1 * 0.9)


def test_iid_parts_differ_by_one_at_most_and_hold_everything() -> None:
    shares = iid(103, 10, np.random.default_rng(0))
    assert sorted(shares.row.tolist()) == list(range(103))
    assert set(np.bincount(shares.client).tolist()) == {10, 11}


def one_client(*sizes: int) -> tuple[Assignment, np.ndarray]:
    label = np.repeat(np.arange(len(sizes)), sizes)
    return Assignment(np.arange(len(label)), np.zeros(len(label), dtype=np.int64)), label


@pytest.mark.parametrize(
    ("held", "shots", "val", "expected"),
    [
        (40, 16, 0.25, (16, 4)),  # validation from outside the draw
        (18, 16, 0.25, (14, 4)),  # too few for both: validation first
        (16, 16, 0.25, (12, 4)),
        (40, None, 0.25, (30, 10)),
        (40, 16, 0.0, (16, 0)),
        (2, 16, 0.25, (1, 1)),  # at least one to validate on where there are two
        (1, 16, 0.25, (1, 0)),  # always one to train on
        (3, 16, 0.9, (1, 2)),
        (5, 1, 0.25, (1, 1)),
    ],
)
def test_how_many_are_trained_and_validated_on(held, shots, val, expected) -> None:
    shares, label = one_client(held)
    train, validate = fewshot.draw(shares, label, shots, val, np.random.default_rng(0))
    assert (len(train.row), len(validate.row)) == expected
    assert not set(train.row.tolist()) & set(validate.row.tolist())


@pytest.mark.parametrize(
    ("sizes", "val", "expected"),
    [
        ((3, 3, 3, 3), 0.25, (1, 1, 1, 0)),  # 3 of 12, not one of each class
        ((10, 4, 1), 0.1, (1, 1, 0)),  # 1.5 rounds to 2: a tenth of 10, then the largest remainder
        ((1, 1, 1), 0.1, (0, 0, 0)),  # the only image of a class is trained on
        ((5,), 0.0, (0,)),
        ((5,), 0.1, (1,)),
    ],
)
def test_without_shots_a_client_validates_on_a_share_of_all_its_images(sizes, val, expected) -> None:
    shares, label = one_client(*sizes)
    train, validate = fewshot.draw(shares, label, None, val, np.random.default_rng(0))
    assert tuple(np.bincount(label[validate.row], minlength=len(sizes))) == expected
    assert sorted([*train.row, *validate.row]) == list(range(len(label)))


@pytest.mark.parametrize("shots", [2, 16, None])
def test_shared_images_are_trained_on_or_validated_on(shots: int | None) -> None:
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(5), 20)
    owns = rng.random((8, 5)).argsort(1) < 3
    reserved = fewshot.reserve(label, 0.25, rng)
    assert np.bincount(label[reserved]).tolist() == [4] * 5
    train, validate = fewshot.draw_reserved(by_class(owns, label), label, shots, 0.25, rng, reserved)
    assert not set(train.row.tolist()) & set(validate.row.tolist())
    drawn = 16 if shots is None else shots
    assert np.bincount(train.client, minlength=8).tolist() == [3 * drawn] * 8
    assert np.bincount(validate.client, minlength=8).tolist() == [3 * max(1, drawn // 4)] * 8
    assert (owns[validate.client, label[validate.row]]).all()
    assert not fewshot.reserve(label, 0.0, rng).any()


def test_each_class_of_each_client_is_drawn_for_itself() -> None:
    rng = np.random.default_rng(0)
    label, client = rng.integers(0, 5, 400), rng.integers(0, 6, 400)
    train, validate = fewshot.draw(Assignment(np.arange(400), client), label, 4, 0.25, rng)
    for c in range(6):
        for k in range(5):
            chosen = (train.client == c) & (label[train.row] == k)
            held = ((client == c) & (label == k)).sum()
            kept = ((validate.client == c) & (label[validate.row] == k)).sum()
            assert kept == 1
            assert chosen.sum() == min(4, held - 1)
    assert (client[train.row] == train.client).all()


def test_rows_by_client_are_sorted_and_empty_clients_are_empty() -> None:
    rows = fewshot.by_client(Assignment(np.array([5, 1, 9]), np.array([2, 2, 0])), 4)
    assert [r.tolist() for r in rows] == [[9], [], [1, 5], []]


def test_the_published_draw_is_pythons_sample_continued_from_the_class_shuffle() -> None:
    rng = np.random.default_rng(4)
    label = rng.permutation(np.repeat(np.arange(12), 9))
    owns = assign_disjoint(12, 4, 2023)
    shares = by_class(owns, label)
    train, _ = fewshot.draw_published(shares, label, 4, 0.25, rng, n_classes=12, seed=2023)

    stream = random.Random(2023)  # the same in plain loops
    stream.shuffle(list(range(12)))
    appearance = list(dict.fromkeys(label.tolist()))
    expected: list[set[int]] = []
    for client in range(4):
        mine: set[int] = set()
        for k in appearance:
            if owns[client, k]:
                mine |= set(stream.sample(np.flatnonzero(label == k).tolist(), 4))
        expected.append(mine)
    assert [set(rows.tolist()) for rows in fewshot.by_client(train, 4)] == expected
