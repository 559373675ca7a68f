"""PromptSRC: three terms that hold prompts near the frozen towers, and a Gaussian average over rounds."""

import math
from dataclasses import replace

import pytest
import torch

from fpl_tune.method import normalize
from fpl_tune.methods.ivlp import IVLP
from fpl_tune.methods.promptsrc import PromptSRC
from fpl_tune.testing import EVERYONE, play, toy_task

TASK = dict(needs="pixels", sizes=(3, 2, 2, 1))

SMALL = PromptSRC(n_ctx=2, n_tokens=2, depth=2)


@pytest.fixture(scope="module")
def local(task):
    (state,) = play(IVLP(n_ctx=2, n_tokens=2, depth=2), [task], cohorts=[(0, 1)], epochs=1)[-1]
    return SMALL.start(task, state, EVERYONE)


def test_without_terms_it_is_ivlp(task, local, whole_batch):
    batch, ivlp = whole_batch(task), IVLP(n_ctx=2, n_tokens=2, depth=2)
    method = replace(SMALL, text=0.0, image=0.0, agreement=0.0)
    torch.testing.assert_close(method.loss(task, local, batch)[0], ivlp.loss(task, local, batch)[0])


def test_the_loss_is_the_sum_written_out_image_by_image(task, local, whole_batch):
    batch, method = whole_batch(task), replace(SMALL, templates=("{}", "a photo of a {}."))
    loss, _ = method.loss(task, local, batch)
    still = normalize(task.sentences(["{}", "a photo of a {}."]).mean(0))
    for client in range(4):
        deep = local.params["deep"][client]
        text = task.encode_prompts(local.params["text"][client], deep=deep, tail="of a")
        total = 25 * (text - still).abs().mean()
        rows = []
        for number in range(int(batch.mask[client].sum())):
            pixels = batch.image[client, number][None, None]
            prompts = local.params["visual"][client][None]
            image = normalize(task.encode_images(pixels, prompts[:, 0], deep=prompts[:, 1:])[0])[0, 0]
            frozen = normalize(task.towers.encode_images(pixels))[0, 0]
            p, q = (task.scale * text @ image).log_softmax(0), (task.scale * still @ frozen).log_softmax(0)
            divergence = (q.exp() * (q - p)).sum() / len(p)
            rows.append(-p[batch.label[client, number]] + 10 * (image - frozen).abs().mean() + divergence)
        torch.testing.assert_close(loss[client], total + torch.stack(rows).mean(), rtol=1e-5, atol=1e-7)


def _rounds(method, n_rounds, values):
    """States after rounds whose merged prompts are `values`."""
    task = toy_task("pixels", sizes=(2, 2))
    states = [method.init(task, torch.Generator().manual_seed(0))]
    for number, value in enumerate(values, start=1):
        here, clients = task.during(number, n_rounds, key=number), torch.arange(2)
        local = method.start(here, states[-1], clients)
        trained = {name: torch.full_like(leaf, value) for name, leaf in local.params.items()}
        states.append(method.merge(here, states[-1], clients, local._replace(params=trained)))
    return task, states


def test_deployed_prompts_are_the_gaussian_mean_of_rounds_and_are_never_sent():
    values = [1.0, 2.0, 4.0, 8.0]
    method = replace(SMALL, mean=0.5, spread=0.25)
    task, states = _rounds(method, 4, values)
    weights = [math.exp(-0.5 * ((t / 4 - 0.5) / 0.25) ** 2) for t in range(1, 5)]
    for t in range(1, 5):
        wanted = sum(w * v for w, v in zip(weights[:t], values, strict=False)) / sum(weights[:t])
        deployed = method.deploy(task, states[t], torch.arange(2)).params
        sent = method.start(task, states[t], torch.arange(2)).params
        for name, leaf in deployed.items():
            torch.testing.assert_close(leaf, torch.full_like(leaf, wanted))
            assert bool((sent[name] == values[t - 1]).all())


def test_the_published_gaussian_survives_rounds_whose_weight_is_nothing():
    """Round 1 of 20 has weight e^-98: until a heavier one comes, its prompts are what is deployed."""
    task, states = _rounds(SMALL, 20, [5.0, 7.0])
    leaves = [SMALL.deploy(task, state, torch.arange(2)).params["text"] for state in states[1:]]
    assert [leaf.mean().item() for leaf in leaves] == pytest.approx([5.0, 7.0], abs=1e-3)


def test_flips_port_sends_prompts_of_about_zero_and_then_frozen_ones():
    method = replace(SMALL, gaussian="sent")
    task, states = _rounds(method, 20, [3.0] * 20)
    sent = [method.start(task, state, torch.arange(2)).params["text"].abs().max().item() for state in states]
    assert max(sent[1:11]) < 1e-4
    assert sent[20] == pytest.approx(3.0)
    assert abs(sent[20] - sent[18]) < 0.01
    task, states = _rounds(replace(SMALL, gaussian="none"), 20, [3.0])
    assert bool((states[1].shared["text"] == 3.0).all())
