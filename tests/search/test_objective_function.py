"""`fpl_tune.objective`: a study's search under plain Optuna."""

from pathlib import Path
from typing import Any

import optuna
import pytest

import fpl_tune
from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.search.ask import trials_of
from fpl_tune.search.search import Search
from fpl_tune.study.store import Store

from ..conftest import start_study, there

SEARCH = """
search:
  sampler: random
  trials: 3
  seed: 5
  space: {optim.lr: {low: 0.01, high: 1.0, log: true}}
  only: [optim.lr]
"""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.filterwarnings("ignore:Published points outside")
def test_the_values_are_those_of_the_study(compose: Any, tmp_path: Path) -> None:
    made = compose(SEARCH + "prune: {rule: null}\n")
    assert start_study(made, root=tmp_path / "out").failed == 0
    store = Store.open(tmp_path / "out", "tiny")
    trials = [cell for cell in store.cells() if cell.role == "trial"]
    wanted = {cell.id: cell.run.optim.lr for cell in trials}
    search = fpl_tune.objective(str(tmp_path / "tiny.yaml"))
    assert search.directions == [optuna.study.StudyDirection.MAXIMIZE]
    study = optuna.create_study(direction="maximize")
    for lr in wanted.values():
        study.enqueue_trial({"optim.lr": lr})
    study.optimize(search, n_trials=len(wanted))
    (part,), rows = there(Search.plan(made)).parts, [store.row(cell) for cell in trials]
    stored = {t.user_attrs["cell"]: t for t in trials_of(part, rows)}
    assert set(stored) == set(wanted)
    assert len(study.trials) == len(wanted)
    for trial in study.trials:
        theirs = stored[trial.user_attrs["cell"]]
        assert trial.value == theirs.value
        assert set(trial.user_attrs) == {*theirs.user_attrs, "objectives", "rule", "fingerprints"}
        assert trial.user_attrs["by_seed"] == theirs.user_attrs["by_seed"]
        test = trial.user_attrs["by_seed"]["test/acc_mean"]
        assert trial.user_attrs["test/acc_mean"] == pytest.approx(sum(test) / 2)
        assert trial.user_attrs["sem"]["val/acc_mean"] >= 0
    assert all(sorted(trial.intermediate_values) == [1, 2] for trial in study.trials)
    first = study.trials[0]
    study.enqueue_trial({"optim.lr": first.params["optim.lr"]})
    study.optimize(search, n_trials=1)
    again = study.trials[-1]
    assert (again.value, again.user_attrs["seconds"]) == (first.value, first.user_attrs["seconds"]), "it ran again"


@pytest.mark.filterwarnings("ignore:Published points outside")
@pytest.mark.parametrize(
    ("changed", "seeds", "metrics"),
    [
        ("seeds=2", [1, 2], {"val/acc_mean", "test/acc_mean"}),
        ("search.objectives=[val/acc_min]", [1], {"val/acc_min", "test/acc_mean"}),
        ("report.rule=best_val", [1], {"val/acc_mean", "test/acc_mean"}),
    ],
)
def test_a_trial_of_other_seeds_objectives_or_rule_runs_again(
    compose: Any, tmp_path: Path, changed: str, seeds: list[int], metrics: set[str]
) -> None:
    compose(SEARCH)
    study = optuna.create_study(direction="maximize")
    overrides = [("seeds=1",), ("seeds=1", changed), ("seeds=1", changed)]
    for own in overrides:
        study.enqueue_trial({"optim.lr": 0.1})
        study.optimize(fpl_tune.objective(str(tmp_path / "tiny.yaml"), *own), n_trials=1)
    first, other, again = study.trials
    assert (other.user_attrs["seeds"], {*other.user_attrs["by_seed"]}) == (seeds, metrics)
    assert len(other.user_attrs["by_seed"]["test/acc_mean"]) == len(seeds)
    assert other.user_attrs["seconds"] != first.user_attrs["seconds"], "it ran"
    assert again.user_attrs == other.user_attrs, "it did not run"


def test_a_study_of_other_directions_is_refused(compose: Any, tmp_path: Path) -> None:
    compose(SEARCH)
    search = fpl_tune.objective(str(tmp_path / "tiny.yaml"))
    with pytest.raises(ConfigError, match=r"must maximize val/acc_mean, but is to minimize\. Write optuna"):
        optuna.create_study().optimize(search, n_trials=1)


def test_trials_are_pruned_in_threads_with_a_database(compose: Any, tmp_path: Path) -> None:
    compose(SEARCH)
    search = fpl_tune.objective(str(tmp_path / "tiny.yaml"), "seeds=1", "protocol.rounds=3")
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/search.db")
    study = optuna.create_study(
        storage=storage,
        directions=search.directions,
        sampler=optuna.samplers.RandomSampler(seed=1),
        pruner=optuna.pruners.ThresholdPruner(lower=2.0, n_warmup_steps=2),  # accuracies are below
    )
    study.optimize(search, n_trials=4, n_jobs=2)
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.PRUNED] * 4
    assert {trial.last_step for trial in study.trials} == {2}
    storage.engine.dispose()  # a connection a thread


def test_seeds_are_the_steps_of_a_pruner_that_compares_by_seed(compose: Any, tmp_path: Path) -> None:
    compose(SEARCH)
    search = fpl_tune.objective(str(tmp_path / "tiny.yaml"), "seeds=[3,5]", "protocol.rounds=1", report="seeds")
    whole = fpl_tune.objective(str(tmp_path / "tiny.yaml"), "seeds=[3,5]", "protocol.rounds=1")
    study, other = (optuna.create_study(directions=search.directions) for _ in range(2))
    study.enqueue_trial({"optim.lr": 0.1})
    study.optimize(search, n_trials=1)
    other.enqueue_trial({"optim.lr": 0.1})
    other.optimize(whole, n_trials=1)
    (trial,) = study.trials
    assert trial.intermediate_values == dict(zip((3, 5), trial.user_attrs["by_seed"]["val/acc_mean"], strict=True))
    assert trial.value == other.trials[0].value
    assert study.metric_names == ["val/acc_mean"]
    study.pruner = optuna.pruners.ThresholdPruner(lower=2.0)  # accuracies are below
    study.optimize(search, n_trials=1)
    assert (study.trials[-1].state.name, list(study.trials[-1].intermediate_values)) == ("PRUNED", [3])
    with pytest.raises(ConfigError, match="report must be 'rounds' or 'seeds', but is 'steps'"):
        fpl_tune.objective(str(tmp_path / "tiny.yaml"), report="steps")  # type: ignore[arg-type]


def test_a_study_without_one_search_is_refused(compose: Any, tmp_path: Path) -> None:
    compose("axes: {optim: {lr: [0.1]}}")
    with pytest.raises(ConfigError, match="has none"):
        fpl_tune.objective(str(tmp_path / "tiny.yaml"))
    compose(f"axes: {{protocol: {{rounds: [1, 2]}}}}\n{SEARCH}")
    with pytest.raises(ConfigError, match="has 2"):
        fpl_tune.objective(str(tmp_path / "tiny.yaml"))
    with pytest.raises(ConfigError, match="no field"):
        fpl_tune.objective("pfedmoap_search", "method.lamda=1")


def test_published_settings_can_be_enqueued() -> None:
    search = fpl_tune.objective("pfedmoap_search")
    assert search.published[0]["method.lam"] == 0.5
    assert config.compose_study("pfedmoap_search").search.objectives == ["val/acc_mean"]
