"""Samplers by name, class, import path or entry point, with arguments that are checked before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import optuna
import pytest
from optuna.samplers import GPSampler, TPESampler

from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError
from fpl_tune.search.search import Search

Compose = Callable[..., Any]

BODY = """
axes: {}
search: {sampler: tpe, trials: 8, only: [optim.lr, method.n_ctx]}
"""
CONDITION = "search.space={method.n_ctx:{choices:[2,4],when:{optim.lr:[0.1]}},optim.lr:{choices:[0.1,0.2]}}"


@pytest.mark.parametrize(
    "sampler",
    [
        "random",
        "qmc",
        "TPESampler",
        "nsgaii",
        "optuna.samplers:RandomSampler",
        "{name: gp, n_startup_trials: 4, deterministic_objective: true}",
        "{name: tpe, n_startup_trials: 3, constant_liar: false}",
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_any_sampler_of_optuna_runs_a_search(compose: Compose, tmp_path: Path, sampler: str, params: Any) -> None:
    found = params(compose(BODY, f"search.sampler={sampler}"), tmp_path)
    assert len({tuple(point.values()) for point in found}) == 8
    assert all(isinstance(point["method.n_ctx"], int) for point in found)


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ([], GPSampler),
        (["search.only=[]", "search.space.optim.momentum={low:0,high:0.9}"], TPESampler),
        ([f"{CONDITION}"], TPESampler),
        (["search.objectives=[val/acc_mean,comm/total_bytes]"], TPESampler),
    ],
)
def test_auto_is_a_gaussian_process_for_few_fields_and_its_first_trials(
    compose: Compose, overrides: list[str], kind: type[Any]
) -> None:
    search = Search.plan(compose(BODY, "search.sampler=auto", *overrides))
    assert search is not None
    samplers = search.parts[0].samplers
    assert isinstance(samplers.make(249, "key"), kind)
    assert isinstance(samplers.make(250, "key"), TPESampler)


def test_a_sequence_goes_on_after_a_kill(
    compose: Compose, tmp_path: Path, results: Any, opened: Any, params: Any
) -> None:
    """QMC notes its place with the study: continued, it draws the points of an undisturbed run."""
    made = compose(BODY, "search.sampler=qmc", "search.trials=10")
    killed: list[Any] = []
    for _ in range(10):
        search, _ = opened(made, tmp_path / "killed")
        search.report(search.request(), results(0.5))
        killed = [t.params for t in search.parts[0].trials()]
    assert killed == params(made, tmp_path / "whole")


class Greedy(optuna.samplers.BaseSampler):
    """Repeats the best trial so far, less what its standard error may hide."""

    seen: ClassVar[list[float]] = []

    def __init__(self, caution: float = 1.0, seed: int | None = None) -> None:
        self._caution, self._random = caution, optuna.samplers.RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: optuna.Study, trial: Any, search_space: Any) -> dict[str, Any]:
        if len(study.directions) > 1:
            raise ValueError("Greedy has one objective.")
        return {}

    def sample_independent(self, study: optuna.Study, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if done := study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
            sem = max(t.user_attrs.get("sem", {}).get("val/acc_mean", 0.0) for t in done)
            Greedy.seen.append(self._caution * sem)
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def test_a_sampler_by_entry_point_or_path_reads_standard_errors(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Any
) -> None:
    monkeypatch.setattr(plugins, "names", lambda kind: ["greedy"] if kind == "samplers" else [])
    monkeypatch.setattr(plugins, "load", lambda kind, name: Greedy)
    params(compose(BODY, "search.sampler={name: greedy, caution: 2.0}"), tmp_path / "a")
    assert max(Greedy.seen) == pytest.approx(2 * 0.01)  # two seeds 0.02 apart

    module = ModuleType("others_samplers")
    module.Greedy = Greedy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "others_samplers", module)
    made = compose(BODY, "search.sampler=others_samplers:Greedy")
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"A file may not import code, but names search\.sampler=others_sampl"):
        Search.plan(made)
    monkeypatch.setenv(plugins.VARIABLE, "others_samplers")
    assert len(params(made, tmp_path / "b")) == 8


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["search.sampler=tpee"], "There is no sampler 'tpee'. Did you mean 'tpe'"),
        (["search.sampler={name: gp, determinstic_objective: true}"], "unexpected keyword argument 'determins"),
        (["search.sampler={nam: gp}"], "search.sampler must be a name or {name: ..., argument: ...}"),
        (["search.sampler=optuna.samplers:Nothing"], "must name a class derived from optuna.samplers.BaseSampler"),
        (["search.sampler=optuna.nothing:Sampler"], "cannot be imported: No module named"),
        (["search.sampler={name: nsgaii, population_size: 1}"], "nsgaii cannot be built: ValueError"),
        (
            ["search.sampler=greedy", "search.objectives=[val/acc_mean,comm/total_bytes]"],
            r"cannot do search.objectives=\['val/acc_mean', .* over this space: Greedy has one objective.",
        ),
        (["search.sampler=gp", CONDITION], "gp cannot do conditions, but method.n_ctx is searched only where optim.lr"),
    ],
)
def test_refused_before_anything_starts(
    compose: Compose, overrides: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "names", lambda kind: ["greedy"] if kind == "samplers" else [])
    monkeypatch.setattr(plugins, "load", lambda kind, name: Greedy)
    made = compose(BODY, *overrides)
    with pytest.raises(ConfigError, match=says):
        Search.plan(made)
