"""Learned prompts of a trial as named tensors for a file, which `serve` reads."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from fpl_tune.core.files import DEPLOYED
from fpl_tune.method import Local, Method, State, replicate
from fpl_tune.simulation.evaluate import deploy_blocks
from fpl_tune.simulation.task import ClientTask


def prompts(state: State) -> dict[str, Tensor]:
    """Learned leaves on the CPU, `shared.<name>` [...] and `personal.<name>` [N, ...]."""
    return {
        f"{part}.{name}": leaf.detach().cpu().contiguous()
        for part in ("shared", "personal")
        for name, leaf in getattr(state, part).items()
    }


def deployed(method: Method, task: ClientTask, state: State, *, at_once: int | None = None) -> dict[str, Tensor]:
    """The tensors that clients are evaluated with; large leaves are mapped within `large_leaves_in`.

    Args:
        method: the method.
        task: the task.
        state: the state after the last round.
        at_once: clients that are deployed together; None: all, unless they are many and large.

    Returns:
        Leaves `deployed.params.<name>` and `deployed.buffers.<name>`, [N, ...], or [1, ...] where all clients have the
        same.
    """
    tensors: dict[str, Tensor] = {}
    differ: set[str] = set()
    with torch.no_grad():
        for clients in deploy_blocks(
            method, [task], [state], torch.arange(task.n_clients, device=task.device), at_once
        ):
            local = method.deploy(task, state, clients)
            for group, tree in zip(Local._fields, local, strict=True):
                for name, leaf in tree.items():
                    key, rows = f"{DEPLOYED}{group}.{name}", leaf.cpu()
                    tensors.setdefault(key, rows[:1].clone())
                    if key not in differ and bool((rows != tensors[key]).any()):
                        differ.add(key)
                        tensors[key] = replicate(tensors[key][0], task.n_clients)
                    if key in differ:
                        tensors[key][clients.cpu()] = rows
    return {key: leaf.contiguous() for key, leaf in tensors.items()}


def facts(task: ClientTask, transform: object, weights: str) -> dict[str, str]:
    """The file's metadata, as JSON: classes, template, number of clients, their domains, the image transform, and the
    digest of the towers' weights."""
    tensors = {
        "classes": task.known.names, "template": task.known.template, "clients": task.n_clients,
        "domain": task.domain.tolist(), "n_domains": task.n_domains, "transform": transform, "weights": weights,
    }  # fmt: skip
    return {"deployed": json.dumps(tensors)}
