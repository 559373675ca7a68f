"""What methods are handed: batches, views, prompts remembered by value."""

import itertools
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Adapter, Tree, normalize
from fpl_tune.methods.coop import CoOp
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.task import Classes, ClientData, PromptCache
from fpl_tune.testing import toy_task, toy_towers

PLACES: tuple[Literal["block", "attention"], ...] = ("block", "attention")


def _data(views: int = 0, second: int = 0) -> ClientData:
    images = torch.arange(6.0)[:, None]
    return ClientData(
        images,
        [np.array([4, 2, 0]), np.array([5])],
        [np.array([1, 0, 2]), np.array([1])],
        views=[images + 100 * (v + 1) for v in range(views)],
        second=[images + 1000 * (v + 1) for v in range(second)],
    )


def test_rows_belong_to_their_client_and_padding_points_at_the_spare_row() -> None:
    data = _data()
    assert (data.spare, data.size.tolist()) == (3, [3, 1])
    batch = data.batch(torch.tensor([1, 0]), torch.tensor([[0, 3], [2, 0]]))
    assert batch.image[..., 0].tolist() == [[5.0, 0.0], [0.0, 4.0]]
    assert batch.mask.tolist() == [[True, False], [True, True]]
    assert batch.label.tolist() == [[1, 0], [2, 1]]
    assert not data.table().mask[:, -1].any(), "the spare row is never a real one"
    data.widen(7)
    assert data.spare == 6
    assert data.table().mask.sum(1).tolist() == [3, 1]


def test_training_draws_from_views_and_evaluation_never_does() -> None:
    data, clients, index = _data(views=2, second=1), torch.tensor([0]), torch.tensor([[0, 1, 2]])
    batch = data.batch(clients, index, torch.tensor([[0, 1, 4]]))
    assert batch.image[0, :, 0].tolist() == [104.0, 202.0, 100.0]
    assert batch.view is not None
    assert batch.view[0, :, 0].tolist() == [1004.0, 1002.0, 1000.0]
    plain = data.batch(clients, index)
    assert plain.image[0, :, 0].tolist() == [4.0, 2.0, 0.0]
    assert plain.view is None
    assert data.table().image[0, :3, 0].tolist() == [4.0, 2.0, 0.0]


def test_views_are_drawn_by_seed_client_and_round_alone() -> None:
    def trained(clients: list[int], views: bool) -> Tensor:
        task = toy_task()
        if views:
            task.train.views = tuple(task.train.images + 0.5 * v for v in range(1, 4))
        method = CoOp(n_ctx=2)
        state = method.init(task, torch.Generator().manual_seed(0))
        spec = OptimSpec(lr=0.1, batch=4)
        after, _ = run_round(method, [task], [state], [Cohort(1, 1, torch.tensor(clients))], epochs=2, spec=spec)
        return after[0].personal["prompt"][1]

    torch.testing.assert_close(trained([1], True), trained([0, 1, 3], True), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(trained([1], True), trained([1], False))


class _Counting:
    """Towers that count the prompts they encode."""

    def __init__(self) -> None:
        self._towers, self.rows = toy_towers(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._towers, name)

    def encode_prompts(self, context: Tensor, sentences: Any, **more: Any) -> Tensor:
        self.rows += context.shape[:-2].numel() if not more.get("per_class") else context.shape[:-3].numel()
        return self._towers.encode_prompts(context, sentences, **more)


def test_a_prompt_without_gradient_is_encoded_once() -> None:
    towers = _Counting()
    classes = Classes(towers, ("star", "heart"))  # type: ignore[arg-type]
    prompts = torch.randn(3, 2, 4, towers.text_width, dtype=torch.float64)
    prompts[2, 1] = prompts[0, 0]
    first = classes.encode(prompts)
    assert towers.rows == 5, "six prompts, two of them equal"
    again = classes.encode(prompts.flip(0))
    assert towers.rows == 5
    torch.testing.assert_close(again, first.flip(0), rtol=0, atol=0)
    sentences = towers.sentences(("star", "heart"), 4)
    torch.testing.assert_close(
        first, normalize(towers._towers.encode_prompts(prompts, sentences)), rtol=1e-9, atol=1e-12
    )


def test_features_that_were_not_asked_for_longest_are_forgotten_first() -> None:
    """Where they take more than they may; the last one stays whatever it takes."""
    memory, row = PromptCache(limit_bytes=24), torch.zeros(1, dtype=torch.float64)
    for key in "abc":
        memory.put(key, row)
    assert memory.get("a") is row
    memory.put("d", row)
    assert [key for key in "abcd" if memory.get(key) is not None] == ["a", "c", "d"]
    memory.put("e", torch.zeros(9, dtype=torch.float64))
    assert [key for key in "abcde" if memory.get(key) is not None] == ["e"]
    memory.put("f", row)
    assert [key for key in "ef" if memory.get(key) is not None] == ["f"]


def test_deep_and_class_specific_prompts_are_other_prompts() -> None:
    towers = toy_towers()
    classes = Classes(towers, ("star", "heart"))
    context = torch.randn(2, 4, towers.text_width, dtype=torch.float64)
    deep = torch.randn(1, 4, towers.text_width, dtype=torch.float64)
    shared, specific = classes.encode(context), classes.encode(context, per_class=True)
    assert shared.shape == (2, 2, towers.embed_dim)
    assert specific.shape == (2, towers.embed_dim)
    assert not torch.allclose(classes.encode(context, deep=deep.expand(2, 1, -1, -1)), shared)


def _branch(leaf: Tree, x: Tensor) -> Tensor:
    return x @ leaf["a"]


def _other(leaf: Tree, x: Tensor) -> Tensor:
    return (x @ leaf["a"]).tanh()


def test_frozen_words_behind_the_context_are_those_of_the_whole_sentence() -> None:
    """Two of the four words "a photo of a" as context and the rest as tail: the sentence that the words write."""
    towers = toy_towers()
    classes = Classes(towers, ("star", "red heart"))
    whole, part = towers.words("a photo of a"), towers.words("a photo")
    torch.testing.assert_close(classes.encode(part, tail="of a"), classes.encode(whole))
    torch.testing.assert_close(classes.encode(part, tail="of a"), normalize(classes.templates(["a photo of a {}."])[0]))
    slots = towers.sentences(("star",), 2, position="middle", tail="of a").slots[0]
    wanted = [-1, -2, *towers.tokenizer.encode("star"), *towers.tokenizer.encode("of a")]
    assert list(slots[1:-2]) == wanted, "the name stands in the middle of context and tail"


def test_features_are_remembered_by_context_tail_and_branch() -> None:
    """A second call in any other order finds each under its own key."""
    towers = _Counting()
    classes = Classes(towers, ("star", "heart"))  # type: ignore[arg-type]
    context = towers.words("a photo")
    leaf = {"a": torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}
    ways: list[dict[str, Any]] = [
        {},
        {"tail": "of a"},
        *({"adapter": Adapter(branch, leaf, place=place)} for branch in (_branch, _other) for place in PLACES),
        {"adapter": Adapter(_branch, {"a": leaf["a"][:, :2]}, first=1)},
        {"adapter": Adapter(_branch, {"a": 2 * leaf["a"]})},
    ]
    first = [classes.encode(context, **way) for way in ways]
    encoded = towers.rows
    for way, found in reversed(list(zip(ways, first, strict=True))):
        torch.testing.assert_close(classes.encode(context, **way), found, rtol=0, atol=0)
    assert towers.rows == encoded
    for one, other in itertools.combinations(first, 2):
        assert one.shape != other.shape or not torch.allclose(one, other)


def test_a_branch_with_gradient_is_encoded_every_time() -> None:
    towers = toy_towers()
    classes = Classes(towers, ("star", "heart"))
    adapter = Adapter(_branch, {"a": torch.randn(2, 3, 32, 32, dtype=torch.float64, requires_grad=True)})
    for features in (classes.encode(towers.words("a"), adapter=adapter), classes.templates(["{}"], adapter=adapter)):
        (gradient,) = torch.autograd.grad(features[..., 0].sum(), adapter.leaf["a"])
        assert gradient.abs().sum() > 0


def test_templates_are_whole_sentences_and_may_be_bare_names() -> None:
    towers = toy_towers()
    task = toy_task()
    classes = Classes(towers, ("sea_lion", "heart"))
    found = classes.templates(["{}", "{} texture."])
    assert found.shape == (2, 2, towers.embed_dim)
    torch.testing.assert_close(found[0], towers.encode_text(["sea lion", "heart"]))
    torch.testing.assert_close(found[1], towers.encode_text(["sea lion texture.", "heart texture."]))
    torch.testing.assert_close(normalize(task.sentences([task.template])[0]), task.hand_text)
    still = Adapter(_branch, {"a": torch.zeros(3, 1, 32, 32, dtype=torch.float64)})
    branched = classes.templates(["{}", "{} texture."], adapter=still)
    torch.testing.assert_close(branched, found.expand(3, -1, -1, -1))


def test_a_task_has_the_sizes_of_its_tensors() -> None:
    task, resnet = toy_task("pixels"), toy_task("patches", kind="resnet")
    table = task.table("train")
    assert (len(table.image), task.hand_text.shape) == (task.n_clients, (task.n_classes, task.embed_dim))
    assert table.mask.sum(1).tolist() == task.size.tolist()
    assert table.image.dtype == task.hand_text.dtype == task.words("a").dtype == task.dtype
    assert task.words("a").shape == (1, task.text_width)
    assert task.embed(table.image[0, :1]).shape == (1, task.n_patches, task.vision_width)
    tower: Any = task.visual()
    assert len(tower.transformer.resblocks) == task.n_vision_blocks
    assert len(task.towers.text.blocks) == task.n_text_blocks
    assert (task.template, task.scale, task.device) == ("a photo of a {}.", task.towers.scale, table.image.device)
    assert resnet.table("train").image.shape[2:] == (resnet.n_patches, resnet.embed_dim)
    assert (resnet.vision_width, resnet.n_vision_blocks) == (None, None), "of visual prompts"
    assert task.same_classes
    others = Classes(task.towers, ("cat", "bird")), task.val
    assert not replace(task, tests={**task.tests, "novel": others}).same_classes


def test_counts_are_training_images_by_client_and_class() -> None:
    task = toy_task(sizes=(9, 0, 7, 3))
    table = task.table("train")
    for found, label, mask in zip(task.counts, table.label, table.mask, strict=True):
        assert torch.equal(found, label[mask].bincount(minlength=task.n_classes))
    assert task.without(torch.tensor([True, False, False, False])).counts.sum(1).tolist() == [0, 0, 7, 3]


def test_a_task_in_a_round_knows_its_place_and_draws_by_purpose() -> None:
    task = toy_task()
    assert (task.round, task.rounds) == (0, 0)
    here = task.during(3, 10, key=7)
    assert (here.round, here.rounds, task.round) == (3, 10, 0)
    one, again, other = (torch.rand(4, generator=here.rng(purpose)) for purpose in ("noise", "noise", "groups"))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, torch.rand(4, generator=task.during(4, 10, key=8).rng("noise")))
