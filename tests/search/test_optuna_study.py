"""The trials of a study as a study of Optuna: for optuna-dashboard, and for programs that read them."""

from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from fpl_tune.api import StudyResults
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.search.optuna_study import optuna_studies
from fpl_tune.simulation import divergence
from fpl_tune.study.store import Store

from ..conftest import Compose, start_study

BODY = """
axes: {}
search: {sampler: random, trials: 6, only: [optim.lr], space: {optim.lr: {low: 1.0e-3, high: 1.0}}}
prune: {first_rung: 1, reduction: 2}
"""


@pytest.fixture
def store(compose: Compose, tmp_path: Path) -> Store:
    start_study(compose(BODY, "protocol.rounds=2"), root=tmp_path)
    return Store.open(tmp_path, "tiny")


def test_trials_have_the_numbers_values_and_states_of_the_tables(store: Store, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    (written,) = optuna_studies(store, url)
    study = optuna.load_study(study_name="tiny", storage=url)
    assert study.metric_names == ["val/acc_mean"]
    assert len(study.trials) == len(written.trials)
    trials = {trial.user_attrs["cell"]: trial for trial in study.trials if trial.user_attrs}
    cells = [cell for cell in store.cells() if cell.role == "trial"]
    assert trials.keys() == {cell.id for cell in cells}
    states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
    for cell in cells:
        trial = trials[cell.id]
        assert (trial.number, trial.state) == (cell.trial_number, states[store.row(cell).state])
        assert trial.params == {"optim.lr": cell.run.optim.lr}
        results = store.row(cell).results.values()
        ends = [datetime.fromisoformat(result.finished).astimezone().replace(tzinfo=None) for result in results]
        assert trial.datetime_complete == max(ends)
        assert trial.duration is not None
        assert trial.duration.total_seconds() == pytest.approx(sum(r.costs["time/seconds"] for r in results), abs=1e-5)
    means = {row["cell"]: row["mean"] for row in store.table().summary("final", "val/acc_mean")}
    assert study.best_value == means[study.best_trial.user_attrs["cell"]]
    assert {store.row(cell).state for cell in cells} == {"done", "pruned"}
    with pytest.raises(ConfigError, match="already has a study 'tiny'"):
        optuna_studies(store, url)
    assert StudyResults(store).optuna().best_params == study.best_params


def test_trials_that_diverged_have_failed(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no value that a person would read as measured."""
    watch = divergence.watch

    def watched(spec: OptimSpec, *more: Any) -> Any:
        if spec.lr > 0.03:
            raise divergence.Diverged("its rate is too high")
        return watch(spec, *more)

    monkeypatch.setattr(divergence, "watch", watched)
    body = BODY.replace("{first_rung: 1, reduction: 2}", "{rule: null}")
    start_study(compose(body, "protocol.rounds=1", "seeds=1"), root=tmp_path)
    (study,) = optuna_studies(Store.open(tmp_path, "tiny"))
    states = {trial.params["optim.lr"] > 0.03: trial.state for trial in study.trials}
    assert states == {True: TrialState.FAIL, False: TrialState.COMPLETE}
    assert all((trial.values is None) == (trial.state is TrialState.FAIL) for trial in study.trials)


def test_what_cannot_be_written_is_refused(store: Store) -> None:
    with pytest.raises(
        ConfigError, match=r"foo://x cannot be opened as a storage of Optuna .* Try sqlite:///trials.db"
    ):
        optuna_studies(store, "foo://x")
    with pytest.raises(ConfigError, match=r"^The storage of Optuna must have .* but is 'sqlite:///a\?b/x.db'"):
        optuna_studies(store, "sqlite:///a?b/x.db")
    with pytest.raises(ConfigError, match="no search 'pfedmoap'"):
        StudyResults(store).optuna("pfedmoap")


def test_a_grid_has_no_trials(compose: Compose, tmp_path: Path) -> None:
    start_study(compose("axes: {}", "protocol.rounds=1", "seeds=1"), root=tmp_path)
    with pytest.raises(ConfigError, match="tiny has no search"):
        optuna_studies(Store.open(tmp_path, "tiny"))
