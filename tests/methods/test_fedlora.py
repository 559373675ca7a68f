"""FedLoRA: low-rank updates inside the text tower."""

from copy import deepcopy
from dataclasses import replace

import torch
import torch.nn.functional as F

from fpl_tune.clip import Towers
from fpl_tune.method import generator, normalize
from fpl_tune.methods.fedlora import FedLoRA, low_rank_part
from fpl_tune.testing import EVERYONE, play, toy_task

TASK = dict(sizes=(3, 2, 2, 1))

SMALL = FedLoRA(alpha=2.0)


def test_it_starts_as_zero_shot(task, whole):
    """B is zero, so that A has no gradient in the first step and B has one."""
    local = SMALL.start(task, SMALL.init(task, torch.Generator().manual_seed(0)), EVERYONE)
    leaves = [leaf.requires_grad_() for leaf in local.params.values()]
    torch.testing.assert_close(
        SMALL.logits(task, local, whole).detach(), task.scale * normalize(whole.image) @ task.hand_text.T
    )
    a, b = torch.autograd.grad(SMALL.loss(task, local, whole)[0].sum(), leaves)
    assert a.abs().max() == 0
    assert b.abs().flatten(1).max(1).values.min() > 0


def test_logits_are_those_of_a_tower_with_changed_weights(task, whole):
    (state,) = play(SMALL, [task], cohorts=[(0, 1)], epochs=2)[-1]
    found = SMALL.logits(task, SMALL.start(task, state, EVERYONE), whole)
    changed = Towers(deepcopy(task.towers.model), task.towers.tokenizer, name="changed")
    for j, block in enumerate(changed.text.resblocks):
        weight = block.attn.out_proj.weight
        weight += 2.0 * (state.shared["a"][j] @ state.shared["b"][j]).T
    text = normalize(changed.encode_text([f"a photo of a {name}." for name in task.known.names]))
    torch.testing.assert_close(found, task.scale * normalize(whole.image) @ text.T)
    assert not torch.allclose(text, task.hand_text, atol=1e-4)


def test_scaling_by_rank_divides_alpha(task, whole_batch):
    (state,) = play(SMALL, [task], cohorts=[(0, 1)], epochs=1)[-1]
    local, batch = SMALL.start(task, state, EVERYONE), whole_batch(task)
    halved = replace(SMALL, scaling="alpha/rank")  # of rank 2
    torch.testing.assert_close(halved.logits(task, local, batch), replace(SMALL, alpha=1.0).logits(task, local, batch))


def test_the_contrastive_loss_compares_images_with_their_own_sentences(task, whole_batch):
    method, batch = replace(SMALL, objective="contrastive"), whole_batch(task)
    (state,) = play(SMALL, [task], cohorts=[(0, 1)], epochs=1)[-1]
    local = SMALL.start(task, state, EVERYONE)
    loss, _ = method.loss(task, local, batch)
    for client in range(4):
        n = int(batch.mask[client].sum())
        text = method._text(task, local)[client][batch.label[client, :n]]
        scores = task.scale * normalize(batch.image[client, :n]) @ text.T
        wanted = (F.cross_entropy(scores, torch.arange(n)) + F.cross_entropy(scores.T, torch.arange(n))) / 2
        torch.testing.assert_close(loss[client], wanted)


def drawn(task, method, clients):
    """A state and a cohort whose factors are random."""
    state, rng = method.init(task, generator("lora")), generator("factors")
    local = method.start(task, state, clients)
    params = {n: torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype) for n, leaf in local.params.items()}
    return state, local._replace(params=params)


def test_what_is_not_shared_stays_personal_or_at_its_start(task):
    clients = torch.tensor([0, 3])
    state, local = drawn(task, FedLoRA(shared="a"), clients)
    merged = FedLoRA(shared="a").merge(task, state, clients, local)
    assert merged.shared.keys() == {"a"}
    assert torch.equal(merged.personal["b"][clients], local.params["b"])
    state, local = drawn(task, FedLoRA(shared="b"), clients)
    assert local.params.keys() == {"b"}
    assert torch.equal(local.buffers["a"][1], FedLoRA().init(task, generator("lora")).shared["a"])


def test_the_exact_average_is_the_mean_of_the_clients_towers(task, whole):
    method, clients = FedLoRA(average="exact", alpha=0.1), torch.tensor([0, 3])  # 3 images and 1
    state, local = drawn(task, method, clients)
    earlier = 0.1 * torch.randn(3, 32, 32, generator=generator("earlier"), dtype=task.dtype)
    state.shared["lacking"] = earlier
    products = local.params["a"] @ local.params["b"]
    tower = Towers(deepcopy(task.towers.model), task.towers.tokenizer, name="mean")
    for j, block in enumerate(tower.text.resblocks):
        block.attn.out_proj.weight += 0.1 * (earlier + 0.75 * products[0] + 0.25 * products[1])[j].T
    text = normalize(tower.encode_text([f"a photo of a {name}." for name in task.known.names]))
    merged = method.merge(task, state, clients, local)
    found = method.logits(task, method.start(task, merged, EVERYONE), whole)
    torch.testing.assert_close(found, task.scale * normalize(whole.image) @ text.T)
    sent = method.traffic(task, state, EVERYONE)
    assert (sum(sent.up.values()), sum(sent.down.values())) == (3 * 2 * 2 * 32, 3 * 2 * 2 * 32 + 3 * 32 * 32)


def test_robust_pca_finds_the_part_of_low_rank():
    rng = torch.Generator().manual_seed(0)
    low = torch.randn(60, 2, generator=rng).double() @ torch.randn(2, 40, generator=rng).double()
    sparse = 5.0 * (torch.rand(60, 40, generator=rng) < 0.05) * torch.randn(60, 40, generator=rng).sign()
    found = low_rank_part(low + sparse)
    torch.testing.assert_close(found, low, rtol=0, atol=1e-4)
    assert low_rank_part(torch.zeros(2, 6, 3)).abs().max() == 0


def test_robust_pca_ends_where_both_parts_sum_to_the_moves():
    """Each of two matrices ends for itself."""
    rng = torch.Generator().manual_seed(1)
    moves = torch.randn(2, 30, 6, generator=rng).double() * torch.tensor([1.0, 1e-3])[:, None, None]
    both = low_rank_part(moves)
    for alone, found in zip(moves, both, strict=True):
        torch.testing.assert_close(low_rank_part(alone), found, rtol=0, atol=1e-12)
    exact = low_rank_part(moves, tolerance=0.0, iterations=2000)
    size = moves.norm(dim=(1, 2))
    assert ((both - exact).norm(dim=(1, 2)) < 1e-4 * size).all()
    assert ((low_rank_part(moves, tolerance=1e-2) - exact).norm(dim=(1, 2)) > 1e-4 * size).any()


def test_a_robust_average_amplifies_what_clients_do_not_have_in_common(task):
    clients = torch.tensor([0, 3])
    state, local = drawn(task, FedLoRA(), clients)
    once, twice = (FedLoRA(average="robust", sparse=s).merge(task, state, clients, local).shared for s in (1.0, 2.0))
    for name, mean in FedLoRA().merge(task, state, clients, local).shared.items():
        torch.testing.assert_close(once[name], mean)  # β = 1 is the plain mean
        for j in range(task.n_text_blocks):
            moves = (local.params[name] - state.shared[name])[:, j].flatten(1).T
            rest = (moves - low_rank_part(moves)) @ torch.tensor([0.75, 0.25]).double()
            torch.testing.assert_close((twice[name] - mean)[j].flatten(), rest)


def test_logits_are_those_of_an_image_tower_with_changed_weights():
    task = toy_task("pixels", sizes=(3, 2, 2, 1))
    method, everyone = FedLoRA(alpha=2.0, towers="both"), torch.arange(4)
    (state,) = play(method, [task], cohorts=[(0, 1)], epochs=2)[-1]
    batch = task.train.batch(everyone, torch.arange(2).expand(4, -1))
    found = method.logits(task, method.start(task, state, everyone), batch)
    changed = Towers(deepcopy(task.towers.model), task.towers.tokenizer, name="changed")
    towers = {"": changed.model.transformer, "image.": changed.model.visual.transformer}
    for prefix, tower in towers.items():
        for j, block in enumerate(tower.resblocks):
            block.attn.out_proj.weight += 2.0 * (state.shared[f"{prefix}a"][j] @ state.shared[f"{prefix}b"][j]).T
    text = normalize(changed.encode_text([f"a photo of a {name}." for name in task.known.names]))
    image = normalize(changed.encode_images(batch.image))
    torch.testing.assert_close(found, task.scale * image @ text.T)
    assert not torch.allclose(image, normalize(task.towers.encode_images(batch.image)), atol=1e-4)
    assert state.shared.keys() == {"a", "b", "image.a", "image.b"}


def test_the_fair_correction_is_a_ridge_regression_on_the_mean_of_the_first_factors(task):
    """Ordinary least squares on the products stacked over √(λ t) times the identity, block by block."""
    clients, method = torch.tensor([0, 3]), FedLoRA(average="fair", penalty=0.3)
    state, local = drawn(task, method, clients)
    found, plain = (m.merge(task, state, clients, local).shared for m in (method, FedLoRA()))
    assert torch.equal(found["a"], plain["a"])
    products = 0.75 * local.params["a"][0] @ local.params["b"][0] + 0.25 * local.params["a"][1] @ local.params["b"][1]
    for j, (a, b) in enumerate(zip(plain["a"], plain["b"], strict=True)):
        ridge = (0.3 * torch.linalg.svdvals(a).square().mean()).sqrt() * torch.eye(2)
        above, below = torch.cat([a, ridge]), torch.cat([products[j] - a @ b, torch.zeros(2, 32)])
        torch.testing.assert_close(found["b"][j] - b, torch.linalg.lstsq(above, below).solution)
    near, far = (replace(method, penalty=p).merge(task, state, clients, local).shared["b"] for p in (1e-9, 1e9))
    assert (products - plain["a"] @ near).norm() < (products - plain["a"] @ plain["b"]).norm()
    torch.testing.assert_close(far, plain["b"])
