"""pFedMMA: adapters inside both towers with one shared part."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from fpl_tune.methods.pfedmma import PFedMMA, _branch
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(3, 2, 2, 1))

SMALL = PFedMMA(blocks=2, rank=3, alpha=0.5)


def _trained(method, task, **options):
    return play(method, [task], epochs=1, **options)[-1][0]


def test_the_adapter_is_two_rectified_layers_and_a_linear_one():
    rng = torch.Generator().manual_seed(0)
    shapes = {"down": (3, 8), "s": (3, 3), "up": (8, 3)}
    leaf = {}
    for name, shape in shapes.items():
        leaf[f"{name}.weight"] = torch.randn(2, *shape, generator=rng)
        leaf[f"{name}.bias"] = torch.randn(2, shape[0], generator=rng)
    x = torch.randn(2, 5, 8, generator=rng)
    for client in range(2):
        own = {name: values[client] for name, values in leaf.items()}
        h = F.relu(F.linear(x[client], own["down.weight"], own["down.bias"]))
        h = F.relu(F.linear(h, own["s.weight"], own["s.bias"]))
        wanted = F.linear(h, own["up.weight"], own["up.bias"])
        torch.testing.assert_close(_branch(leaf, x)[client], wanted)


def test_scaled_gradients_are_true_ones_over_alpha_and_values_are_equal(task, whole_batch):
    batch, found = whole_batch(task), {}
    state = SMALL.init(task, torch.Generator().manual_seed(0))
    for gradient in ("scaled", "true"):
        method = replace(SMALL, gradient=gradient)
        local = method.start(task, state, EVERYONE)
        leaves = [leaf.requires_grad_() for leaf in local.params.values()]
        loss, _ = method.loss(task, local, batch)
        found[gradient] = loss, torch.autograd.grad(loss.sum(), leaves)
    torch.testing.assert_close(found["scaled"][0], found["true"][0])
    for scaled, true in zip(found["scaled"][1], found["true"][1], strict=True):
        torch.testing.assert_close(scaled, true / 0.5)


def test_adapters_sit_in_the_last_blocks_and_in_all_of_a_small_tower(task, paper_task):
    for blocks, n in ((2, 2), (8, 3)):
        state = PFedMMA(blocks=blocks, rank=3).init(task, torch.Generator())
        assert state.shared["s.weight"].shape == (n, 3, 3)
    adapter = SMALL._adapter(SMALL.start(task, SMALL.init(task, torch.Generator()), EVERYONE).params, "text", 3)
    assert (adapter.first, adapter.n_blocks) == (1, 2)


def test_text_features_differ_between_clients_unless_they_are_the_first_ones(task, whole):
    """The released evaluation keeps those of client 0 after round 1, whatever is learned later."""
    pixels = whole.image[:1, :1].expand(4, -1, -1, -1, -1)
    same = whole._replace(image=pixels, label=whole.label[:, :1], mask=whole.mask[:, :1], index=whole.index[:, :1])

    def text(method, state):
        local = method.deploy(task, state, EVERYONE)
        first = {n.removeprefix("first."): leaf for n, leaf in local.buffers.items()}
        adapter = method._adapter(first or local.params, "text", 3)
        return task.sentences([task.template], adapter=adapter)

    own = text(SMALL, _trained(SMALL, task, cohorts=[(0, 1, 2, 3)]))
    assert not any(torch.allclose(own[0], own[client]) for client in range(1, 4))
    stale = replace(SMALL, text_features="first")
    (_, (one,), (two,)) = play(stale, [task], epochs=1, cohorts=[(0, 1, 2, 3)] * 2)
    for state in (one, two):
        found = text(stale, state)
        torch.testing.assert_close(found, own[:1].expand_as(found))
    assert not torch.allclose(two.personal["text.up.bias"], one.personal["text.up.bias"])
    assert stale.logits(task, stale.deploy(task, two, EVERYONE), same).shape == (4, 1, 6)
