from __future__ import annotations

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.data.partition import assign_classes, assign_disjoint, by_class, iid, some_by_class


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
