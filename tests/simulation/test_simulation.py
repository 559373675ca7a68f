"""A whole simulation on a corner of the embedded world."""

import gc
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Local
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.batches import plan_round
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.simulation.simulation import Simulation

from .conftest import CORNER

SMALL = (*CORNER, "partition.n_clients=4", "optim.batch=8", "protocol.rounds=3")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _trial(cache: Path, *overrides: str, seeds: tuple[int, ...] = (1, 2)) -> Simulation:
    return Simulation(config.compose_run([*SMALL, *overrides]), seeds, cache_dir=cache)


def _untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records]


@pytest.mark.parametrize(("rounds", "participation"), [(2, 0.75), (3, 0.5), (6, 0.25)])
def test_the_shared_cosine_runs_on_through_all_rounds(cache: Path, rounds: int, participation: float) -> None:
    """Six visits of a client, two local epochs each, are twelve steps of one scheduler: torch's, after a warm-up."""
    options = ("optim.schedule=shared_cosine", "optim.batch=1000", "protocol.epochs=2")
    shape = (f"protocol.rounds={rounds}", f"protocol.participation={participation}")
    trial = _trial(cache, *options, *shape, seeds=(1,))
    found = {}
    for number in range(1, rounds + 1):
        (cohort,) = trial._cohorts(number)
        plan = plan_round(trial.tasks, [cohort], [cohort.clients], 2, trial.run.optim)
        assert plan.factor is not None
        assert cohort.before is not None
        found |= dict(zip(cohort.before.tolist(), plan.factor.tolist(), strict=True))
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=2)
    wanted: list[Any] = [0.0]
    for _ in range(11):
        wanted.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    assert [factor for place in sorted(found) for factor in found[place]] == pytest.approx(wanted, abs=1e-6)


def test_records_of_a_simulation(cache: Path) -> None:
    trial = _trial(cache)
    history = trial.run_all()
    assert trial.done
    assert [[r["round"] for r in records] for records in history] == [[1, 2, 3]] * 2
    first, last = history[0][0], history[0][-1]
    # PromptFL: 16 tokens of the compact text tower's width, four clients, four bytes a number, each way.
    prompt = 16 * trial.tasks[0].text_width * 4
    assert (first["comm/up_bytes"], first["comm/down_bytes"]) == (4 * prompt, 4 * prompt)
    assert last["comm/up_bytes"] == 3 * first["comm/up_bytes"]
    assert [record["train/clients"] for record in history[0]] == [4, 4, 4]
    assert 0 < sum(record["time/train_seconds"] for record in history[0]) < last["time/seconds"]
    assert first["cost/learned"] == last["cost/learned"] == prompt // 4
    assert last["test/images"] == sum(trial.tasks[0].tests["test"][1].sizes), "no image is tested twice"
    assert last["val/images"] == sum(trial.tasks[0].val.sizes)
    assert len(last["clients/val"]) == len(last["clients/test"]) == 4
    assert last["test/acc_mean"] == pytest.approx(sum(last["clients/test"]) / 4, abs=1e-6)
    assert history[0][-1]["val/loss"] != history[1][-1]["val/loss"]


def test_a_trial_is_evaluated_every_few_rounds_and_in_the_last(cache: Path) -> None:
    trial = _trial(cache, "protocol.eval_every=2")
    history = trial.run_all()
    for records in history:
        for prefix in ("test/", "val/", "clients/", "time/test_"):
            assert [any(name.startswith(prefix) for name in r) for r in records] == [False, True, True]
        assert all(math.isfinite(record["train/loss"]) for record in records)
        assert 0 < records[0]["time/seconds"] < records[1]["time/seconds"] < records[2]["time/seconds"]
    assert [{record["seed"] for record in records} for records in history] == [{1}, {2}]
    assert trial.run_all() == [[], []]


@pytest.mark.parametrize("method", ["promptfl", "promptfl_ft"])
def test_a_stage_of_the_same_method_goes_on(cache: Path, method: str) -> None:
    """Schedules in stages: one round and then two more are three."""
    parts, whole = (
        _trial(cache, f"method={method}", f"stages=[{stages}]", seeds=(1,))
        for stages in ("{rounds: 1, epochs: 1}, {rounds: 2, epochs: 1}", "{rounds: 3, epochs: 1}")
    )
    for found, wanted in zip(parts.run_all()[0], whole.run_all()[0], strict=True):
        assert _untimed([found]) == _untimed([wanted])


def test_a_seed_alone_gives_the_same_figures_as_among_others(cache: Path) -> None:
    together = _trial(cache, seeds=(1, 2)).run_all()
    alone = _trial(cache, seeds=(2,)).run_all()
    for found, wanted in zip(together[1], alone[0], strict=True):
        assert found["clients/test"] == wanted["clients/test"]
        assert found["train/loss"] == pytest.approx(wanted["train/loss"], rel=1e-5)


@pytest.mark.parametrize("method", ["promptfl", "feddpt"])
def test_memory_bounds_the_clients_trained_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """What a step keeps grows with the clients as one client's count says, and the budget is divided by it."""
    trial = Simulation(config.compose_run([*SMALL, f"method={method}"]), (1,), cache_dir=cache)
    task, state, spec = trial.tasks[0], trial.states[0], trial.run.optim
    how = trial.stages[0].method
    one = kept_bytes(how, task, state, spec)
    held = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor.untyped_storage())
        return tensor

    def counted(n: int) -> int:
        held.clear()
        clients, index = torch.arange(n), torch.arange(spec.batch).expand(n, -1).clamp(max=task.train.spare)
        with torch.no_grad():
            local = how.start(task, state, clients)
        leaves = {name: leaf.requires_grad_() for name, leaf in local.params.items()}
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            kept = how.loss(
                task, Local(leaves, local.buffers), task.train.batch(clients, index, torch.zeros_like(index))
            )
        del kept
        return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())

    assert counted(3) - counted(1) == pytest.approx(2 * one, rel=0.25)
    monkeypatch.setattr("fpl_tune.simulation.bounds.BLOCK_BYTES", 3 * one)
    assert trial._block() == 3


@pytest.mark.parametrize("method", ["promptfl", "promptfl_ft"])
def test_continues_bit_for_bit_from_a_checkpoint(cache: Path, tmp_path: Path, method: str) -> None:
    straight = _trial(cache, f"method={method}")
    wanted = straight.run_all()
    for stop in (0, straight.rounds - 1):  # the last one is between two stages, where there are two
        paused = _trial(cache, f"method={method}")
        for _ in range(stop):
            paused.step()
        continued = _trial(cache, f"method={method}")
        continued.restore(checkpoint.read(checkpoint.write(tmp_path, paused.snapshot())))
        assert continued.round == stop
        for i, records in enumerate(continued.run_all()):
            assert _untimed(records) == _untimed(wanted[i][stop:])
        for seed, leaves in continued.prompts().items():
            for name, leaf in leaves.items():
                assert torch.equal(leaf, straight.prompts()[seed][name])


def test_a_snapshot_of_something_else_is_refused_and_leaves_the_trial_as_it_was(cache: Path) -> None:
    trial = _trial(cache)
    trial.step()
    snapshot = trial.snapshot()
    for other in (_trial(cache, seeds=(1, 3)), _trial(cache, "optim.lr=0.5")):
        with pytest.raises(ConfigError, match="its own checkpoint, but this is of another one"):
            other.restore(snapshot)
    renamed = {name.replace("prompt", "promt"): leaf for name, leaf in snapshot.tensors.items()}
    fresh = _trial(cache)
    with pytest.raises(ConfigError, match="promt"):
        fresh.restore(Snapshot(renamed, snapshot.meta))
    assert fresh.round == 0


def test_a_trial_leaves_no_tensors_behind(cache: Path) -> None:
    """A worker runs thousands of them. A graph that holds its own outputs is no garbage, but its tensors are seen."""

    def tensors() -> int:
        _trial(cache, seeds=(1,)).step()
        gc.collect()
        return sum(type(found) is torch.Tensor for found in gc.get_objects())

    tensors()
    assert tensors() == tensors()


def test_a_loss_out_of_any_sane_range_has_diverged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed features are not bounded: at such a rate the gate's losses are finite and rise beyond all bounds."""
    chosen = ["method=pfedmoap", "method.experts=2", "method.d_gating=96", "optim.groups.gate=3", "optim.lr=0.001"]
    limit = f"{100 * math.log(20):.0f}"
    where = r"\(seed \d, client \d, round \d\); lower optim.lr .*gate"
    with pytest.raises(Diverged, match=rf"loss is [\d.e+]+, beyond {limit}, 100 times that of guessing {where}"):
        _trial(cache, *chosen, "protocol.rounds=6").run_all()
    monkeypatch.setattr("fpl_tune.simulation.divergence.GUESSES", 1e300)
    losses = [record["train/loss"] for record in _trial(cache, *chosen, "protocol.rounds=3").run_all()[0]]
    assert all(map(math.isfinite, losses))
    assert max(losses) > 1000


def test_zero_shot_needs_one_round_and_sends_nothing(cache: Path) -> None:
    trial = _trial(cache, "method=zeroshot")
    (record,) = trial.run_all()[0]
    assert (record["comm/up_bytes"], record["comm/down_bytes"]) == (0, 0)
    assert "train/loss" not in record
    assert (record["cost/learned"], record["cost/client_flops"], record["cost/client_bytes"]) == (0, 0, 0)


def test_records_of_private_uploads_say_what_they_cost(cache: Path) -> None:
    chosen = ["method=promptfl_dp", "method.calibration=accountant", "method.bound=update", "method.epsilon=4"]
    trial = _trial(cache, *chosen, "method.rounds=${protocol.rounds}", "protocol.eval_every=1", seeds=(1,))
    (history,) = trial.run_all()
    assert trial.stages[0].method.rounds == 3  # pyright: ignore[reportAttributeAccessIssue]
    spent = [record["privacy/epsilon"] for record in history]
    assert 0 < spent[0] < spent[1] < spent[2] == pytest.approx(4.0)


def test_unknown_classes_are_detected_in_the_last_round(cache: Path) -> None:
    """By half of the classes, whose images alone have accuracies."""
    first, *_, last = _trial(cache, "partition.evaluation=open_set", seeds=(1,)).run_all()[0]
    assert "test/auroc" not in first
    assert 0.5 < last["test/auroc"] < 1
    assert 0 < last["test/fpr95"] < 1
    assert "test/base/acc_mean" in last
    assert "test/unknown/acc_mean" not in last
