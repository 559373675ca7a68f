"""What the configurations of a table cost a client, known before they run: second objectives of `bench.py search`.

Bytes and operations follow from a configuration; they are computed once for each size of what clients learn and send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from load_table import Floats, Table
from made_table import study_of, table_of
from search_table import search_of
from torch.utils.flop_counter import FlopCounterMode

from fpl_tune.config import RunSpec
from fpl_tune.core.metrics import METRICS, TOTAL_BYTES, Metric, add_metric
from fpl_tune.execute.plan.traffic import bytes_sent
from fpl_tune.method import Local
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.dummy import dummy_task, towers_to_plan

SIZES = {"pfedmoap": ("method.experts", "method.d_gating"), "fedpgp": ("method.rank",), "promptfl": ("method.n_ctx",)}
"""The searched fields of a study on which costs depend."""


def total_bytes(run: RunSpec) -> float:
    """Bytes that all clients send and receive in a run."""
    return float(sum(bytes_sent(run, 1, _task(run))))


def client_flops(run: RunSpec) -> float:
    """Operations of a client in a step, forward and backward."""
    task, method = _task(run), checked(run.stages[0].method)
    client = task.size.argmax()[None]
    index = torch.arange(run.optim.batch).clamp(max=task.train.spare)[None]
    with torch.no_grad():
        local = method.start(task, method.init(task, torch.Generator().manual_seed(0), None), client)
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.params.items()}
    with FlopCounterMode(display=False) as counter:
        batch = task.train.batch(client, index, torch.zeros_like(index))
        loss: Any = method.loss(task, Local(leaves, local.buffers), batch)
        (loss[0] if isinstance(loss, tuple) else loss).sum().backward()
    return float(counter.get_total_flops())


def _task(run: RunSpec) -> Any:
    task = dummy_task(run, towers_to_plan(run.clip))
    _ = task.hand_text  # encoded once, not in a client's step
    return task


FLOPS = "cost/client_flops"
if FLOPS not in METRICS:
    add_metric(Metric(FLOPS, maximize=False, source="last", sampled=False))
COSTS: dict[str, tuple[str, Callable[[RunSpec], float]]] = {
    "bytes": (TOTAL_BYTES, total_bytes),
    "flops": (FLOPS, client_flops),
}
"""Name -> the metric that a search minimises, and its value for a run."""


CONSTANT = frozenset({("fedpgp", "bytes"), ("traded", "flops")})
"""Tables and costs that are no problem: FedPGP sends its global prompt alone, whatever the rank of the local part, and
the made table has bytes of its own."""


def priced_table(name: str, cost: str) -> Table:
    """A table with a cost as second objective; a made table that has costs of its own keeps those."""
    table, (metric, _) = table_of(name), COSTS[cost]
    return table if table.costs else replace(table, costs={metric: _costs(study_of(name), cost)})


@cache
def _costs(study: str, cost: str) -> Floats:
    """The cost of every configuration of a study's table."""
    (_, search), found = search_of(study), dict[tuple[Any, ...], float]()
    sizes = [tuple(point[field] for field in SIZES[study]) for point in table_of(study).points]
    for size, point in zip(sizes, table_of(study).points, strict=True):
        if size not in found:
            found[size] = COSTS[cost][1](search.at(point))
    return np.array([found[size] for size in sizes])
