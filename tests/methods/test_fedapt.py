"""FedAPT with labels: keys, the reader of domains, and both ways to infer."""

import pytest
import torch

from fpl_tune.method import normalize
from fpl_tune.methods._domains import domain_weights, draw_keys
from fpl_tune.methods.fedapt import FedAPT
from fpl_tune.testing import EVERYONE, play


def _trained(method, task):
    return play(method, [task], cohorts=[(0, 2), (1, 3)], epochs=1)[-1][0]


def test_loss_and_gradient_are_those_of_clients_alone(task, assert_equal_to_clients_alone, plain_text):
    """Cross-entropy under p ⊙ (1 + k) plus cross-entropy of the reader, each client with its domain's key."""
    method = FedAPT(n_ctx=2)
    state = _trained(method, task)

    def plain(client, leaf, images, labels):
        domain, prompt, reader = int(task.domain[client]), leaf["prompt"], leaf["reader"]
        text = plain_text(task, prompt + prompt * state.server["keys"][domain], per_class=True)
        logits = task.scale * normalize(images) @ text.T
        right = logits.log_softmax(1)[torch.arange(len(labels)), labels].mean()
        return -right - (images @ reader.T).log_softmax(1)[:, domain].mean()

    assert_equal_to_clients_alone(method, task, method.start(task, state, EVERYONE), plain)


def test_precomputed_inference_equals_the_prompt_of_every_image_as_the_choice_gets_hard(task, whole_batch):
    state, batch = _trained(FedAPT(n_ctx=2), task), whole_batch(task)
    apart = []
    for temperature in (1.0, 0.1, 1e-4):
        logits = []
        for inference in ("precomputed", "exact"):
            method = FedAPT(n_ctx=2, temperature=temperature, inference=inference)
            logits.append(method.logits(task, method.deploy(task, state, EVERYONE), batch))
        apart.append((logits[0] - logits[1]).abs().max().item())
    assert apart[0] > 1e-4
    assert apart[-1] < 1e-9


def test_unlocking_a_fixed_key_takes_the_trained_model_apart(task, whole_batch, plain_text):
    state, batch = _trained(FedAPT(n_ctx=2), task), whole_batch(task)
    keys = state.server["keys"]
    by_client = {"none": torch.zeros_like(keys[[0, 0, 0, 0]]), 1: keys[[1, 1, 1, 1]], "own": keys[[0, 0, 1, 1]]}
    for unlock, own in by_client.items():
        method = FedAPT(n_ctx=2, unlock=unlock)
        logits = method.logits(task, method.deploy(task, state, EVERYONE), batch)
        for client in range(4):
            text = plain_text(task, state.shared["prompt"] * (1 + own[client]), per_class=True)
            torch.testing.assert_close(logits[client], task.scale * normalize(batch.image[client]) @ text.T)


def test_domain_weights_are_those_of_the_official_formula():
    rng = torch.Generator().manual_seed(0)
    reader, image = torch.randn(1, 5, 7, generator=rng).double(), torch.randn(1, 3, 7, generator=rng).double()
    found = domain_weights(reader, image, 0.5)
    for i in range(3):
        read = torch.stack([(reader[0, d] * image[0, i]).sum() for d in range(5)])
        score = (read - read.mean()) / (((read - read.mean()) ** 2).sum() / 4).sqrt()
        torch.testing.assert_close(found[0, i], (score / 0.5).exp() / (score / 0.5).exp().sum())
    torch.testing.assert_close(domain_weights(reader, 100 * image, 0.5), found)  # the scale of features is no matter
    assert bool((domain_weights(reader[:, :1], image, 0.5) == 1).all())


@pytest.mark.parametrize("kind", ["uniform", "normal", "binary", "orthogonal", "none"])
def test_keys_are_drawn_as_named(kind, paper_task):
    task = paper_task()
    keys = draw_keys(task, kind, 16, torch.Generator().manual_seed(0))
    assert keys.shape == (6, 16, 512)
    mean, square = keys.mean().item(), (keys**2).mean().item()
    expected = {"uniform": (0.5, 1 / 3), "normal": (0, 1), "binary": (0.5, 0.5), "orthogonal": (0, 1), "none": (0, 0)}
    assert mean == pytest.approx(expected[kind][0], abs=0.02)
    assert square == pytest.approx(expected[kind][1], abs=0.03)
    gram = keys.flatten(1) @ keys.flatten(1).T / (16 * 512)
    if kind == "orthogonal":
        torch.testing.assert_close(gram, torch.eye(6), atol=1e-5, rtol=0)
    if kind == "uniform":
        assert bool(((keys >= 0) & (keys < 1)).all())
    if kind == "binary":
        assert set(keys.unique().tolist()) == {0.0, 1.0}


def test_figures_tell_how_often_the_reader_finds_the_domain(task):
    method = FedAPT(n_ctx=2)
    state = method.init(task, torch.Generator().manual_seed(3))
    seen, reader = task.table("val"), state.shared["reader"]
    by_client = []
    for client in range(task.n_clients):
        images = seen.image[client][seen.mask[client]]
        told = [int((reader @ image).argmax()) == int(task.domain[client]) for image in images]
        by_client.append(sum(told) / len(told))
    found = method.metrics(task, state)
    assert found.pop("reader/acc_mean") == pytest.approx(sum(by_client) / len(by_client))
    for domain in range(task.n_domains):
        mine = [share for client, share in enumerate(by_client) if task.domain[client] == domain]
        assert found.pop(f"reader/domain{domain + 1}/acc_mean") == pytest.approx(sum(mine) / len(mine))
    assert not found
    plain = FedAPT(n_ctx=2, keys="none")
    assert plain.metrics(task, plain.init(task, torch.Generator())) == {}
