"""FedCLIP: its two published forms, what it collapses to, what travels."""

import pytest
import torch

from fpl_tune.core.errors import ConfigError
from fpl_tune.methods.fedclip import FedCLIP
from fpl_tune.testing import play
from fpl_tune.wrappers.private import Private


def _reference_loss(task, leaf, image, label, form, objective):
    """One client's loss without a client axis or padding."""
    hidden = image @ leaf["first.weight"].T + leaf["first.bias"]
    score = (hidden.relu() if form == "sigmoid" else hidden.tanh()) @ leaf["second.weight"].T + leaf["second.bias"]
    adapted = image * (
        1 / (1 + (-score).exp()) if form == "sigmoid" else score.exp() / score.exp().sum(1, keepdim=True)
    )
    adapted = adapted / adapted.norm(dim=1, keepdim=True)
    if objective == "ce":
        logits = task.scale * adapted @ task.hand_text.T
        return (logits.logsumexp(1) - logits[torch.arange(len(label)), label]).mean()
    alike = task.scale * adapted @ task.hand_text[label].T
    own = alike.diagonal()
    return ((alike.logsumexp(1) - own).mean() + (alike.logsumexp(0) - own).mean()) / 2


@pytest.mark.parametrize("form", ["sigmoid", "softmax"])
@pytest.mark.parametrize("objective", ["ce", "contrastive"])
def test_loss_and_gradient_are_those_of_clients_alone(task, form, objective, assert_equal_to_clients_alone):
    method = FedCLIP(form=form, objective=objective)
    state = method.init(task, torch.Generator().manual_seed(0))
    local = method.start(task, state, torch.arange(4))

    def plain(client, leaf, images, labels):
        return _reference_loss(task, leaf, images, labels, form, objective)

    assert_equal_to_clients_alone(method, task, local, plain, rtol=1e-9)


def test_without_broadcast_clients_train_alone_and_the_average_is_evaluated(task):
    alone = FedCLIP(broadcast=False)
    first, after, last = (states[0] for states in play(alone, [task], cohorts=[(0, 1), (0, 1)]))
    assert not last.shared  # nobody receives the average, so that no wrapper takes what a client starts from for it
    for name, leaf in last.server.items():
        torch.testing.assert_close(leaf, (last.personal[name][0] + last.personal[name][1]) / 2)
        assert torch.equal(last.personal[name][2], first.personal[name][2])
        assert not torch.equal(last.personal[name][0], last.personal[name][1])
        torch.testing.assert_close(alone.deploy(task, last, torch.tensor([3])).params[name][0], leaf)
    sent = alone.traffic(task, after, torch.arange(2))
    assert (sum(sent.up.values()), sum(sent.down.values())) == (sum(v.numel() for v in last.server.values()), 0)
    with pytest.raises(ConfigError, match="is exchanged"):
        Private(alone, bound="update").start(task, Private(alone).init(task, torch.Generator()), torch.arange(2))
    together = play(FedCLIP(), [task], cohorts=[(0, 1)])[-1][0]
    for name, leaf in after.server.items():  # the first round is the same either way
        torch.testing.assert_close(leaf, together.shared[name])
