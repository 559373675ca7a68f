from __future__ import annotations

import random

import numpy as np
import pytest

from fpl_tune.data import fewshot
from fpl_tune.data.partition import Shares, assign_disjoint, by_class


def one_client(*sizes: int) -> tuple[Shares, np.ndarray]:
    label = np.repeat(np.arange(len(sizes)), sizes)
    return Shares(np.arange(len(label)), np.zeros(len(label), dtype=np.int64)), label


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
    train, validate = fewshot.draw(Shares(np.arange(400), client), label, 4, 0.25, rng)
    for c in range(6):
        for k in range(5):
            chosen = (train.client == c) & (label[train.row] == k)
            held = ((client == c) & (label == k)).sum()
            kept = ((validate.client == c) & (label[validate.row] == k)).sum()
            assert kept == 1
            assert chosen.sum() == min(4, held - 1)
    assert (client[train.row] == train.client).all()


def test_rows_by_client_are_sorted_and_empty_clients_are_empty() -> None:
    rows = fewshot.by_client(Shares(np.array([5, 1, 9]), np.array([2, 2, 0])), 4)
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
