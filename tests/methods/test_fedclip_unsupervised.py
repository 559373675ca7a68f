"""FedCLIP without labels: the stages' losses are FedAPT's (tested there) on the adapter's logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fpl_tune.method import Batch, generator, normalize
from fpl_tune.methods.fedapt_unsupervised import FedAPTUnsupervised
from fpl_tune.methods.fedclip import FedCLIP
from fpl_tune.methods.fedclip_unsupervised import FedCLIPUnsupervised
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


@pytest.mark.parametrize("form", ["sigmoid", "softmax"])
def test_predicts_as_the_supervised_method(task: ClientTask, form: Any, whole_batch: Callable[..., Batch]) -> None:
    found, wanted = FedCLIPUnsupervised(form=form), FedCLIP(form=form)
    state, batch = found.init(task, generator("init")), whole_batch(task)
    same = wanted.init(task, generator("init"))
    logits = [m.logits(task, m.deploy(task, s, EVERYONE), batch) for m, s in ((found, state), (wanted, same))]
    assert torch.equal(*logits)


def test_pseudo_labels_are_the_true_labels_where_zero_shot_is_right(task, whole_batch) -> None:
    """Then the first stage is the supervised loss, up to the images that the teacher is not sure of: here of none."""
    method, batch = FedCLIPUnsupervised(threshold=0.0, augment=False), whole_batch(task)
    guessed = (normalize(batch.image) @ task.hand_text.T).argmax(-1)
    local = method.start(task, method.init(task, generator("init")), EVERYONE)
    loss, _ = method.loss(task, local, batch)
    wanted, _ = FedCLIP().loss(task, local, batch._replace(label=guessed))
    torch.testing.assert_close(loss, wanted)


def test_the_second_stages_loss_is_fedapts_on_these_predictions(task, whole_batch) -> None:
    first = play(FedCLIPUnsupervised(threshold=0.0, augment=False), [task], cohorts=[(0, 1)])[-1][0]
    method = FedCLIPUnsupervised(phase=2, augment=False)
    state, batch = method.init(task, generator("init"), first), whole_batch(task)
    assert torch.equal(state.shared["first.weight"], first.shared["first.weight"])
    local = method.start(task, state, EVERYONE)
    loss, fixed = method.loss(task, local, batch)
    logits = method.logits(task, local, batch)

    class Reads(FedAPTUnsupervised):  # FedAPT's loss on given predictions, its reader of domains silent
        def logits(self, task: Any, local: Any, batch: Batch) -> torch.Tensor:
            return logits

    reader = torch.zeros(4, 2, task.embed_dim, dtype=task.dtype)
    other = local._replace(params={"reader": reader}, buffers={**local.buffers, "domain": task.domain})
    wanted, banks = Reads(phase=2, augment=False).loss(task, other, batch)
    torch.testing.assert_close(loss + torch.log(torch.tensor(2.0)), wanted)
    assert torch.equal(fixed["scores"], banks["scores"])
