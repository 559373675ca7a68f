"""On the simulated accelerator, trials end where they end on the CPU and wait for it a few times a round."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated_device import counting

from fpl_tune import config
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.device import OutOfMemory
from fpl_tune.method import Method, State, generator
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation import engine
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.testing import play, toy_task
from fpl_tune.wrappers.finetuned import FineTuned

SMALL = (
    "method=coop",
    "method.n_ctx=2",
    "data.domains=[photo]",
    "data.train_per_class=2",
    "data.test_per_class=1",
    "partition.n_clients=2",
    "protocol.rounds=1",
    "protocol.epochs=1",
    "optim.batch=4",
)


def _played(method: Method, device: torch.device, spec: OptimSpec, **more: Any) -> State:
    """Two rounds of one seed, then two rounds of fine-tuning of what they left."""
    task = toy_task(method.needs, device=device, **more)
    (state,) = play(method, [task], cohorts=[(0, 2), (2, 1)], spec=spec)[-1]
    tuned = FineTuned(method)
    began = tuned.init(task, generator("ft"), state)
    (after,) = play(tuned, [task], states=[began], cohorts=[(0, 1)], first=3, spec=spec, epochs=1)[-1]
    return after


@pytest.mark.parametrize(
    ("method", "spec", "more", "tolerance"),
    [
        (PFedMoAP(n_ctx=2, experts=3, heads=3, d_gating=12), {"name": "adamw"}, {"views": 2}, 1e-8),
        (PromptFL(n_ctx=2), {"schedule": "cosine"}, {"kind": "resnet"}, 1e-8),
        (PromptFL(n_ctx=2), {}, {"dtype": torch.float32, "tower": torch.bfloat16}, 2e-2),
        (PromptFL(n_ctx=2), {}, {"dtype": torch.float32, "tower": torch.float16}, 2e-3),
    ],
    ids=["views and AdamW", "ResNet and cosine", "bfloat16", "float16"],
)
def test_rounds_and_stages_end_where_they_end_on_the_cpu(sim, method, spec, more, tolerance) -> None:
    optimiser = OptimSpec(**{"lr": 0.02, "batch": 4, **spec})
    found, wanted = (_played(method, where, optimiser, **more) for where in (sim, torch.device("cpu")))
    for tree, other in zip(found, wanted, strict=True):
        for name, leaf in other.items():
            torch.testing.assert_close(tree[name].cpu(), leaf, rtol=tolerance, atol=tolerance)


def _trial(cache: Path, device: torch.device, *overrides: str, **more: Any) -> Simulation:
    run = config.compose_run([*SMALL, *overrides])
    on_cpu = Simulation(run, (1,), cache_dir=cache)  # encodes images: its threads have no simulated device
    return on_cpu if device.type == "cpu" else Simulation(run, (1,), cache_dir=cache, device=str(device), **more)


def test_a_round_waits_a_few_times_whatever_its_number_of_steps(sim: torch.device, feature_cache: Path) -> None:
    """With everything around the training: evaluation, the check of what was learned, records."""
    waits = []
    for epochs in (1, 3):
        trial = _trial(feature_cache, sim, f"protocol.epochs={epochs}", "protocol.rounds=2")
        trial.step()
        with counting() as seen:
            trial.step()
        waits.append(seen.waits)
    assert waits[0] == waits[1] <= 15, waits


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=promptfl", "partition.evaluation=open_set"),
        ("method=fedapt", "partition.evaluation=domains", "protocol.validation=everyone", "protocol.sampling=domain"),
        ("method=fedper", "method.n_own=1", "protocol.unseen=0.5", "protocol.global_model=true"),
        ("method=pfedmoap", "method.d_gating=96", "method.experts=2", "protocol.own_classes=true"),
    ],
    ids=lambda overrides: overrides[0].removeprefix("method="),
)
def test_figures_are_those_of_the_cpu(sim: torch.device, feature_cache: Path, overrides: tuple[str, ...]) -> None:
    """Of all test sets, diagnoses and losses that a protocol may ask for, and of what is exported."""
    on_cpu, found = (_trial(feature_cache, where, *overrides) for where in (torch.device("cpu"), sim))
    for record, wanted in zip(found.run_all()[0], on_cpu.run_all()[0], strict=True):
        assert record.keys() == wanted.keys()
        for name, value in wanted.items():
            if not name.startswith("time/"):
                assert record[name] == pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True), name
    (leaves, facts), (known, same) = found.deployed()[1], on_cpu.deployed()[1]
    assert facts == same
    for name, leaf in known.items():
        torch.testing.assert_close(leaves[name], leaf, rtol=1e-4, atol=1e-5)


def test_a_round_without_memory_begins_again_with_half_the_clients(sim, feature_cache, monkeypatch) -> None:
    tried: list[int] = []
    fits = 1

    def run_round(*args: Any, block: int, **more: Any) -> Any:
        tried.append(block)
        if block > fits:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return engine.run_round(*args, block=block, **more)

    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(tried)))
    monkeypatch.setattr("fpl_tune.simulation.simulation.run_round", run_round)
    trial = _trial(feature_cache, sim, "protocol.rounds=2")
    trial.run_all()
    assert tried[0] >= 2
    assert tried[1:] == [1, 1], "two clients, then one; the second round knows"
    assert emptied == [1], "what the larger block took is given back"
    fits = 0
    with pytest.raises(OutOfMemory, match=r"one step of one client does not fit.*lower optim.batch \(now 4\)"):
        _trial(feature_cache, sim).run_all()


def test_a_trial_whose_steps_cannot_be_recorded_says_so_once(sim, feature_cache, monkeypatch) -> None:
    """Over its rounds and stages; its figures are those of eager steps."""
    stages = ["stages=[{method:{name:promptfl,n_ctx:2},rounds:2,epochs:1},{method:null,rounds:1,epochs:1}]"]
    asked: list[object] = []

    def broken(*_: Any) -> Any:
        asked.append(None)
        raise RuntimeError("capture failed")

    monkeypatch.setattr("fpl_tune.simulation.graphs.capture", broken)
    monkeypatch.setattr(Graphs, "suit", lambda self, *_: not self.refused)
    told: list[str] = []
    found = _trial(feature_cache, sim, *stages, warn=told.append).run_all()
    assert told == ["Steps run eagerly, as one cannot be recorded as a CUDA graph: capture failed"]
    assert len(asked) == 1
    eager = _trial(feature_cache, sim, *stages, graphs=False).run_all()
    assert [record["train/loss"] for record in found[0]] == [record["train/loss"] for record in eager[0]]


def test_all_seeds_have_the_domains_of_the_data_set(feature_cache: Path) -> None:
    """A domain counts where no client has most of its images from it, but not where it is held out."""
    trial = _trial(feature_cache, torch.device("cpu"), "data.domains=[photo,clipart,sketch]")
    world, run = trial.world, trial.run
    assert trial.tasks[0].n_domains == 3
    only = replace(world.dataset.train, domain=np.zeros_like(world.dataset.train.domain))
    world.dataset = replace(world.dataset, train=only)
    assert world.task(run.data, run.partition, 1).n_domains == 3
    held_out = replace(run.partition, held_out=["sketch"])
    assert world.task(run.data, held_out, 1).n_domains == 2
