from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fpl_tune.method import Batch, Local, generator, normalize
from fpl_tune.methods.fedtpg import FedTPG
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


def begin(task: ClientTask, method: FedTPG) -> Local:
    return method.start(task, play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0], EVERYONE)


def test_the_network_is_attention_without_residual_and_a_gated_layer(task: ClientTask) -> None:
    """Written out with PyTorch's own modules, for the client's own classes only."""
    method = FedTPG(n_ctx=3)
    local = begin(task, method)
    features = normalize(task.sentences(["{}"])[0])
    found = method.context(features, local)
    for client in range(4):
        leaf = {name: rows[client] for name, rows in local.params.items()}
        names = features[local.buffers["owned"][client]]
        heads = nn.MultiheadAttention(32, 4, kdim=24, vdim=24, batch_first=True).double()
        with torch.no_grad():
            for short, full in (("q", heads.q_proj_weight), ("k", heads.k_proj_weight), ("v", heads.v_proj_weight)):
                full.copy_(leaf[f"attention.{short}.weight"])
            heads.in_proj_bias.copy_(torch.cat([leaf[f"attention.{n}.bias"] for n in "qkv"]))
            heads.out_proj.weight.copy_(leaf["attention.out.weight"])
            heads.out_proj.bias.copy_(leaf["attention.out.bias"])
        norm = {n: (leaf[f"norm.{n}.weight"], leaf[f"norm.{n}.bias"]) for n in ("queries", "names", "ff")}
        keys = F.layer_norm(names, (24,), *norm["names"])
        h = heads(F.layer_norm(leaf["query"], (32,), *norm["queries"])[None], keys[None], keys[None])[0][0]
        value, gate = F.linear(F.layer_norm(h, (32,), *norm["ff"]), leaf["ff.in.weight"], leaf["ff.in.bias"]).chunk(
            2, -1
        )
        wanted = h + F.linear(value * F.gelu(gate), leaf["ff.out.weight"], leaf["ff.out.bias"])
        torch.testing.assert_close(found[client], wanted.detach())


def test_the_order_of_the_names_does_not_matter_and_their_number_is_free(task: ClientTask) -> None:
    method = FedTPG(n_ctx=2, scope="all")
    local = begin(task, method)
    names = normalize(task.sentences(["{}"])[0])
    all_, turned, fewer = (method.context(n, local) for n in (names, names.flip(0), names[:2]))
    torch.testing.assert_close(turned, all_)
    assert not torch.allclose(fewer, turned)


def test_without_its_last_layers_the_context_is_zero(task: ClientTask) -> None:
    method = FedTPG(n_ctx=2)
    local = begin(task, method)
    silent = {n: leaf * (0 if ".out." in n else 1) for n, leaf in local.params.items()}
    assert float(method.context(task.hand_text, local._replace(params=silent)).abs().max()) == 0


def test_training_knows_a_clients_own_classes_and_evaluation_all(task: ClientTask, batch: Batch) -> None:
    method = FedTPG(n_ctx=2)
    state = method.init(task, generator("own"))
    local, table = method.start(task, state, EVERYONE), task.table("train")
    scores = method.logits(task, local, batch)
    for client in range(4):
        owned = set(table.label[client][table.mask[client]].tolist())
        assert owned == set(local.buffers["owned"][client].nonzero()[:, 0].tolist())
        assert owned == set(scores[client, 0].isfinite().nonzero()[:, 0].tolist())
    assert 1 < local.buffers["owned"].sum() < local.buffers["owned"].numel()
    assert bool(method.logits(task, method.deploy(task, state, EVERYONE), batch).isfinite().all())


def test_one_generator_is_averaged_uniformly(task: ClientTask) -> None:
    alone = [play(FedTPG(n_ctx=2), [task], cohorts=[[c]])[-1][0].shared for c in (0, 3)]
    both = play(FedTPG(n_ctx=2), [task], cohorts=[[0, 3]])[-1][0].shared
    for name, leaf in both.items():
        torch.testing.assert_close(leaf, (alone[0][name] + alone[1][name]) / 2, rtol=0, atol=1e-10)
