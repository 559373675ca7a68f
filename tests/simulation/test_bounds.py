"""What a trial is said to take of a machine's memory: sizes of the tensors that it really holds."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from fpl_tune.config import compose_run
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.tensors import large_leaves_in, replicate
from fpl_tune.method import State, generator
from fpl_tune.simulation import bounds
from fpl_tune.simulation.batches import Cohort, plan_round
from fpl_tune.simulation.bounds import Memory
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.testing import EVERYONE, toy_task

GB = 10**9


@pytest.mark.parametrize(("method", "dtype"), [("promptfl", "float32"), ("coop", "bfloat16"), ("vpt", "bfloat16")])
def test_an_estimate_is_the_bytes_of_what_a_trial_of_one_seed_holds(method: str, dtype: str) -> None:
    """Toy towers are of float64: what runs in half of float32 is half of what they count."""
    schedule = "protocol.participation=0.75", "stages=[{rounds: 1, epochs: 1}, {rounds: 1, epochs: 2.5}]"
    run = compose_run([f"method={method}", f"clip.dtype={dtype}", "optim.batch=4", *schedule])
    how, halved = run.stages[0].method, 1 if dtype == "float32" else 2
    task = toy_task(how.needs)
    state = how.init(task, generator("begin"))
    found = bounds.estimate(run, task, state)
    assert all(isinstance(getattr(found, field.name), int) for field in fields(found)), "whole bytes"
    model = task.towers.model
    assert found.towers == sum(leaf.nbytes for leaf in [*model.parameters(), *model.buffers()]) // halved
    sets = task.train, task.val, task.tests["test"][1]
    assert found.images == sum(data.images.nbytes for data in sets)
    assert found.states == sum(leaf.nbytes for tree in state for leaf in tree.values())
    assert found.step == pytest.approx(kept_bytes(how, task, state, run.optim) / halved, rel=0.05)
    local = how.start(task, state, EVERYONE[:1])
    assert found.client == sum(3 * leaf.nbytes for leaf in local.params.values())
    clients = EVERYONE[:3]  # with the one that has most images
    plan = plan_round([task], [Cohort(1, 1, clients)], [clients], 3, run.optim)
    assert found.batches == plan.picked.rows.nbytes + plan.picked.index.nbytes
    assert found.clients == 3
    assert bounds.estimate(run, task, state, step=7) == replace(found, step=7)


@pytest.mark.parametrize("method", ["vpt", "full_model"])
def test_a_step_on_pixels_keeps_as_much_more_as_its_batch_has_images(method: str) -> None:
    run = compose_run([f"method={method}"])
    task = toy_task("pixels")
    state = run.method.init(task, generator("begin"))
    runs = [replace(run, optim=replace(run.optim, batch=n)) for n in (1, 2, 5)]
    one, two, five = (bounds.step_bytes(each, task, state) for each in runs)
    assert two > one
    assert five == one + 4 * (two - one)


def test_seeds_side_by_side_hold_states_and_batches_of_their_own() -> None:
    one = Memory(towers=2, images=3, states=5, batches=7, step=11, client=13, clients=4)
    assert one.of_seeds(3) == replace(one, states=15, batches=21, clients=12)
    assert one.of_seeds(1) == one


def test_memory_at_most_is_that_of_the_clients_that_are_trained_at_once() -> None:
    """Each beyond the first holds a step and its leaves; one is trained whatever the room is."""
    memory = Memory(towers=2, images=3, states=5, batches=7, step=11, client=13, clients=4)
    assert memory.least == 2 + 3 + 5 + 7 + 11 + 13
    for room, clients in ((0, 1), (21, 1), (22, 2), (35, 3), (44, 4), (1000, 4)):
        assert memory.peak(room) == memory.least + (clients - 1) * (11 + 13)
    assert bounds.clients_at_once(0, 5) == 5, "a method without steps has clients of no weight"


def test_states_of_all_seeds_must_fit_together() -> None:
    state = State({"gate": torch.empty(250, 1000)}, {"context": torch.empty(10, 50, 1000)}, {})
    bounds.check_state(state, 100, GB)
    with pytest.raises(ConfigError, match=r"needs at least 1\.2 GB .* with 400 seeds; its largest part is context"):
        bounds.check_state(state, 400, GB)
    bounds.check_state(state, 400, None)  # where nobody knows how much there is
    small = State({"prompt": torch.empty(900)}, {}, {})  # 3600 bytes
    bounds.check_state(small, 1, 4000)
    with pytest.raises(ConfigError, match="with 1 seed;"):
        bounds.check_state(small, 1, 3999)


def test_leaves_on_disk_need_no_memory(tmp_path: Path) -> None:
    with large_leaves_in(tmp_path, beyond=10_000):
        state = State({}, {"small": replicate(torch.zeros(100), 10), "large": replicate(torch.zeros(100), 1_000)}, {})
    bounds.check_state(state, 1, 5_000)
    with pytest.raises(ConfigError, match="its largest part is small"):
        bounds.check_state(state, 2, 5_000)


def test_one_client_must_fit_into_what_is_free_of_a_gpu() -> None:
    run = compose_run(["optim.batch=5"])
    memory = Memory(towers=GB, images=0, states=0, batches=0, step=GB, client=0, clients=4)
    bounds.check_gpu(memory, run, memory.least)
    rule = r"One client of promptfl needs at least 2\.0 GB of GPU memory, .* has 2\.0 GB free\. .*\(now 5\)"
    with pytest.raises(ConfigError, match=rule):
        bounds.check_gpu(memory, run, memory.least - 1)
