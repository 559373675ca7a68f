"""Operations of a client, compared with the plain path."""

from __future__ import annotations

from dataclasses import replace

from fpl_tune import methods
from fpl_tune.bench.measure import BenchRow
from fpl_tune.config import RunSpec
from fpl_tune.simulation.costs import client_flops
from fpl_tune.simulation.dummy import dummy_task, outlined, towers_to_plan, without_values
from fpl_tune.simulation.worlds import initial_state


def bench_operations(run: RunSpec) -> list[BenchRow]:
    """Counts a step of one client with a full batch, and what it encodes once a round; nothing is timed.

    The plain path encodes whole sentences by open_clip's own modules.
    """
    task, batch = dummy_task(run, outlined(towers_to_plan(run.clip))), run.optim.batch
    method = run.stages[0].method
    with without_values(task.towers):
        state = initial_state(method, task, 1)
        plain_task = replace(task, known=replace(task.known, plain=True))
        packed, plain = (client_flops(method, each, state, [batch]) for each in (task, plain_task))
    step, reference = packed.of_step(batch), plain.of_step(batch)
    return [
        {
            "bench": f"operations {methods.name_of(run.method)} {run.clip.name}",
            "step": step,
            "plain_step": reference,
            "ratio": reference / max(1, step),
            "once": packed.once,
            "plain_once": plain.once,
            "note": f"one client, a batch of {batch}, {task.n_classes} classes; forward and backward",
        }
    ]
