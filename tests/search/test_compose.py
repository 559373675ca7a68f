"""No override and no field of the report is ignored silently."""

import itertools
import warnings
from pathlib import Path

import pytest

import fpl_tune
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.search.compose import compose

from ..conftest import Asked

HEAD = "defaults: [/study, override /method: pfedmoap, _self_]\nmethod: {d_gating: 96}\n"


def written(folder: Path, body: str) -> str:
    path = folder / "tiny.yaml"
    path.write_text(HEAD + body)
    return str(path)


@pytest.mark.parametrize(
    ("body", "text", "message"),
    [
        ("axes: {method: {lam: [0, 1]}}", "method.lam=0.5", "the study sweeps method.lam"),
        ("axes: {method: [promptfl, fedpgp]}", "method.n_ctx=4", "the study sweeps method"),
        ("axes: {method: [promptfl, fedpgp]}", "method=coop", "the study sweeps method"),
        ("axes: {both: [{optim.lr: 1}, {optim.lr: 2}]}", "optim.lr=3", "the study sweeps both"),
        ("axes: {which: [{method: coop}, {method: promptfl}]}", "method.n_ctx=4", "the study sweeps which"),
        ("axes: {method: {lam: [0, 1]}}\nreferences: [{method: coop}]", "method.lam=2", "the study sweeps method.lam"),
        ("axes: {method: {lam: [0, 1]}}", "scale=paper", "tiny has no paper_scale"),
        ("axes: {}\nstages: [{rounds: 2}, {rounds: 1}]", "protocol.rounds=3", "every stage of the method sets rounds"),
    ],
)  # fmt: skip
def test_an_override_that_is_cancelled_is_an_error_that_names_what_wins(
    body: str, text: str, message: str, tmp_path: Path
) -> None:
    name = written(tmp_path, body)
    with pytest.raises(ConfigError, match=f"{text} has no effect: {message}"):
        compose(name, [text])


def test_an_override_that_references_alone_take_up_is_a_warning(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {method: {lam: [0, 1]}}\nreferences: [{method.experts: 3}]")
    with pytest.warns(UserWarning, match=r"method.lam=2 sets references only: the study sweeps method\.lam"):
        study = compose(name, ["method.lam=2"])
    assert study.cells[-1].role == "reference"


@pytest.mark.filterwarnings("ignore:method.lam=2 sets references only")
def test_of_several_overrides_the_one_without_effect_is_the_error(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {optim: {lr: [1, 2]}, method: {lam: [0, 1]}}\nreferences: [{optim.lr: 3}]")
    for given in (["method.lam=2", "optim.lr=4"], ["optim.lr=4", "method.lam=2"]):
        with pytest.raises(ConfigError, match=r"^optim.lr=4 has no effect: the study sweeps"):  # the reference has 3
            compose(name, given)
    with pytest.warns(Notice, match="method.lam=2 sets references only"):
        compose(name, ["method.lam=2", "optim.batch=4"])


def test_an_override_that_another_field_refers_to_has_an_effect(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {method: {lam: [0, 1]}}\noptim: {lr: '${method.lam}'}")
    with pytest.warns(Notice, match="method.lam=2 sets references only"):
        study = compose(name, ["method.lam=2"])
    assert {cell.run.optim.lr for cell in study.cells} == {2}


def test_overrides_that_some_cells_take_up_pass(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {both: [{optim.lr: 1}, {method.lam: 2}]}\nstages: [{rounds: 2}, {epochs: 1}]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = compose(name, ["optim.lr=3", "protocol.rounds=3", "protocol.epochs=3", "seeds=2"])
    runs = [cell.run for cell in study.cells]
    assert [(run.optim.lr, getattr(run.method, "lam", None)) for run in runs] == [(1, 0.5), (3, 2)]
    assert {tuple((stage.rounds, stage.epochs) for stage in run.stages) for run in runs} == {((2, 3), (3, 1))}
    assert study.spec.seed_list() == [1, 2]


def test_an_override_of_an_axis_names_the_axis_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Override the axis, 'axes.method.lam=\[1\]'"):
        compose("lambda_sweep", ["method.lam=1"])
    with pytest.raises(ConfigError, match=r"method.lam=1 has no effect"):
        fpl_tune.run_study("lambda_sweep", {"method.lam": 1})
    study = compose("lambda_sweep", ["axes.method.lam=[1]"])
    assert [cell.label for cell in study.cells if cell.role == "cell"] == ["lam=1"]


def test_the_folder_of_data_reaches_the_data_sets_of_an_axis(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {data: [dtd, pacs]}")
    assert {cell.run.data.root for cell in compose(name, ["data.root=/nowhere"]).cells} == {"/nowhere"}


def test_a_searched_field_that_every_first_trial_sets_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"method.lam=1 has no effect: the study searches it.*choices:\[1\]"):
        fpl_tune.objective("pfedmoap_search", {"method.lam": 1})


def test_a_searched_field_is_named_with_the_way_to_fix_it() -> None:
    with pytest.warns(UserWarning, match="does not fix protocol.rounds: the study searches it") as told:
        compose("trade_off", ["protocol.rounds=2"])
    remedy = str(told[0].message).partition("Fix it with '")[2].rstrip("'.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = compose("trade_off", [remedy])
    asked = Asked(study.spec)
    assert {cell.run.protocol.rounds for cell in itertools.islice(iter(asked.request, None), 8)} == {2}


def test_a_rate_that_only_untrained_references_have_changes_nothing(tmp_path: Path) -> None:
    body = "axes: {method: [promptfl]}\nsearch: {sampler: random, trials: 2}\nreferences: [{method: %s}]"
    with pytest.raises(ConfigError, match=r"optim.lr=0.1 has no effect: the study searches it"):
        compose(written(tmp_path, body % "zeroshot"), ["optim.lr=0.1"])
    with pytest.warns(UserWarning, match="does not fix optim.lr: the study searches it"):
        compose(written(tmp_path, body % "coop"), ["optim.lr=0.1"])


def test_a_search_has_trials_or_a_budget(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {method: [promptfl]}\nsearch: {sampler: random, trials: 2, budget: 5}")
    with pytest.raises(ConfigError, match=r"^A search has .*: trials=2 and budget=5\. Remove one, as .* does\.$"):
        compose(name)


def test_a_metric_of_the_servers_model_needs_its_test() -> None:
    metric = "report.metric=test/global/acc_mean"
    with pytest.raises(ConfigError, match=r"test/global/acc_mean needs .* Set protocol\.global_model=true\."):
        compose("lambda_sweep", [metric])
    assert (
        compose("lambda_sweep", [metric, "protocol.global_model=true"]).spec.report.metric == metric.partition("=")[2]
    )


def test_search_settings_without_a_sampler_are_an_error(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {optim: {lr: [1, 2]}}\nsearch: {space: {method.lam: {low: 1}}}")
    with pytest.raises(ConfigError, match=r"search.space has no effect without a sampler"):
        compose(name)
    with pytest.raises(ConfigError, match=r"prune.hedge has no effect without a sampler"):
        compose("lambda_sweep", ["prune.hedge=3"])


def test_a_value_of_let_that_the_study_lacks_is_an_error(tmp_path: Path) -> None:
    name = written(tmp_path, "let: {lams: [0, 1]}\naxes: {method.lam: '${let.lams}'}")
    assert [cell.label for cell in compose(name, ["let.lams=[0.5]"]).cells] == ["lam=0.5"]
    with pytest.raises(ConfigError, match=r"value of let 'lam'.*lams"):
        compose(name, ["let.lam=[0.5]"])


def test_references_of_one_configuration_are_named(tmp_path: Path) -> None:
    two = "{label: ours, method: promptfl}, {label: theirs, method: promptfl}"
    name = written(tmp_path, f"axes: {{method: {{lam: [0, 1]}}}}\nreferences: [{two}, {{method: coop}}]")
    with pytest.warns(Notice, match="'theirs, promptfl' has the same configuration as 'ours, promptfl', and") as told:
        compose(name)
    assert len(told) == 1


def test_labelled_variants_of_one_configuration_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    variants = "[{label: ours, method: promptfl}, {label: theirs, method: promptfl}, {label: coop, method: coop}]"
    path.write_text(f"defaults: [/study, _self_]\naxes: {{variant: {variants}}}\n")
    with pytest.warns(Notice, match="'theirs' has the same configuration as 'ours', and only the latter runs") as told:
        compose(str(path), [])
    assert len(told) == 1


def test_two_searches_of_one_configuration_are_refused(tmp_path: Path) -> None:
    body = "axes: {variant: [{label: ours, method: promptfl}, {label: theirs, method: promptfl}]}"
    with pytest.raises(ConfigError, match=r"one configuration, 'ours' and 'theirs'\. Remove one"):
        compose(written(tmp_path, body), ["search.sampler=random"])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lambda_sweep", {"report.reference": "PromtFL"}, "report.reference: .*'PromtFL'. Did you mean 'promptfl'"),
        ("lambda_sweep", {"report.reference": "lam=7"}, "no reference 'lam=7'"),
        ("lambda_sweep", {"report.x": "method.lamb"}, "report.x: .*'method.lamb'. Did you mean 'method.lam'"),
        ("lambda_sweep", {"report.metric": "test/acc"}, "report.metric: no run reports 'test/acc'"),
        ("lambda_sweep", {"report.rule": "best"}, "no report.rule 'best'. Did you mean 'best_val' or 'best_test'"),
        ("tuned_table", {"report.reference": "fedpg"}, "no reference 'fedpg'. Did you mean 'fedpgp'"),
    ],
)
def test_what_the_report_names_must_be_in_the_study(name: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(name, [given])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("lambda_sweep", "zeroshot"),
        ("tuned_table", "promptfl"),
        ("lambda_sweep", "lam=1"),
        ("tuned_table", "fedpgp"),
        ("tuned_table", "zeroshot"),
    ],
)
def test_references_cells_and_tuned_methods_are_references(name: str, reference: str) -> None:
    assert compose(name, [{"report.reference": reference}]).spec.report.reference == reference


def test_a_cell_of_several_axes_is_a_reference_and_a_trial_is_none(tmp_path: Path) -> None:
    grid = written(tmp_path, "axes: {method: {lam: [0, 1]}, optim: {lr: [0.1, 0.2]}}")
    assert compose(grid, ["report.reference='lam=0, lr=0.1'"]).spec.report.reference == "lam=0, lr=0.1"
    for body in ("axes: {}", "axes: {method: {lam: [0, 1]}}\nsearch: {sampler: random, only: [optim.lr]}"):
        with pytest.raises(ConfigError, match=r"no reference 'lam=0, lr=0\.1'"):
            compose(written(tmp_path, body), ["report.reference='lam=0, lr=0.1'"])
