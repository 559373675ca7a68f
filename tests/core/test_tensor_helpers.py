"""The functions that methods share, against plain loops and autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.core import tensors as t
from fpl_tune.core.errors import ConfigError


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("weight", [[1, 2, 5], [0, 0, 3], [0, 0, 0]])
def test_an_average_is_weighted_and_plain_where_nobody_has_images(weight: list[int]) -> None:
    rows = drawn(3, 4, 2)
    share = [w / sum(weight) if any(weight) else 1 / 3 for w in weight]
    wanted = sum(s * row for s, row in zip(share, rows, strict=True))
    torch.testing.assert_close(t.average(rows, torch.tensor(weight)), wanted)
    assert t.average(rows.float(), torch.tensor(weight)).dtype == torch.float32


@pytest.mark.parametrize("length", [3.0, 1e-14])
def test_unit_features_and_their_gradient_are_those_of_torch(length: float) -> None:
    x, given = length * F.normalize(drawn(2, 3, 4), dim=-1), drawn(2, 3, 4)
    torch.testing.assert_close(t.normalize(x), F.normalize(x, dim=-1))
    if length > 1e-12:
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        t.normalize(ours).backward(given)
        F.normalize(theirs, dim=-1).backward(given)
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_all_leaves_of_a_client_are_scaled_down_together() -> None:
    leaves = [drawn(3, 4), drawn(3, 2, 5)]
    norms = torch.cat([leaf.flatten(1) for leaf in leaves], 1).norm(dim=1)
    bound = float(norms.median())
    for leaf, after in zip(leaves, t.clipped(bound, leaves), strict=True):
        for client in range(3):
            factor = min(1.0, bound / float(norms[client]))
            torch.testing.assert_close(after[client], leaf[client] * factor)
    assert all((leaf == 0).all() for leaf in t.clipped(1.0, [torch.zeros(2, 3)]))
    torch.testing.assert_close(t.clipped(math.inf, leaves), leaves)


def test_logits_are_scaled_cosines_and_minus_infinity_for_what_is_not_owned() -> None:
    image, text = drawn(2, 3, 4), F.normalize(drawn(2, 5, 4), dim=-1)
    logits = t.cosine_logits(7.0, image, text)
    wanted = 7 * F.cosine_similarity(image[:, :, None], text[:, None], dim=-1)
    torch.testing.assert_close(logits, wanted)
    owned = torch.tensor([[True, False, True], [False, True, True]])
    masked = t.among(logits, owned)
    for client in range(2):
        for column in range(5):
            kept = column > 2 or bool(owned[client, column])  # further columns are wrong answers
            assert torch.equal(masked[client, :, column], logits[client, :, column]) == kept
            assert bool((masked[client, :, column] == -math.inf).all()) != kept


def test_a_mean_is_over_what_the_mask_lets_through() -> None:
    values, mask = drawn(3, 4), torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])
    values[0, 2] = math.nan
    means = t.mean_over(values, mask)
    assert means.tolist() == pytest.approx([float(values[0, [0, 1, 3]].mean()), 0, float(values[2].mean())])


def test_rows_are_put_into_a_copy_unless_in_place() -> None:
    leaf, rows, clients = torch.zeros(4, 2), torch.ones(2, 2), torch.tensor([3, 1])
    wanted = torch.tensor([[0.0, 0], [1, 1], [0, 0], [1, 1]])
    assert torch.equal(t.scatter_rows(leaf, clients, rows), wanted)
    assert not leaf.any()
    with t.in_place():
        with t.in_place(False):
            t.scatter_rows(leaf, clients, rows)
            assert not leaf.any()
        assert t.scatter_rows(leaf, clients, rows) is leaf
    assert torch.equal(leaf, wanted)
    with pytest.raises(ZeroDivisionError), t.in_place():
        _ = 1 / 0
    assert t.scatter_rows(leaf, clients, rows) is not leaf


def test_a_loss_takes_the_gradients_that_it_is_given() -> None:
    value, leaves = drawn(2).requires_grad_(), t.fresh_leaves({"a": drawn(2, 3), "b": drawn(2, 2, 2), "c": drawn(2)})
    given = {"a": drawn(2, 3), "b": drawn(2, 2, 2)}
    loss = t.with_gradient(value, leaves, given)
    torch.testing.assert_close(loss, value.detach())
    found = torch.autograd.grad(loss.sum(), [*leaves.values(), value], allow_unused=True)
    torch.testing.assert_close(found[:2], (given["a"], given["b"]))
    assert found[2:] == (None, None)


def test_scalars_are_counted_and_rules_required() -> None:
    assert t.count(a=drawn(2, 3), b=drawn(1)) == {"a": 6, "b": 1}
    t.require(True, "lam", "must be small", 1)
    for remedy, text in (("", "is 7.$"), ("Lower it.", r"is 7\. Lower it\.$")):
        with pytest.raises(ConfigError, match=f"^method.lam must be small, but {text}"):
            t.require(False, "lam", "must be small", 7, remedy)
