"""No override is ignored silently."""

import itertools
import warnings
from pathlib import Path

import pytest

from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.execute.plan.overrides import compose
from fpl_tune.search.search import Search
from fpl_tune.study.cells import expand

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
        spec = compose(name, ["method.lam=2"])
    assert expand(spec)[-1].role == "reference"


def test_overrides_that_some_cells_take_up_pass(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {both: [{optim.lr: 1}, {method.lam: 2}]}\nstages: [{rounds: 2}, {epochs: 1}]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = compose(name, ["optim.lr=3", "protocol.rounds=3", "protocol.epochs=3", "seeds=2"])
    runs = [cell.run for cell in expand(spec)]
    assert [(run.optim.lr, getattr(run.method, "lam", None)) for run in runs] == [(1, 0.5), (3, 2)]
    assert {tuple((stage.rounds, stage.epochs) for stage in run.stages) for run in runs} == {((2, 3), (3, 1))}
    assert spec.seed_list() == [1, 2]


def test_a_searched_field_is_named_with_the_way_to_fix_it(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="does not fix protocol.rounds: the study searches it") as told:
        compose("pareto", ["protocol.rounds=2"])
    remedy = str(told[0].message).partition("Fix it with '")[2].rstrip("'.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = compose("pareto", [remedy])
    search = Search.plan(spec)
    assert search is not None
    search.open(tmp_path)
    assert {cell.run.protocol.rounds for cell in itertools.islice(iter(search.request, None), 8)} == {2}


def test_search_settings_without_a_sampler_are_an_error(tmp_path: Path) -> None:
    name = written(tmp_path, "axes: {optim: {lr: [1, 2]}}\nsearch: {space: {method.lam: {low: 1}}}")
    with pytest.raises(ConfigError, match=r"search.space has no effect without a sampler"):
        compose(name)


def test_labelled_variants_of_one_configuration_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    variants = "[{label: ours, method: promptfl}, {label: theirs, method: promptfl}, {label: coop, method: coop}]"
    path.write_text(f"defaults: [/study, _self_]\naxes: {{variant: {variants}}}\n")
    with pytest.warns(Notice, match="'theirs' has the configuration of 'ours', which alone is run") as told:
        compose(str(path), [])
    assert len(told) == 1
