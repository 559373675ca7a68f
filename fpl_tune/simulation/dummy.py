"""Tasks without images: for checks, estimates of memory and bytes, and the shapes of a method's leaves; and which runs
share such an estimate."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from fpl_tune import config
from fpl_tune.clip import Towers
from fpl_tune.clip.load import outline_towers
from fpl_tune.config import RunSpec
from fpl_tune.config.specs import ClipSpec
from fpl_tune.data import Dataset, outline
from fpl_tune.data.spec import cross_data
from fpl_tune.data.transform import pools_and_views
from fpl_tune.simulation.task import ClientTask, SharedData
from fpl_tune.simulation.worlds import needs_of, patch_of, task_of


def towers_to_plan(clip: ClipSpec) -> Towers:
    """Towers of a specification in float32, with random weights in place of a tag; see `outline_towers`."""
    given = {"quick_gelu": clip.quick_gelu, "preprocess": clip.preprocess}
    return outline_towers(clip.name, clip.pretrained, **given)


_SMALL = 10_000_000
"""Weights of towers up to which their passes take less time than tracing them."""


def outlined(towers: Towers, small: float = _SMALL) -> Towers:
    """A copy of towers in float32 on the CPU, which shares no cache with them. More than `small` weights have sizes
    only, no values: they take neither memory nor time, see `without_values`."""
    model, scale = towers.model, towers.model.logit_scale
    tensors = [*model.parameters(), *model.buffers()]
    if sum(tensor.numel() for tensor in tensors) <= small:
        copied = deepcopy(model).to("cpu", torch.float32)
    else:
        with FakeTensorMode(allow_non_fake_inputs=True):
            empty = {id(tensor): _without_values(tensor) for tensor in tensors}
        copied = deepcopy(model, {**empty, id(scale): nn.Parameter(scale.detach().float().cpu())})
    return Towers(copied, towers.tokenizer, name=towers.name, preprocessing=towers.preprocessing)


def _without_values(tensor: Tensor) -> Tensor:
    kind = torch.float32 if tensor.is_floating_point() else tensor.dtype
    empty = torch.empty(tensor.shape, dtype=kind)
    return nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty


def without_values(towers: Towers) -> AbstractContextManager[Any]:
    """The block in which `outlined` towers are used: if they have no values, what is computed in it has none either."""
    return getattr(towers.text.token_embedding.weight, "fake_mode", nullcontext())


def dummy_task(
    run: RunSpec,
    towers: Towers | None = None,
    dataset: Dataset | None = None,
    listed: Callable[..., Dataset] = outline,
) -> ClientTask:
    """A task of a run with seed 1 whose images are zeros that take no memory.

    Args:
        run: the run.
        towers, dataset: those of the run; None: of the same sizes, without weights and images; see `outline`.
        listed: lists the other data sets that are tested on; `load` if their images must be here.
    """
    towers = towers or towers_to_plan(run.clip)
    dataset = dataset or outline(run.data, run.partition.file)
    (needs, _, last), size = needs_of(run), towers.image_size
    passed = towers.blocks_below(last)
    shape = {
        "pooled": (towers.embed_dim,),
        "patches": (towers.n_patches or 1, towers.embed_dim),
        "pixels": (1 + (towers.n_patches or 0), towers.vision_width) if passed else (3, size, size),
    }[needs]
    dtype = torch.uint8 if needs == "pixels" and not passed else torch.float32
    looks = pools_and_views(dataset, run.data.views, run.stages[0].method.view, patch_of(run))
    train, test, *views = (torch.zeros(1, dtype=dtype).expand(max(1, len(pool)), *shape) for pool, _ in looks)
    views, patched = (views, []) if patch_of(run) is None else (views[:-2], views[-2:])
    others = {name: listed(cross_data(run.data, name)) for name in run.protocol.cross}
    empty = {name: (other, train[:1].expand(len(other.test), *shape)) for name, other in others.items()}
    first, second = views[: run.data.views], views[run.data.views :]
    world = SharedData(towers, dataset, run.clip, train, test, first, second, empty, passed, patched=patched)
    return task_of(world, run, 1)


def cost_key(run: RunSpec, *groups: str) -> str:
    """The cost key of a run, or of some of its groups. Runs with the same key cost the same per round: of the
    hyper-parameters, only sizes matter, and whether a weight is zero."""
    full = config.as_dict(run)
    node = {name: full[name] for name in ("clip", "data", "partition", "protocol", "clients", "method", "stages")}
    node["protocol"] = {k: v for k, v in node["protocol"].items() if k != "rounds"}
    node["data"] = {k: v for k, v in node["data"].items() if k != "root"}
    node["optim"] = {"batch": run.optim.batch, "name": run.optim.name}
    node["method"] = _sizes(node["method"])
    return json.dumps({name: node[name] for name in groups or node}, sort_keys=True)


def _sizes(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _sizes(v) for k, v in node.items()}
    return bool(node) if isinstance(node, float) else node
