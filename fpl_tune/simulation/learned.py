"""What a trial learned and deploys, as named tensors for a file of prompts; `serve` reads such a file."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from fpl_tune.core.files import DEPLOYED
from fpl_tune.method import Local, Method, State
from fpl_tune.simulation.task import ClientTask


def prompts(state: State) -> dict[str, Tensor]:
    """Learned leaves on the CPU, `shared.<name>` [...] and `personal.<name>` [N, ...]."""
    return {
        f"{part}.{name}": leaf.detach().cpu().contiguous()
        for part in ("shared", "personal")
        for name, leaf in getattr(state, part).items()
    }


def deployed(method: Method, task: ClientTask, state: State) -> dict[str, Tensor]:
    """What clients are evaluated with.

    Returns:
        Leaves `deployed.params.<name>` and `deployed.buffers.<name>`, [N, ...], or [1, ...] where all clients have the
        same.
    """
    with torch.no_grad():
        local = method.deploy(task, state, torch.arange(task.n_clients, device=task.device))
    return {
        f"{DEPLOYED}{part}.{name}": leaf[: 1 if bool((leaf == leaf[:1]).all()) else None].cpu().contiguous()
        for part, tree in zip(Local._fields, local, strict=True)
        for name, leaf in tree.items()
    }


def facts(task: ClientTask, transform: object) -> dict[str, str]:
    """The file's metadata, as JSON: classes, template, number of clients, their domains, and the image transform."""
    found = {
        "classes": task.known.names, "template": task.known.template, "clients": task.n_clients,
        "domain": task.domain.tolist(), "n_domains": task.n_domains, "transform": transform,
    }  # fmt: skip
    return {"deployed": json.dumps(found)}
