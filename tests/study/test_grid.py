"""The cells of a study: what they are, what they are called, and what makes their results stale."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fpl_tune import config, data, methods
from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.partition import class_counts
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.study.cells import label
from fpl_tune.study.grid import expand, variant


def labels(made: Any) -> list[str]:
    return [cell.label for cell in expand(made)]


def test_axes_are_gridded_in_the_order_written_and_the_last_varies_fastest(compose: Callable[..., Any]) -> None:
    made = compose("axes: {optim: {lr: [0.01, 0.1]}, method: {n_ctx: [2, 4]}}")
    assert labels(made) == ["lr=0.01, n_ctx=2", "lr=0.01, n_ctx=4", "lr=0.1, n_ctx=2", "lr=0.1, n_ctx=4"]
    first = expand(made)[0]
    assert first.varied == {"optim.lr": 0.01, "method.n_ctx": 2}
    assert first.run.optim.lr == 0.01
    assert first.run.method == PromptFL(n_ctx=2)


def test_a_variant_equals_the_run_that_hydra_composes(compose: Callable[..., Any]) -> None:
    spec = compose("axes: {}", "optim.lr=0.5", "protocol.rounds=7", "method.n_ctx=3", "optim.groups.gate=1")
    fields = {"optim.lr": 0.5, "protocol.rounds": 7, "method.n_ctx": 3, "optim.groups.gate": 1}
    assert config.as_dict(variant(compose("axes: {}").node, fields)) == config.as_dict(spec)


def test_a_cell_is_named_by_the_plain_dict_of_its_run(compose: Callable[..., Any]) -> None:
    for option in ("pfedmoap", "promptfl_ft"):
        run = expand(compose(f"axes: {{method: [{option}], optim.lr: [0.3]}}"))[0].run
        copied = config.to_run(json.loads(json.dumps(config.as_dict(run))))
        assert config.identity(run) == config.identity(copied)
        assert copied == run


def test_equal_values_written_differently_are_one_cell(compose: Callable[..., Any]) -> None:
    ids = {expand(compose(f"axes: {{optim: {{lr: [{text}]}}}}"))[0].id for text in ("1", "1.0", "1e0")}
    assert len(ids) == 1
    assert methods.build({"name": "pfedmoap", "lam": 1}) == methods.build({"name": "pfedmoap", "lam": 1.0, "heads": 8})


def test_variants_that_are_no_list_are_shown_as_one(compose: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"Write axes\.variant=\[\{label: Ours, method\.lam: 0\.5\}, \.\.\.\]"):
        expand(compose("axes: {variant: {Ours: {method.n_ctx: 2}}}"))


def test_a_reference_that_trains_nothing_is_run_once_for_all_settings_of_training(compose: Callable[..., Any]) -> None:
    body = "axes: {optim.lr: [0.1, 0.2], protocol.rounds: [1, 2], data.shots: [2, 4]}\nreferences: [{method: zeroshot}]"
    assert [c.label for c in expand(compose(body)) if c.role == "reference"] == [
        "zeroshot, shots=2",
        "zeroshot, shots=4",
    ]


def test_references_leave_the_axes_of_the_method_and_stand_at_the_others(compose: Callable[..., Any]) -> None:
    made = compose("axes: {data: {shots: [2, 4]}, method: {n_ctx: [2, 4]}}\nreferences: [{method: zeroshot}]")
    cells = expand(made)
    assert [c.role for c in cells] == ["cell"] * 4 + ["reference"] * 2
    assert [c.label for c in cells[4:]] == ["zeroshot, shots=2", "zeroshot, shots=4"]
    assert [c.number for c in cells] == list(range(6))


def test_group_axes_bring_the_fields_of_their_option(compose: Callable[..., Any]) -> None:
    cells = expand(compose("axes: {method: [promptfl, zeroshot], protocol.rounds: [1]}"))
    assert [c.label for c in cells] == ["promptfl, rounds=1", "zeroshot, rounds=1"]
    assert [methods.name_of(c.run.method) for c in cells] == ["promptfl", "zeroshot"]


def test_bundles_vary_several_fields_at_once(compose: Callable[..., Any]) -> None:
    body = "axes: {variant: [{label: short, method.n_ctx: 2, protocol: {rounds: 1}}, {label: plain, method: zeroshot}]}"
    cells = expand(compose(body))
    assert [c.label for c in cells] == ["short", "plain"]
    assert (cells[0].run.method, cells[0].run.protocol.rounds) == (PromptFL(n_ctx=2), 1)
    assert methods.name_of(cells[1].run.method) == "zeroshot"


def test_a_value_of_any_axis_may_have_a_name_of_its_own(compose: Callable[..., Any]) -> None:
    plain = expand(compose("axes: {method: [promptfl, coop], optim: [adamw]}"))
    ours = "{label: Ours, method: coop}"
    named = expand(compose(f"axes: {{method: [promptfl, {ours}], optim: [{{label: 'a:B', optim: adamw}}]}}"))
    assert [cell.label for cell in named] == ["promptfl, a:B", "Ours, a:B"]
    assert [cell.id for cell in named] == [cell.id for cell in plain]
    (cell,) = expand(compose("axes: {method: [{label: Ours, method: coop, method.n_ctx: 3, optim.lr: 0.5}]}"))
    assert (cell.label, cell.run.method, cell.run.optim.lr) == (
        "Ours",
        methods.build({"name": "coop", "n_ctx": 3}),
        0.5,
    )


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ("{optim: {lrr: [1]}}", "no field 'optim.lrr'. Did you mean 'optim.lr'"),
        ("{method: [promtfl]}", "no method 'promtfl'. Did you mean 'promptfl'"),
        ("{optim: {lr: []}}", "at least one value"),
        ("{optim: {lr: 3}}", "An axis is a list"),
        ("{protocol: {rounds: [0]}}", "protocol.rounds must be >= 1"),
    ],
)
def test_refused_axes(compose: Callable[..., Any], axes: str, says: str) -> None:
    made = compose(f"axes: {axes}")
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        expand(made)


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ("{v: [{label: a, method.n_ctx: 2}, {label: a, method.n_ctx: 4}]}", "Two cells have the label 'a'"),
        ("{optim.lr: [0.1, 0.10000001]}", "Two cells have the label 'lr=0.1'.* six digits"),
        ("{data.domains: [[a, b], [a+b]]}", "Two cells have the label 'domains=a\\+b'"),
        ("{v: [{label: a, method.n_ctx: 2}], method.n_ctx: [4]}", "gets method.n_ctx twice, 2 and 4"),
        ("{v: [{label: a, optim.lr: 2}], w: [{label: b, optim: {lr: 3}}]}", "gets optim.lr twice, 2 and 3"),
        ("{v: [{label: a, method: coop}], method: [promptfl]}", "gets method twice, 'coop' and 'promptfl'"),
        ("{v: [{label: 1.0, method.n_ctx: 2}]}", "A label must be a string, but is 1.0. Quote it"),
        ("{v: [{label: true, method.n_ctx: 2}]}", "A label must be a string, but is True"),
        ("{v: [{label: null, method.n_ctx: 2}]}", "A label must be a string, but is None"),
        ("{optim.lr: ['0.5', 1]}", "optim.lr must be a number, but is '0.5'"),
        ("{optim.lr: [0.5, true]}", "optim.lr must be a number, but is True"),
        ("{partition.vary: ['true', false]}", "partition.vary must be true or false, but is 'true'"),
        ("{partition.vary: [0, 1]}", "partition.vary must be true or false, but is 0"),
        ("{method.n_ctx: ['4']}", "method.n_ctx must be an integer, but is '4'"),
        ("{optim.groups.u: ['1']}", "optim.groups.u must be a number, but is '1'"),
    ],
)
def test_axes_that_say_two_things_are_refused(compose: Callable[..., Any], axes: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        expand(compose(f"axes: {axes}"))


def test_a_label_and_a_name_of_a_class_may_be_none(compose: Callable[..., Any]) -> None:
    (cell,) = expand(compose("axes: {v: [{label: None, method.n_ctx: 2}]}"))
    assert cell.label == "None"
    (cell,) = expand(compose("axes: {data.names: [{0: None}]}"))
    assert cell.run.data.names == {"0": "None"}
    with pytest.raises(ConfigError, match=r"data\.root is the string 'None'\. Write null"):
        compose("axes: {}", "data.root='None'")


def test_two_references_of_one_label_are_refused(compose: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"Two cells have the label 'r, lr=0\.1'"):
        expand(compose("axes: {}\nreferences: [{label: r, optim.lr: 0.1}, {label: r, optim.lr: 0.10000001}]"))


def test_a_group_that_one_axis_chooses_keeps_the_field_that_another_sets(compose: Callable[..., Any]) -> None:
    for axes in (
        "{v: [{label: a, optim.lr: 1}], w: [{label: b, optim: adamw}]}",
        "{w: [{label: b, optim: adamw}], v: [{label: a, optim.lr: 1}]}",
        "{v: [{label: a, optim.lr: 1}], optim: [adamw]}",
    ):
        (cell,) = expand(compose(f"axes: {axes}"))
        assert (cell.run.optim.name, cell.run.optim.lr) == ("adamw", 1)


def test_fields_of_a_group_leave_the_others_of_the_study(compose: Callable[..., Any]) -> None:
    first, second = expand(compose("axes: {optim: [{lr: 1}, {lr: 2, groups: {u: 3}}]}"))
    assert [cell.run.optim.batch for cell in (first, second)] == [64, 64], "that of the study's file"
    assert second.run.optim.groups == {**first.run.optim.groups, "u": 3}
    (whole,) = expand(compose("axes: {optim.groups: [{u: 2}]}"))
    assert whole.run.optim.groups == {"u": 2}


@pytest.mark.parametrize("axes", ["{method: [{name: coop}]}", "{v: [{label: coop, method: {name: coop}}]}"])
def test_a_method_that_is_written_out_takes_nothing_of_the_studys(compose: Callable[..., Any], axes: str) -> None:
    (cell,) = expand(compose(f"axes: {axes}", "method=promptfl_ft"))
    assert (cell.run.method, len(cell.run.stages)) == (methods.build({"name": "coop"}), 1)


def test_label_names_only_what_is_needed() -> None:
    assert label({"method.lam": 0.5, "optim.lr": 0.0100}) == "lam=0.5, lr=0.01"
    assert label({"data.seed": 1, "partition.seed": 2}) == "data.seed=1, partition.seed=2"
    assert label({"method": "promptfl"}) == "promptfl"
    assert label({"method": "mine.resid:Resid", "label": "a:B"}) == "Resid, a:B"
    assert label({}) == "base"


def test_axes_of_a_wrapped_method_reach_its_stages(compose: Callable[..., Any]) -> None:
    made = compose("axes: {method: [promptfl_ft], method.inner.n_ctx: [2, 4], protocol.rounds: [1, 3]}")
    cells = expand(made)
    assert [(s[0].method, s[0].rounds, s[1].rounds) for s in (c.run.stages for c in cells)] == [
        (PromptFL(n_ctx=2), 1, 1),
        (PromptFL(n_ctx=2), 3, 1),
        (PromptFL(n_ctx=4), 1, 1),
        (PromptFL(n_ctx=4), 3, 1),
    ]
    assert len({cell.id for cell in cells}) == 4


def test_shares_are_those_that_the_run_trains_on():
    run = config.compose_run(["data.shots=2"])
    found = class_counts(run, 1)
    drawn = data.split(data.load(run.data), run.data, run.partition, 1)
    assert found.hash == drawn.hash
    assert found.counts.sum(1).tolist() == [len(index) for index in drawn.train]
    assert found.counts.shape == (10, len(found.classes))
    assert (found.counts > 0).sum(0).tolist() == np.ones(len(found.classes)).tolist()  # disjoint classes
    assert set(found.domains) == {"mixed"}  # all styles are dealt


def test_clients_of_one_domain_are_named_by_it():
    run = config.compose_run(["partition=domain_dirichlet", "data.domains=[photo,sketch]", "partition.n_clients=2"])
    found = class_counts(run, 1)
    assert found.domains == ("photo", "photo", "sketch", "sketch")


@pytest.mark.parametrize(
    ("axes", "rates"),
    [
        ("{optim.groups: [{u: 2.0}, {w: 3.0}]}", [{"u": 2.0}, {"w": 3.0}]),
        ("{rates: [{label: a, optim.groups: {u: 2.0}}]}", [{"u": 2.0}]),
        ("{optim.groups.u: [2.0, 4.0]}", [{"u": 2.0}, {"u": 4.0}]),
    ],
)
def test_an_axis_sets_a_mapping_or_a_part_of_it(
    compose: Callable[..., Any], axes: str, rates: list[dict[str, float]]
) -> None:
    assert [cell.run.optim.groups for cell in expand(compose(f"axes: {axes}"))] == rates


def test_names_of_classes_may_vary(compose: Callable[..., Any]) -> None:
    cells = expand(compose("axes: {data.names: [{}, {0: ball, '1': a.b}]}"))
    assert [cell.run.data.names for cell in cells] == [{}, {"0": "ball", "1": "a.b"}]
    assert len({cell.id for cell in cells}) == 2
