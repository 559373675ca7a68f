"""What is known of a run before it starts: as counted by PyTorch in a real step, and as the records say afterwards."""

import math
from collections import Counter
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from method_cases import METHODS, node
from safetensors.torch import load, save
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fpl_tune import methods
from fpl_tune.clip import Towers
from fpl_tune.clip.attention import as_products
from fpl_tune.config import RunSpec, compose_run
from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Local, Method, fresh_leaves, generator
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.simulation.batches import Cohort, plan_round
from fpl_tune.simulation.costs import ClientFlops, batches, client_flops, known_costs
from fpl_tune.simulation.dummy import dummy_task, outlined, without_values
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import Classes, ClientData, ClientTask
from fpl_tune.testing import toy_task, toy_towers

from .conftest import CORNER

SMALL = (*CORNER, "partition.n_clients=4", "optim.batch=8", "protocol.rounds=3")


def step_of(method: Method, task: ClientTask, local: Local, images: int) -> int:
    """Operations of a step of one client, after another one has filled the cache of prompts, by kernels that PyTorch's
    counter knows."""
    clients, index = torch.zeros(1, dtype=torch.int64), torch.arange(images)[None]
    operations = 0
    torch.backends.mha.set_fastpath_enabled(False)
    with sdpa_kernel(SDPBackend.MATH), as_products():
        for _ in range(2):
            leaves = fresh_leaves(local.params)
            with FlopCounterMode(display=False) as counter:
                batch = task.train.batch(clients, index, torch.zeros_like(index))
                loss, _ = method.loss(task, Local(leaves, local.buffers), batch)
                torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
            operations = counter.get_total_flops()
    torch.backends.mha.set_fastpath_enabled(True)
    return operations


@pytest.mark.parametrize("name", sorted({name for name, _ in METHODS}))
def test_operations_are_those_of_a_real_step_and_no_more_than_on_the_plain_path(name: str) -> None:
    """A step of seven images by those of one to three; the toy's first client has nine."""
    for how in [how for other, how in METHODS if other == name]:
        method = methods.build(node(name, how))
        task = toy_task(method.needs)
        state = method.init(task, generator("init"))
        found = client_flops(method, task, state, [1, 2, 3])
        with torch.no_grad():
            local = method.start(task, state, torch.zeros(1, dtype=torch.int64))
        assert found.learned == sum(leaf.numel() for leaf in local.params.values())
        if not local.params:
            assert found.of_step(7) == 0
            continue
        assert found.of_step(7) == step_of(method, task, local, 7), how
        plain = client_flops(method, replace(task, known=replace(task.known, plain=True)), state, [2])
        assert 0 < found.of_step(2) <= plain.of_step(2), how
        assert found.once <= plain.once, how


def on(towers: Towers, needs: str) -> ClientTask:
    """A toy task on other towers."""

    def data(held: ClientData) -> ClientData:
        moved = copy(held)
        moved.towers, moved.dtype = towers, towers.dtype
        return moved

    task = toy_task(needs)  # type: ignore[arg-type]
    classes = Classes(towers, task.known.names, memory=None)
    tests = {name: (classes, data(held)) for name, (_, held) in task.tests.items()}
    return replace(task, towers=towers, known=classes, train=data(task.train), val=data(task.val), tests=tests)


@pytest.fixture(scope="module")
def outlines() -> list[Towers]:
    """Toy towers with values, and without."""
    return [outlined(toy_towers(), small) for small in (math.inf, 0)]


def of_outlines(outlines: list[Towers], method: Method) -> list[tuple[ClientFlops, int]]:
    found = []
    for towers in outlines:
        task = on(towers, method.needs)
        with without_values(towers):
            state = method.init(task, generator("init"))
            kept = kept_bytes(method, task, state, OptimSpec(batch=4))
            found.append((client_flops(method, task, state, [4]), kept))
    return found


def test_towers_without_values_give_the_same_operations_and_bytes(outlines: list[Towers]) -> None:
    for name in ("promptfl", "pfedmoap", "vpt", "full_model"):
        one, other = of_outlines(outlines, methods.build(node(name, dict(METHODS)[name])))
        assert one == other, name


@pytest.mark.system
@pytest.mark.parametrize("name", sorted({name for name, _ in METHODS}))
def test_every_method_reads_sizes_alone(outlines: list[Towers], name: str) -> None:
    for how in [how for other, how in METHODS if other == name]:
        one, other = of_outlines(outlines, methods.build(node(name, how)))
        assert one == other, how


def serialised(run: RunSpec) -> int:
    """Bytes of the tensors of an update: what a client learns of what is shared."""
    task, method = dummy_task(run), run.method
    with torch.no_grad():
        state = method.init(task, generator("init"))
        local = method.start(task, state, torch.zeros(1, dtype=torch.int64))
    update = {name: leaf[0].clone() for name, leaf in local.params.items() if name in state.shared}
    return sum(leaf.nbytes for leaf in load(save(update)).values())


AVERAGED = {
    name: kind
    for name, kind in methods.catalogue().items()
    if (kind.merge, kind.traffic) == (FederatedAveraging.merge, FederatedAveraging.traffic)
}


@pytest.mark.parametrize("name", sorted(AVERAGED))
def test_bytes_are_those_of_a_serialised_update_each_way(name: str) -> None:
    shallow = ["method.depth=2"] if hasattr(AVERAGED[name], "depth") else []  # the compact towers have four blocks
    run = compose_run([*SMALL, f"method={name}", *shallow])
    known = known_costs(run)
    assert known["cost/client_bytes"] == 2 * serialised(run)
    assert known["cost/sent"] == serialised(run) / 4


@pytest.mark.parametrize("method", ["promptfl", "pfedmoap"])
def test_records_say_what_was_known_before_whatever_the_seed_and_threads(tmp_path: Path, method: str) -> None:
    """Another root of the embedded data, which has none, so that nothing that is computed once is read again."""
    how = [*SMALL, f"method={method}", "protocol.participation=0.5", "protocol.epochs=0.4"]
    how += ["method.experts=3"] if method == "pfedmoap" else []
    known = known_costs(compose_run([*how, f"data.root={tmp_path}"]))
    run, costs = compose_run(how), {name: value for name, value in known.items() if name.startswith("cost/")}
    for seed, threads in ((1, 1), (2, 2)):
        records = Simulation(run, [seed], cache_dir=tmp_path, threads=threads).run_all()[0]
        for record in records:
            assert {name: value for name, value in record.items() if name.startswith("cost/")} == costs
        if seed == 1:
            sent = {name: records[-1][name] for name in ("comm/up_bytes", "comm/down_bytes")}
            total = sum(sent.values())
            assert {name: known[name] for name in (*sent, "comm/total_bytes")} == {**sent, "comm/total_bytes": total}
            assert known["cost/client_bytes"] == total / sum(record["train/clients"] for record in records)


@pytest.mark.parametrize("epochs", [1, 2, 0.3, 1.5])
def test_steps_are_those_of_the_plan_of_a_round(epochs: float) -> None:
    task, clients = toy_task(), torch.arange(4)
    for number in (1, 2, 3):
        plan = plan_round([task], [Cohort(1, number, clients)], [clients], epochs, OptimSpec(batch=4))
        sizes = Counter(plan.picked.mask.sum(-1).flatten().tolist())
        del sizes[0]
        assert batches(task.train.sizes, epochs, 4, number) == sizes


def test_stages_count_by_their_rounds() -> None:
    def flops(*more: str) -> float:
        return known_costs(compose_run([*SMALL, "method=promptfl", *more]))["cost/client_flops"]

    one, three = (flops(f"protocol.epochs={epochs}") for epochs in (1, 3))
    assert three == 3 * one
    assert flops("stages=[{rounds: 1, epochs: 1}, {rounds: 3, epochs: 3}]") == (one + 3 * three) / 4


def test_weights_cost_nothing_unless_they_are_zero() -> None:
    def costs(mu: float) -> dict[str, float]:
        return known_costs(compose_run([*SMALL, "method=fedpgp", f"method.mu={mu}"]))

    assert costs(0.5) == costs(2.0)
    assert costs(0)["cost/client_flops"] < costs(2.0)["cost/client_flops"]


def test_memory_grows_with_the_batch() -> None:
    few, many = (known_costs(compose_run([*SMALL, "method=vpt", f"optim.batch={n}"])) for n in (2, 8))
    assert few["cost/client_memory"] < many["cost/client_memory"]
    assert few["cost/learned"] == many["cost/learned"]
