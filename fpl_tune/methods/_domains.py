"""Functions of both forms of FedAPT: frozen keys, the reader of domains, and the keys that a deployed client uses."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Sizes, State, Task, Tree

Keys = Literal["uniform", "normal", "binary", "orthogonal", "none"]


def check_keys(sizes: Sizes, kind: Keys, n_ctx: int, unlock: str | int) -> None:
    """Raises `ConfigError` if there are too many keys to be orthogonal, or no key with the number `unlock`."""
    if isinstance(unlock, int):
        rule = f"must name one of the {sizes.n_domains} domains, from 0"
        fl.require(0 <= unlock < sizes.n_domains, "unlock", rule, unlock)
    width = n_ctx * sizes.text_width
    fits = kind != "orthogonal" or sizes.n_domains <= width
    fl.require(fits, "keys", f"can be orthogonal for at most n_ctx * d = {width} domains", sizes.n_domains)


def keyed_state(task: Task, kind: Keys, n_ctx: int, rng: Generator, *lead: int) -> State:
    """A meta prompt [*lead, l, d], a frozen key for each domain and, unless `kind` is `none`, a reader of domains."""
    shared = {"prompt": fl.new_context(task, n_ctx, rng, *lead)}
    if kind != "none":  # Q [n, D] with PyTorch's initialisation of a layer without bias, U(±1/√D)
        reader = (2 * torch.rand(task.n_domains, task.embed_dim, generator=rng) - 1) / task.embed_dim**0.5
        shared["reader"] = reader.to(task.device, task.dtype)
    return State(shared, personal={}, server={"keys": draw_keys(task, kind, n_ctx, rng)})


def draw_keys(task: Task, kind: Keys, n_ctx: int, rng: Generator) -> Tensor:
    """Draws [n, l, d], one frozen key per domain."""
    shape = (task.n_domains, n_ctx, task.text_width)
    if kind == "uniform":
        keys = torch.rand(shape, generator=rng)
    elif kind == "binary":
        keys = torch.randint(2, shape, generator=rng).float()
    else:
        keys = torch.randn(shape, generator=rng)
    if kind == "orthogonal":
        columns = torch.linalg.qr(keys.flatten(1).T.double()).Q  # [l d, n], orthonormal
        keys = (columns.T * math.sqrt(len(columns))).reshape(shape)
    return (keys if kind != "none" else torch.zeros(shape)).to(task.device, task.dtype)


def training_buffers(task: Task, state: State, clients: Tensor) -> Tree:
    """Buffers of clients in training: the key [C, l, d] and the number [C] of the client's domain."""
    domain = task.domain[clients]
    return {"key": state.server["keys"][domain], "domain": domain}


def unlocked(unlock: str | int, task: Task, state: State, clients: Tensor) -> Tree:
    """Buffers of deployed clients: all keys, if they are chosen by image, or the one key that a client always uses."""
    keys = state.server["keys"]
    if unlock == "none" or "reader" not in state.shared:
        return {"key": torch.zeros_like(keys[task.domain[clients]])}
    if unlock == "image":
        return {"keys": fl.replicate(keys, len(clients))}
    return {"key": keys[task.domain[clients] if unlock == "own" else torch.full_like(clients, int(unlock))]}


def domain_loss(reader: Tensor, batch: Batch, domain: Tensor) -> Tensor:
    """[C] cross-entropy (Eq. 11) of Q f with the client's domain [C], for the reader Q [C, n, D] and raw features f."""
    read = batch.image @ reader.mT
    target = domain[:, None].expand(batch.label.shape)
    values = F.cross_entropy(read.flatten(0, 1), target.flatten(), reduction="none")
    return fl.mean_over(values.view_as(batch.label), batch.mask)


def reader_metrics(reader: Tensor, task: Task) -> dict[str, float]:
    """Share of the validation images whose domain the reader [n, D] predicts, as mean over clients and by domain."""
    seen = task.table("val")
    right = fl.mean_over((seen.image @ reader.mT).argmax(-1) == task.domain[:, None], seen.mask)
    has_images = seen.mask.any(1)
    figures = {f"reader/domain{i + 1}/acc_mean": has_images & (task.domain == i) for i in range(task.n_domains)}
    figures["reader/acc_mean"] = has_images
    return {name: right[clients].mean().item() for name, clients in figures.items() if clients.any()}


def domain_weights(reader: Tensor, image: Tensor, temperature: float) -> Tensor:
    """[C, B, n] softmax over domains of the standardised scores of raw features [C, B, D] (official code)."""
    read = image @ reader.mT
    if read.shape[-1] == 1:
        return torch.ones_like(read)
    centred = read - read.mean(-1, keepdim=True)
    deviation = read.std(-1, keepdim=True).clamp(min=1e-12)  # unbiased
    return (centred / deviation / temperature).softmax(-1)
