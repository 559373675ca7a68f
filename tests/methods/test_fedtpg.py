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
