"""What the interface of methods gives to all of them: defaults, the loss, leaves of states and cohorts."""

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import METRICS, Metric, metric
from fpl_tune.method import (
    Local,
    State,
    cross_entropy,
    generator,
    join,
    new_context,
    same_leaves,
    sent_leaves,
    trees_like,
)
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, toy_task

METHOD = PromptFL(n_ctx=2)


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task()


@pytest.fixture(scope="module")
def local(task: ClientTask) -> Local:
    return METHOD.start(task, METHOD.init(task, generator("method")), EVERYONE)


def test_the_loss_is_the_cross_entropy_of_each_clients_real_images(task: ClientTask, local: Local) -> None:
    batch = task.train.batch(torch.arange(4), torch.arange(3).expand(4, -1))
    mask = torch.tensor([[True, True, True], [True, False, True], [False, False, True], [False] * 3])
    batch = batch._replace(mask=mask)
    logits = METHOD.logits(task, local, batch)
    losses, buffers = METHOD.loss(task, local, batch)
    for client in range(4):
        real = mask[client]
        wanted = F.cross_entropy(logits[client, real], batch.label[client, real]) if real.any() else torch.tensor(0.0)
        assert float(losses[client]) == pytest.approx(float(wanted))
    assert buffers is local.buffers
    torch.testing.assert_close(losses, cross_entropy(logits, batch))


def test_what_a_method_does_not_override_has_its_default(task: ClientTask, local: Local) -> None:
    state = METHOD.init(task, generator("method"))
    batch = task.train.batch(torch.arange(4), torch.arange(3).expand(4, -1))
    assert (METHOD.needs, METHOD.learns, METHOD.view, METHOD.batched) == ("pooled", True, None, True)
    assert (METHOD.metrics(task, state), METHOD.diagnose(task, local, batch)) == ({}, {})
    torch.testing.assert_close(METHOD.deploy(task, state, EVERYONE), METHOD.start(task, state, EVERYONE))
    largest = METHOD.logits(task, local, batch).softmax(-1).max(-1).values
    torch.testing.assert_close(METHOD.certainty(task, local, batch), largest)
    fresh = State({"a": torch.zeros(1)}, {"own": torch.zeros(4)}, {})
    joined = METHOD.newcomers(task, State({"a": torch.ones(1)}, {"own": torch.ones(4)}, {}), fresh)
    assert (float(joined.shared["a"]), joined.personal["own"].tolist()) == (1, [0] * 4)


def test_a_context_is_small_noise_that_a_generator_decides(task: ClientTask) -> None:
    context = new_context(task, 500, generator("context"), 3)
    assert context.shape == (3, 500, task.text_width)
    assert float(context.std()) == pytest.approx(0.02, rel=0.05)
    assert torch.equal(context, new_context(task, 500, generator("context"), 3))


def test_cohorts_are_cut_and_put_side_by_side() -> None:
    local = Local({"a": torch.arange(6.0).view(3, 2)}, {"b": torch.arange(3)})
    parts = [local.at(slice(0, 1)), local.at(torch.tensor([1, 2]))]
    assert torch.equal(Local.joined(parts).params["a"], local.params["a"])
    assert torch.equal(Local.joined(parts).buffers["b"], local.buffers["b"])
    assert Local.joined([local]) is local


def test_sent_leaves_are_those_that_are_counted_and_no_copies_of_them() -> None:
    """By the name, or by its first part unless another leaf has that name or a longer part of it."""
    rows = torch.zeros(2, 1)
    names = "prompt", "prompt.ditto", "gate.bias", "gate.bias.ditto", "own", "tower.a.b", "tower.a"
    buffers = {"bank": rows, "bank.old": rows, "seen": rows.bool(), "gates": rows}
    up = {"prompt", "gate", "tower.a.b", "tower.a", "bank", "seen", "histogram"}
    params, others = sent_leaves(Local(dict.fromkeys(names, rows), buffers), up)
    assert params.keys() == {"prompt", "gate.bias", "tower.a.b", "tower.a"}
    assert others.keys() == {"bank"}


@pytest.mark.parametrize("viewed", [True, False])
def test_batches_of_cohorts_are_put_side_by_side(task: ClientTask, viewed: bool) -> None:
    rows = torch.arange(3).expand(2, -1)
    parts = [task.train.batch(torch.tensor(clients), rows) for clients in ([0, 1], [2, 3])]
    if viewed:
        parts = [batch._replace(view=batch.image + 1) for batch in parts]
    joined, whole = join(parts), task.train.batch(torch.arange(4), torch.arange(3).expand(4, -1))
    for name in ("image", "label", "mask", "index"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))
    assert (joined.view is not None) == viewed
    if joined.view is not None:
        assert torch.equal(joined.view, whole.image + 1)


def test_metrics_of_a_method_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpl_tune.core.metrics.METRICS", METRICS.copy())
    type("Timed", (PromptFL,), {"own_metrics": (Metric("own/time", "time of its own", maximize=False),)})
    assert metric("own/time").title == "time of its own"


def test_stored_leaves_are_taken_where_names_and_shapes_agree() -> None:
    state = State({"a": torch.zeros(2, 3, dtype=torch.float64)}, {"own": torch.zeros(4)}, {})
    stored = {"shared": {"a": torch.ones(2, 3)}, "personal": {"own": torch.ones(4)}}
    found = trees_like(state, stored)
    assert (found.shared["a"].dtype, float(found.shared["a"].sum())) == (torch.float64, 6)
    assert same_leaves(found, state)
    assert not same_leaves(found, State({"a": torch.zeros(2, 2)}, found.personal, {}))
    assert not same_leaves(found, State(found.shared, found.personal, {"more": torch.zeros(1)}))
    for wrong, says in (
        ({**stored, "server": {"x": torch.zeros(1)}}, r"stored server state has leaves \['x'\], the method has \[\]"),
        ({"shared": stored["shared"]}, r"stored personal state has leaves \[\], the method has \['own'\]"),
        ({**stored, "shared": {"a": torch.ones(3, 2)}}, r"stored shared\.a is \(3, 2\), the method has \(2, 3\)"),
    ):
        with pytest.raises(ConfigError, match=says):
            trees_like(state, wrong)
