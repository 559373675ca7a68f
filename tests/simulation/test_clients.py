"""Clients that drop out, are slow, or are malicious: who they are, and what a simulation records of them."""

import json
import math
from pathlib import Path

import pytest
import torch

from fpl_tune.config import as_dict, compose_run, identity, to_run
from fpl_tune.core.errors import ConfigError
from fpl_tune.simulation.costs import known_costs
from fpl_tune.simulation.engine import plan_round
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.worlds import cohort_of
from fpl_tune.testing import assert_same

from .conftest import CORNER

SMALL = (*CORNER, "partition.name=iid", "partition.n_clients=8", "protocol.rounds=3", "method.n_ctx=2")


def simulate(feature_cache: Path, *overrides: str, seeds: tuple[int, ...] = (1,)) -> Simulation:
    return Simulation(compose_run([*SMALL, *overrides]), seeds, cache_dir=feature_cache)


def test_usual_clients_are_no_part_of_a_cell() -> None:
    usual = compose_run([])
    for without_effect in ("clients.slow.steps=0.5", "clients.malicious.attack=alie", "clients=benign"):
        assert identity(compose_run([without_effect])) == identity(usual)
    for other in ("clients=dropout", "clients=slow", "clients=alie"):
        run = compose_run([other])
        assert identity(run) != identity(usual)
        assert to_run(json.loads(json.dumps(as_dict(run)))) == run
    flips = [compose_run(["clients=sign_flip", f"clients.malicious.backdoor.target={target}"]) for target in (0, 1)]
    assert identity(flips[0]) == identity(flips[1]), "there is no backdoor in them"


def test_who_drops_out_is_drawn_by_seed_client_and_round(feature_cache: Path) -> None:
    trials = [simulate(feature_cache, f"clients.drop={drop}") for drop in (0.3, 0.6)]
    gone = [0, 0]
    for number in range(1, 301):
        few, many = (cohort_of(trial.run, trial.tasks[0], 1, number, 1) for trial in trials)
        for i, cohort in enumerate((few, many)):
            assert cohort.absent is not None
            assert sorted([*cohort.clients.tolist(), *cohort.absent.tolist()]) == list(range(8))
            gone[i] += len(cohort.absent)
        assert set(few.absent.tolist()) <= set(many.absent.tolist())  # pyright: ignore[reportOptionalMemberAccess]
    for share, count in zip((0.3, 0.6), gone, strict=True):  # Binomial(2400, share)
        assert abs(count - 2400 * share) < 5 * math.sqrt(2400 * share * (1 - share))


def test_records_of_clients_that_drop_out(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "clients.drop=0.5", seeds=(1, 2))
    prompt = 4 * 2 * trial.tasks[0].text_width
    for history, task in zip(trial.run_all(), trial.tasks, strict=True):
        arrived = [record["train/clients"] for record in history]
        assert [record["train/sampled"] for record in history] == [8] * 3
        assert 0 < sum(arrived) < 24
        last = history[-1]
        assert last["comm/up_bytes"] == prompt * sum(arrived)
        assert last["comm/down_bytes"] == prompt * 24
        assert last["comm/vain_bytes"] == prompt * (24 - sum(arrived))
        cohort = cohort_of(trial.run, task, last["seed"], 3, 1)
        found = torch.tensor(last["clients/test"])[cohort.absent]
        assert last["test/absent/acc_mean"] == pytest.approx(found.mean().item())


def test_a_round_in_which_nobody_arrives_changes_nothing(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "clients.drop=0.9", "protocol.rounds=12", "protocol.eval_every=12", seeds=(1, 2))
    empty = 0
    while not trial.done:
        before = [state._replace(shared={n: v.clone() for n, v in state.shared.items()}) for state in trial.states]
        for state, was, record in zip(trial.states, before, trial.step(), strict=True):
            if not record["train/clients"]:
                empty += 1
                assert "train/loss" not in record
                assert_same(state, was)
    assert empty > 2


def test_costs_are_known_before_clients_drop_out(feature_cache: Path) -> None:
    for overrides in (["clients=dropout"], ["clients=slow", "clients.slow.late=drop"], ["clients=slow"]):
        trial = simulate(feature_cache, *overrides, "method=pfedmoap", "method.experts=3")
        ((*_, last),), known = trial.run_all(), known_costs(trial.run)
        assert (known["comm/up_bytes"], known["comm/down_bytes"]) == (last["comm/up_bytes"], last["comm/down_bytes"])
    flops = [
        known_costs(compose_run([*SMALL, "protocol.epochs=5", *more]))["cost/client_flops"]
        for more in ([], ["clients=slow", "clients.slow.steps=0.2"])
    ]
    assert flops[1] == pytest.approx(0.6 * flops[0], rel=0.05), "half of the clients do a fifth"


def test_slow_clients_do_a_part_of_their_work_and_others_the_same(feature_cache: Path) -> None:
    epochs = "protocol.epochs=5"
    usual, slow = (simulate(feature_cache, epochs, *more) for more in ([], ["clients=slow"]))
    who = slow.tasks[0].slow
    assert who is not None
    assert who.sum() == 4
    plans = []
    for trial in (usual, slow):
        cohort = cohort_of(trial.run, trial.tasks[0], 1, 1, 1)
        plans.append(plan_round(trial.tasks, [cohort], [cohort.clients], 5, trial.run.optim))
    assert torch.equal(plans[0].steps[~who], plans[1].steps[~who])
    assert (plans[1].steps[who] * 5).tolist() == plans[0].steps[who].tolist()
    width = plans[1].picked.rows.shape[1]
    assert torch.equal(plans[0].picked.rows[~who][:, :width], plans[1].picked.rows[~who])
    first = int(plans[1].steps[who].min())
    assert torch.equal(plans[0].picked.rows[who][:, :first], plans[1].picked.rows[who][:, :first])
    (record,) = slow.step()
    assert record["test/slow/acc_mean"] == pytest.approx(torch.tensor(record["clients/test"])[who].mean().item())


def test_late_clients_never_train(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "clients=slow", "clients.slow.late=drop", "method=fedper", "method.n_own=1")
    start = trial.states[0].personal["own"].clone()
    trial.run_all()
    late = trial.tasks[0].slow
    assert late is not None
    moved = (trial.states[0].personal["own"] != start).flatten(1).any(1)
    assert torch.equal(moved, ~late)


def test_malicious_clients_are_fixed_by_the_seed(feature_cache: Path) -> None:
    few = simulate(feature_cache, "clients=sign_flip", "clients.malicious.share=0.01", seeds=(1, 2, 3))
    assert [int(task.liars.sum()) for task in few.tasks if task.liars is not None] == [1, 1, 1], "at least one"
    trial = simulate(feature_cache, "clients=sign_flip", "protocol.participation=0.5")
    (task,) = trial.tasks
    assert task.liars is not None
    assert (int(task.liars.sum()), task.malicious) == (2, 1)
    (record,) = trial.step()
    assert [math.isnan(accuracy) for accuracy in record["clients/test"]] == task.liars.tolist()
    benign = torch.tensor(record["clients/test"], dtype=torch.float64)[~task.liars]
    assert record["test/acc_mean"] == pytest.approx(benign.mean().item())
    assert record["test/acc_min"] == pytest.approx(benign.min().item())


def test_validation_by_everyone_is_by_everyone_who_is_benign(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "clients=sign_flip", "protocol.validation=everyone")
    (task,) = trial.tasks
    assert task.validation is not None
    assert task.liars is not None
    liars = task.liars.tolist()
    benign = sum(size for size, lies in zip(task.val.sizes, liars, strict=True) if not lies)
    assert task.validation.sizes == [0 if lies else benign for lies in liars]


def test_an_attack_begins_in_its_round(feature_cache: Path) -> None:
    usual = simulate(feature_cache)
    trial = simulate(feature_cache, "clients=sign_flip", "clients.malicious.from_round=3")
    for number in (1, 2, 3):
        usual.step()
        trial.step()
        same = torch.equal(usual.states[0].shared["prompt"], trial.states[0].shared["prompt"])
        assert same == (number < 3)


def test_a_bound_of_private_uploads_holds_for_lies(feature_cache: Path) -> None:
    """The server's clip, which differential privacy needs, bounds what any upload moves."""
    bounded = (
        "method=promptfl_dp",
        "method.inner.n_ctx=2",
        "method.epsilon=inf",
        "method.bound=update",
        "method.clip=0.1",
    )
    small = [each for each in SMALL if each != "method.n_ctx=2"]
    run = compose_run([*small, *bounded, "clients=scale", "clients.malicious.strength=1000"])
    trial = Simulation(run, (1,), cache_dir=feature_cache)
    before = trial.states[0].shared["prompt"].clone()
    trial.step()
    assert 0 < (trial.states[0].shared["prompt"] - before).norm() <= 0.1 + 1e-6


def test_attacks_in_stages_and_beside_unseen_clients(feature_cache: Path) -> None:
    stages = ("method=promptfl_ft", "stages=[{method: inner, rounds: 2}, {rounds: 1}]", "clients=sign_flip")
    small = [each for each in SMALL if each != "method.n_ctx=2"]
    trial = Simulation(compose_run([*small, *stages, "protocol.unseen=0.25"]), (1,), cache_dir=feature_cache)
    (history,) = trial.run_all()
    (task,) = trial.tasks
    assert task.liars is not None
    assert int(task.liars.sum()) == 2, "of the six that train"
    unseen = task.train.size == 0
    assert not (unseen & task.liars).any()
    found = torch.tensor(history[-1]["clients/test"])
    assert torch.equal(found.isnan(), unseen | task.liars)
    assert torch.tensor(history[-1]["clients/unseen"]).isfinite().tolist() == unseen.tolist()


@pytest.mark.parametrize("share", ["clients.malicious.share=0.95", "clients.slow.share=0.95"])
def test_some_clients_stay_as_they_are(feature_cache: Path, share: str) -> None:
    with pytest.raises(ConfigError, match=r"must leave some of 8 clients as they are, but 0\.95"):
        simulate(feature_cache, share)
