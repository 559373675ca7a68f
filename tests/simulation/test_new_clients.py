"""Test sets that are scored by the models which new clients receive."""

import math
from pathlib import Path

import pytest
import torch

from fpl_tune.config import compose_run, identity
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import State, generator
from fpl_tune.methods.fedper import FedPer
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play, toy_task
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.finetuned import FineTuned

from .conftest import CORNER

SMALL = (*CORNER, "partition.n_clients=10", "protocol.rounds=2", "method.n_ctx=2")


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task()


def simulate(feature_cache: Path, *overrides: str, seeds: tuple[int, ...] = (1,)) -> Simulation:
    return Simulation(compose_run([*SMALL, *overrides]), seeds, cache_dir=feature_cache)


def test_unseen_clients_never_train_and_have_a_test_set_of_their_own(feature_cache: Path) -> None:
    trial = simulate(
        feature_cache, "method=fedper", "method.n_own=1", "protocol.unseen=0.3", "protocol.participation=0.5"
    )
    before = {name: leaf.clone() for name, leaf in trial.states[0].personal.items()}
    records = trial.run_all()[0]
    unseen = [size == 0 for size in trial.tasks[0].train.sizes]
    assert sum(unseen) == 3
    for name, leaf in trial.states[0].personal.items():
        assert torch.equal(leaf[unseen], before[name][unseen])
    last = records[-1]
    assert [math.isnan(accuracy) for accuracy in last["clients/test"]] == unseen
    assert [math.isnan(accuracy) for accuracy in last["clients/val"]] == unseen
    assert [math.isnan(accuracy) for accuracy in last["clients/unseen"]] == [not it for it in unseen]
    held = [accuracy for accuracy, it in zip(last["clients/unseen"], unseen, strict=True) if it]
    assert last["test/unseen/acc_mean"] == pytest.approx(sum(held) / 3)
    assert trial.tasks[0].participation == 3 / 7


def test_who_is_unseen_follows_the_seed(feature_cache: Path) -> None:
    tasks = simulate(feature_cache, "protocol.unseen=0.5", seeds=(1, 2)).tasks
    assert [task.train.sizes.count(0) for task in tasks] == [5, 5]
    assert [size == 0 for size in tasks[0].train.sizes] != [size == 0 for size in tasks[1].train.sizes]


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_share_that_leaves_nobody_out_or_nobody_in_is_refused(feature_cache: Path, share: float) -> None:
    with pytest.raises(ConfigError, match=r"protocol\.unseen must leave out some of 10 clients and not all"):
        simulate(feature_cache, f"protocol.unseen={share}")


def test_without_personal_leaves_the_global_model_is_everybodys(feature_cache: Path) -> None:
    last = simulate(feature_cache, "protocol.global_model=true").run_all()[0][-1]
    assert last["clients/global"] == last["clients/test"]
    assert last["test/global/acc_mean"] == last["test/acc_mean"]


def test_the_global_model_is_what_is_shared_with_a_new_clients_own_part(task: ClientTask) -> None:
    method = FedPer(n_ctx=3, n_own=1)
    fresh, (state,) = method.init(task, generator("new")), play(method, [task], cohorts=[(0, 1, 2, 3)])[-1]
    found = method.newcomers(task, state, fresh)
    assert found.shared is state.shared
    assert torch.equal(found.personal["own"], fresh.personal["own"])


@pytest.mark.parametrize("wrapper", [Ditto, FineTuned])
def test_new_clients_begin_their_copies_from_what_is_shared(
    task: ClientTask, wrapper: type[Ditto] | type[FineTuned]
) -> None:
    method = wrapper(PromptFL(n_ctx=2))
    fresh = method.init(task, generator("new"))
    (state,) = play(method, [task], cohorts=[(0, 1, 2, 3)])[-1]
    task.tests["global"] = task.tests["test"]
    (scores,) = evaluate(method, [task], [state], fresh=[fresh])
    (wanted,) = evaluate(PromptFL(n_ctx=2), [task], [State(state.shared, {}, {})], fresh=[fresh])
    del task.tests["global"]
    assert torch.equal(scores["global"].loss, wanted["test"].loss)
    assert not torch.equal(scores["global"].loss, scores["test"].loss)


def test_ids_of_earlier_cells_stay_what_they_were() -> None:
    assert identity(compose_run([])) == identity(compose_run(["protocol.unseen=0", "protocol.global_model=false"]))
    assert identity(compose_run(["protocol.unseen=0.5"])) != identity(compose_run([]))
