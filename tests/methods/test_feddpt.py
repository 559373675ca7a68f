"""Fed-DPT: domain weights, momentum, who trains which prompt, and what the ablations collapse to."""

import pytest
import torch

from fpl_tune.method import normalize
from fpl_tune.methods.feddpt import FedDPT
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels")


def _trained(method, task):
    """A state in which all leaves differ from their start and from each other."""
    return play(method, [task], cohorts=[(0, 2), (1, 3)], epochs=1)[-1][0]


@pytest.mark.parametrize("attention", ["scaled", "raw", "cosine"])
@pytest.mark.parametrize("objective", ["cosine", "ce"])
def test_loss_and_gradient_are_those_of_clients_alone(
    task, attention, objective, whole_batch, assert_equal_to_clients_alone, plain_text
):
    """Against Eqs. 3 to 8 written for one client and one image at a time, with every domain's prompt in its place."""
    method = FedDPT(n_ctx=2, attention=attention, objective=objective, momentum=0.5)
    state = _trained(method, task)
    local = method.start(task, state, EVERYONE)
    _, fixed = method.loss(task, local, whole_batch(task))

    def plain(client, leaf, images, labels):
        domain, own, tokens = int(task.domain[client]), leaf["text"], leaf["visual"]
        external = 0.5 * state.personal["text"][client, 0] + 0.5 * state.shared["text"][1 - domain]
        torch.testing.assert_close(fixed["text.external"][client, 0], external)
        prompts = [own[0], external] if domain == 0 else [external, own[0]]
        text = [plain_text(task, prompt) for prompt in prompts]
        values = []
        for image, label in zip(images, labels, strict=True):
            features, looks = task.encode_images(image[None, None], tokens[None], cosine=attention == "cosine")
            heads = looks[0, 0]  # [heads, n]
            score = {"scaled": heads.mean(0) / 8**0.5, "raw": heads.sum(0), "cosine": heads.mean(0)}[attention]
            weight = (score / 0.1).exp() / (score / 0.1).exp().sum()
            mixed = normalize(weight[0] * text[0] + weight[1] * text[1])  # [K, D]
            cosine = mixed @ normalize(features[0, 0])
            values.append(1 - cosine[label] if objective == "cosine" else -(task.scale * cosine).log_softmax(0)[label])
        return torch.stack(values).mean()

    assert_equal_to_clients_alone(method, task, local, plain)


def test_prompts_of_one_domain_are_averaged_and_tokens_over_all(task):
    method = FedDPT(n_ctx=2)
    state = method.init(task, torch.Generator().manual_seed(0))
    clients = torch.tensor([3, 0, 1])
    local = method.start(task, state, clients)
    local.params["text"][:] = torch.tensor([8.0, 1.0, 3.0]).view(3, 1, 1, 1)
    local.params["visual"][:] = torch.tensor([0.0, 3.0, 6.0]).view(3, 1, 1)
    merged = method.merge(task, state, clients, local)
    assert bool((merged.shared["text"][0] == 2).all())
    assert bool((merged.shared["text"][1] == 8).all())
    torch.testing.assert_close(merged.shared["visual"], torch.full_like(state.shared["visual"], 3.0))


def test_external_prompts_follow_by_momentum_and_stay_with_the_client(task):
    """After s steps towards a constant prompt, what is left of the old one is α to the s (Eq. 8)."""
    method = FedDPT(n_ctx=2, momentum=0.9)
    state = method.init(task, torch.Generator().manual_seed(0))
    old = torch.full_like(state.personal["text"], 4.0)
    state = state._replace(personal={"text": old})
    (_, (after,)) = play(method, [task], states=[state], cohorts=[(0,)], epochs=1)  # 9 images in batches of 4
    received = state.shared["text"][1]
    torch.testing.assert_close(after.personal["text"][0, 0], received + 0.9**3 * (4 - received))
    assert torch.equal(after.personal["text"][1:], old[1:])


def test_training_without_lag_sees_what_is_deployed(task, whole):
    """With everybody's prompts in step the training and the deployed forward are the same function."""
    for method in (
        FedDPT(n_ctx=2),
        FedDPT(n_ctx=2, visual="split"),
        FedDPT(n_ctx=2, text="all"),
        FedDPT(n_ctx=2, text="shared"),
    ):
        state = method.init(task, torch.Generator().manual_seed(0))
        trained = method.logits(task, method.start(task, state, EVERYONE), whole)
        torch.testing.assert_close(trained, method.logits(task, method.deploy(task, state, EVERYONE), whole))


def test_split_trains_one_token_and_momentum_carries_the_others(task):
    method = FedDPT(n_ctx=2, visual="split", visual_momentum=0.5)
    (before,), (after,) = play(method, [task], cohorts=[(2, 3)], epochs=1)
    assert torch.equal(after.shared["visual"][0], before.shared["visual"][0])
    assert not torch.equal(after.shared["visual"][1], before.shared["visual"][1])
    assert method.start(task, after, torch.tensor([0])).params["visual"].shape[1] == 1
    old = torch.full_like(before.personal["visual"], 4.0)
    lagging = before._replace(personal={**before.personal, "visual": old})
    (_, (after,)) = play(method, [task], states=[lagging], cohorts=[(0,)], epochs=1)  # 9 images in batches of 4
    received = before.shared["visual"][1]
    torch.testing.assert_close(after.personal["visual"][0, 0], received + 0.5**3 * (4 - received))


def test_learned_and_sent_scalars_are_the_published_ones(paper_task):
    task = paper_task()
    state = FedDPT().init(task, torch.Generator())
    assert sum(leaf.numel() for leaf in state.shared.values()) == 53_760
    sent = FedDPT().traffic(task, state, torch.arange(6))
    assert sent.down == {"text": 6 * 16 * 512, "visual": 6 * 768}
    assert sent.up == {"text": 16 * 512, "visual": 6 * 768}
    split = FedDPT(text="all", visual="split")
    state = split.init(task, torch.Generator())
    assert split.traffic(task, state, torch.arange(6)).up == {"text": 6 * 16 * 512, "visual": 768}
