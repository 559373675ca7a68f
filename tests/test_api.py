"""The frames of a study's results."""

import pytest

from fpl_tune.api import StudyFrames
from fpl_tune.core.errors import ConfigError

from .conftest import MakeStore


def test_a_summary_refuses_a_rule_or_metric_that_is_not_there(make_store: MakeStore) -> None:
    """NaN in every row would say that nothing is done yet."""
    study = StudyFrames(make_store())
    with pytest.raises(ConfigError, match=r"There is no reporting rule 'best_vall'\. Did you mean 'best_val'"):
        study.summary(rule="best_vall")
    with pytest.raises(ConfigError, match=r"metric: nothing reports 'test/acc_mea'\. Did you mean 'test/acc_mean'"):
        study.summary(metric="test/acc_mea")
    assert study.summary(rule="best_val", metric="train/loss")["mean"].notna().all()


def test_a_summary_takes_any_metric_of_a_stored_round(make_store: MakeStore) -> None:
    """Also one of a method that this process has not loaded."""
    store = make_store()
    cell = store.cells()[0]
    history = [{**record, "gates_open": 0.5} for record in store.history(cell, 1)]
    store.put(cell, 1, history, {**(store.result(cell, 1) or {})})
    assert StudyFrames(store).summary(metric="gates_open")["mean"].max() == 0.5
