"""Suggestions of a search: published points first, the same budget everywhere, from validation figures alone."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import GPSampler, TPESampler

from fpl_tune import config
from fpl_tune.config import SearchSpec
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.paths import shipped
from fpl_tune.search.ask import trials_of
from fpl_tune.search.cell_search import CellSearch
from fpl_tune.search.samplers import directions_of
from fpl_tune.search.search import Search
from fpl_tune.search.space import Param, read_space
from fpl_tune.study.store import Store

from ..conftest import Asked, Compose, there
from ..conftest import start_study as run_study
from .conftest import drawn_results, driven, score

LR = """
axes: {}
search: {sampler: tpe, trials: 14, space: {optim.lr: {low: 1.0e-4, high: 1.0, log: true}}, only: [optim.lr]}
"""


def test_published_values_come_first_and_only_inside_the_range(compose: Compose) -> None:
    made = compose(LR)
    space = read_space(["promptfl"], made.search, [])
    published = [p["optim.lr"] for p in space.published]
    assert published
    assert [p["optim.lr"] for p in driven(made, most=len(published))] == published
    narrow = SearchSpec(space={"optim.lr": {"low": 0.9, "high": 1.0}}, only=["optim.lr"])
    narrowed = read_space(["promptfl"], narrow, [])
    assert not narrowed.published
    assert list(narrowed.outside) == list(space.published)
    (outside,) = there(Search.plan(compose(LR, "search.space={optim.lr:{low:0.9,high:1.0}}"))).parts
    with pytest.warns(Notice, match=r"Published points outside search.space are not tried: lr=0\.\d+; lr"):
        outside.warn()


def test_a_published_point_leaves_nothing_to_the_sampler(tmp_path: Path) -> None:
    """pFedMoAP's published points lack the gate's width: it is the study's own, or the nearest that is searched."""
    path = tmp_path / "gate.yaml"
    path.write_text(
        "defaults: [/study, override /method: pfedmoap, _self_]\naxes: {}\n"
        "search: {sampler: random, trials: 6, space: {method.d_gating: {choices: [16, 32, 96]}}}"
    )
    for given, expected in ((32, 32), (128, 96)):
        asked = Asked(config.compose_study(str(path), [f"method.d_gating={given}"]))
        first = [there(asked.request()).varied for _ in range(2)]
        assert [point["method.d_gating"] for point in first] == [expected] * 2
        assert [point["method.lam"] for point in first] == [0.5, 0.0]


def test_combinations_that_cannot_run_cost_nothing(compose: Compose) -> None:
    """They do not count as trials; fixed points among them are named."""

    def fits(run: Any) -> None:
        if run.optim.lr < 0.01:
            raise ConfigError("too small a rate")

    made = compose(LR, "search.trials=8")
    asked = Asked(made, fits)
    with pytest.warns(Notice, match=r"lr=0\.00[12] cannot run and is not tried: too small a rate"):
        asked.search.parts[0].warn()
    cells = asked.all()
    assert len({cell.id for cell in cells}) == 8
    assert min(cell.run.optim.lr for cell in cells) >= 0.01
    numbers = [cell.trial_number for cell in cells]
    assert numbers == sorted(numbers)
    assert numbers[-1] > 8, "what was refused is a gap"

    def never(run: Any) -> None:
        raise ConfigError("no rate fits.")

    says = r"10 of 10 suggestions for optim\.lr are rejected\. The last one: no rate fits\. Narrow"
    with pytest.raises(ConfigError, match=says):
        Asked(made, never).request()


def test_fields_that_hold_integers_are_searched_as_integers() -> None:
    """Also those that may be null."""
    node = config.as_dict(config.compose_run(["method=pfedmoap"]))
    assert node["method"]["d_gating"] is None
    ranges = {name: {"low": 1, "high": 5} for name in ("method.d_gating", "method.n_ctx", "method.lam")}
    space = read_space(["pfedmoap"], SearchSpec(space=ranges, only=list(ranges)), [], node)
    kinds = {param.name: type(param.distribution) for param in space.params}
    wanted = {"method.d_gating": IntDistribution, "method.n_ctx": IntDistribution, "method.lam": FloatDistribution}
    assert kinds == wanted


def test_six_trials_are_drawn_blindly_before_tpe_looks_at_results(compose: Compose) -> None:
    """Published values count as drawn. What does not look at results is the same whatever they are."""
    made = compose(LR)
    one = driven(made, most=8)
    other = driven(made, most=8, scored=lambda cell: (cell.run.optim.lr - 0.05) ** 2)
    assert one[:6] == other[:6]
    assert one[6:] != other[6:]


def test_running_trials_count_as_bad_ones(compose: Compose) -> None:
    """TPE's constant liar: with trials under way it suggests something else than without."""
    asked = Asked(compose(LR))
    for _ in range(10):
        cell = there(asked.request())
        asked.note(cell, drawn_results(score(cell)))
    assert len({there(asked.request()).run.optim.lr for _ in range(4)}) == 4


def test_every_cell_of_the_axes_gets_the_same_budget(compose: Compose) -> None:
    body = "axes: {data: {shots: [2, 4, 8]}}" + LR.partition("axes: {}")[2]
    cells = Asked(compose(body, "search.trials=6", "search.sampler=random")).all()
    shots = [cell.run.data.shots for cell in cells]
    assert {n: shots.count(n) for n in shots} == {2: 6, 4: 6, 8: 6}
    assert len({cell.number for cell in cells}) == 18


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("search.budget=0.5", "search.budget must be >= 1, but is 0.5"),
        ("search.budget=4", r"has both: trials=14 and budget=4. Remove one, as search.trials=null does"),
    ],
)
def test_a_budget_below_a_trial_or_beside_trials_is_refused(compose: Compose, override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        compose(LR, override)


def test_a_search_is_extended_by_trials_and_a_wider_range(compose: Compose) -> None:
    first = Asked(compose(LR, "search.trials=6"))
    for cell in iter(first.request, None):
        first.note(cell, drawn_results(score(cell)))
    wider = compose(LR, "search.trials=12", "search.space={optim.lr:{low:0.00001,high:2.0,log:true}}")
    second = Asked(wider, rows=first.rows)
    for cell in iter(second.request, None):
        second.note(cell, drawn_results(score(cell)))
    assert [row.cell.id for row in second.rows[:6]] == [row.cell.id for row in first.rows]
    assert len(second.rows) == 12


def test_several_objectives(compose: Compose) -> None:
    made = compose(LR, "search.trials=3", "search.objectives=[val/acc_mean,comm/total_bytes]")
    asked = Asked(made)
    for cell in iter(asked.request, None):
        asked.note(cell, drawn_results(0.5))
    (part,) = asked.search.parts
    assert [d.name for d in directions_of(part.search)] == ["MAXIMIZE", "MINIMIZE"]
    told = trials_of(part, asked.rows)
    assert told[0].values == [pytest.approx(0.5), 40]  # 10 bytes up and down in each of two rounds


CONDITIONAL = """
axes: {}
search:
  sampler: random
  trials: 24
  only: [method, method.mu, method.lam]
  space:
    method: {choices: [promptfl, fedprox, pfedmoap]}
    method.mu: {low: 0.001, high: 0.1, log: true, when: {method: fedprox}}
    method.lam: {low: 0, high: 5, when: {method: [pfedmoap]}}
"""


def test_conditions_choose_what_is_sampled(compose: Compose) -> None:
    fields = {cell.varied["method"]: sorted(cell.varied) for cell in Asked(compose(CONDITIONAL)).all()}
    assert fields == {
        "promptfl": ["method"],
        "fedprox": ["method", "method.mu"],
        "pfedmoap": ["method", "method.lam"],
    }


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["search.objectives=[test/acc_mean]"], "'test/acc_mean' is not a validation metric or a cost. Do not select"),
        (["search.objectives=[val/acc]"], "'val/acc' is not a validation metric or a cost. Did you mean"),
        (["search.objectives=[]"], "needs an objective"),
        (["search.only=[optim.lr,optim.lr]"], "search.only names 'optim.lr' twice"),
        (
            ["+axes.v=[{label: a, optim.lr: 0.1}]"],
            "searched, not both, but optim.lr is both. Remove optim.lr from axes",
        ),
        (["search.only=[optim.lrr]"], r"only names 'optim.lrr', which is not in the space\. Did you mean 'optim.lr'\?"),
        (["search.without=[method.n_ctxs]"], r"without names 'method.n_ctxs'.* Did you mean 'method.n_ctx'\?"),
        (["search.only=[optim.momentum]"], r"range: search\.space\.optim\.momentum=\{low: \.\.\., high: \.\.\.\}"),
        (["search.only=[optim.lr]", "search.without=[optim.lr]"], r"leave nothing to search\. Keep one of method"),
        (["+axes.optim.lr=[0.1]"], "an axis or searched, not both"),
        (["data.val=0"], "needs validation metrics"),
    ],
)
def test_refused(compose: Compose, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Search.plan(compose(LR, *overrides))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("{optim.lr: {low: 1, high: 1}}", "low < high"),
        ("{optim.lr: {low: little, high: 1}}", r"search.space.optim.lr.low must be a number, but is 'little'"),
        ("{optim.lr: {choices: []}}", "search.space.optim.lr.choices"),
        ("{optim.lr: {choices: [[1]]}}", "search.space.optim.lr.choices"),
        ("{optim.lr: {low: 0, high: 1, log: true}}", "`low > 0` must hold"),
        ("{optim.lr: {low: 0, high: 1, step: 2}}", "a step up to high - low"),
        ("{method.n_ctx: {low: 1, high: 2.5}}", "needs integers"),
        ("{optim.lr: {low: 0, hihg: 1}}", "no field 'search.space.optim.lr.hihg'. Did you mean"),
        ("{optim.lrr: {low: 0, high: 1}}", "no field 'optim.lrr'"),
        ("{optim.lr: {choices: [1], when: {optim.lr: 1}}}", "must not be circular"),
        ("{data.shots: [2, 4]}", r"data.shots is searched. Make it an axis, axes.data.shots=\[...\], and remove"),
        ("{data: [shapes, dtd]}", "but data is searched"),
        ("{partition.n_clients: {low: 2, high: 4}}", "but partition.n_clients is searched"),
        ("{partition.seed: [1, 2]}", "but partition.seed is searched"),
        ("{protocol.validation: [own, everyone]}", "but protocol.validation is searched"),
    ],
)
def test_refused_spaces(compose: Compose, space: str, says: str) -> None:
    made = compose(f"axes: {{}}\nsearch: {{sampler: tpe, space: {space}}}")
    with pytest.raises(ConfigError, match=says):
        Search.plan(made)


@pytest.mark.parametrize("only", ["[method.n_ctx]", "[]"])
@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("{optim.lr: {min: 0.1, max: 1}}", r"no field 'search.space.optim.lr.min'\. Write low\."),
        ("{optim: {lr: {max: 1, min: 0.1}}}", r"no field 'search.space.optim.lr.max'\. Write high\."),
        ("{optim.lr: {values: [0.1, 1]}}", r"optim.lr.values'\. Write choices\."),
        ("{optim.lr: {distribution: uniform, low: 0, high: 1}}", r"lr.distribution'\. Write low and high, with log"),
        ("{optim.lr: {loguniform: [0.1, 1]}}", r"lr.loguniform'\. Write low, high and log: true\."),
        ("{optim.lr: {low: 0, high: 1, q: 0.1}}", r"optim.lr.q'\. Write step\."),
        ("{optim.lr: {range: [0, 1]}}", r"optim.lr.range'\. Write low and high\."),
        ("{optim.lr: {lwo: 0, hihg: 1}}", "optim.lr.lwo'. Did you mean 'search.space.optim.lr.low'"),
        ("{optim.lr: {}}", "must have low < high"),
        ("{optim.lr: 0.1}", "must be {low: ..., high: ...} or a list of choices, but is 0.1"),
        ("{optim.lr: 'loguniform(1e-4, 1)'}", "or a list of choices, but is 'loguniform"),
        ("{optim.lr: null}", "or a list of choices, but is None"),
        ("{optim.lr: {low: 0.1, high: 1, choices: [1]}}", "optim.lr is a range or choices, but is both"),
        ("{optim.lr: {low: '0.1', high: 1}}", "optim.lr.low must be a number, but is '0.1'"),
        ("{optim.lr: {low: true, high: 2}}", "optim.lr.low must be a number, but is True"),
        ("{optim.lr: {low: 0.1, high: 2, log: 1}}", "optim.lr.log must be true or false, but is 1"),
        ("{optim.lrr: [0.1, 1]}", r"search.space.optim.lrr: There is no field 'optim.lrr'\. Did you mean 'optim.lr'"),
        ("{optim.n_ctx: [1, 2]}", r"search.space.optim.n_ctx: There is no field 'optim.n_ctx'"),  # but of methods
        ("{method.foo: [1, 2]}", "search.space.method.foo: promptfl has no field 'foo'"),
    ],
)
def test_a_wrong_entry_is_refused_be_its_field_searched_or_not(
    compose: Compose, space: str, only: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Search.plan(compose(f"axes: {{}}\nsearch: {{sampler: tpe, only: {only}, space: {space}}}"))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("{optim.lr: ['0.1', '1']}", "search.space.optim.lr: optim.lr must be a number, but is '0.1'"),
        ("{optim.lr: [0.1, true]}", "optim.lr must be a number, but is True"),
        ("{optim.lr: {low: -1, high: 1}}", "optim.lr must be >= 0, but is -1"),
        ("{protocol.first_round_all: [0, 1]}", "protocol.first_round_all must be true or false, but is 0"),
        ("{optim.name: [sgd, adm]}", "no optim.name 'adm'. Did you mean 'adam'"),
    ],
)
def test_values_that_no_trial_could_have_are_refused(compose: Compose, space: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Search.plan(compose(f"axes: {{}}\nsearch: {{sampler: tpe, space: {space}}}"))


@pytest.mark.parametrize("space", ["{optim.lr: {low: 1, high: 2}}", "{optim: {lr: {low: 1, high: 2}}}"])
def test_a_range_on_the_command_line_replaces_the_files(compose: Compose, space: str) -> None:
    body = f"axes: {{}}\nsearch: {{sampler: tpe, only: [optim.lr], space: {space}}}"
    search = there(Search.plan(compose(body, "search.space.optim.lr={low: 1, high: 3}")))
    assert [param.distribution for param in search.parts[0].space.params] == [FloatDistribution(1, 3)]


OWN = """
from dataclasses import dataclass
from fpl_tune.method import Method
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Twice(PromptFL):
    beta: float = 0.5

@dataclass(frozen=True)
class Alone(Method):
    init = start = logits = merge = traffic = None
"""


@pytest.fixture
def own(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CellSearch]:
    """Composes a search of a method of one's own, from the fields of `search`."""
    (tmp_path / "twice.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)

    def composed(fields: str = "", method: str = "twice:Twice", *changes: str) -> CellSearch:
        body = f"method: {{name: '{method}'}}\naxes: {{}}\nsearch: {{sampler: random, {fields}}}"
        return there(Search.plan(compose(body, *changes))).parts[0]

    return composed


def names(search: CellSearch) -> set[str]:
    return {param.name for param in search.space.params}


def test_a_method_of_ones_own_has_the_space_of_its_parent_and_begins_with_its_own_values(own) -> None:
    assert names(own()) == {"optim.lr", "optim.batch", "method.n_ctx"}
    assert names(own("space: {method.beta: [0.1, 0.5]}")) == {*names(own()), "method.beta"}
    search = own("only: [optim.lr, method.beta], space: {method.beta: [0.1, 0.5]}", "twice:Twice", "optim.lr=0.03")
    assert search.points == [{"optim.lr": 0.03, "method.beta": 0.5}], "and not with what PromptFL's paper published"
    assert own("only: [optim.lr]", "twice:Twice", "optim.lr=0.5").space.outside == ({"optim.lr": 0.5},)
    with pytest.raises(ConfigError, match=r"twice:Twice has no field 'beat'. Did you mean 'beta'"):
        own("space: {method.beat: [0.1, 0.2]}")


@pytest.mark.parametrize("name", ["twice", "twice:Twice"])
def test_a_method_of_ones_own_may_have_a_file_with_published_points(own, name: str) -> None:
    Path("search_spaces").mkdir()
    text = "space: {method.beta: {low: 0.0, high: 1.0}}\npublished: [{method.beta: 0.25, optim.lr: 0.01}]"
    Path("search_spaces", f"{name}.yaml").write_text(text)
    search = own()
    assert names(search) == {"method.beta", "method.n_ctx", "optim.lr", "optim.batch"}, "with those of its parent"
    (point,) = search.points
    assert (point["method.beta"], point["optim.lr"]) == (0.25, 0.01)


@pytest.mark.parametrize("key", ["publised", "spaces"])
def test_a_misspelled_part_of_a_file_is_an_error(own, key: str) -> None:
    Path("search_spaces").mkdir()
    Path("search_spaces", "twice.yaml").write_text(f"space: {{method.beta: [0.1, 0.5]}}\n{key}: []")
    with pytest.raises(ConfigError, match=rf"twice\.yaml: There is no field '{key}'"):
        own()


def test_a_field_of_ones_own_is_searched_beside_methods_that_lack_it(own, compose: Compose) -> None:
    del own

    def planned(when: str) -> list[CellSearch]:
        space = f"method.beta: {{low: 0.0, high: 1.0{when}}}"
        only = "only: [optim.lr, method.beta]"
        body = f"axes: {{method: [promptfl, 'twice:Twice']}}\nsearch: {{sampler: random, {only}, space: {{{space}}}}}"
        return there(Search.plan(compose(body))).parts

    for when in ("", ", when: {method: 'twice:Twice'}"):
        first, second = planned(when)
        assert names(first) == {"optim.lr"}
        assert names(second) == {"optim.lr", "method.beta"}
        assert all("method.beta" in point for point in second.points)
    with pytest.raises(
        ConfigError, match=r"search\.space\.method\.beta\.when: There is no method 'pfedmop'.*'pfedmoap'"
    ):
        planned(", when: {method: pfedmop}")
    with pytest.raises(ConfigError, match=r"twice has no class 'Twise'.*'Twice'"):
        planned(", when: {method: 'twice:Twise'}")
    with pytest.raises(ConfigError, match=r"search\.space\.method\.beta\.when: twice:Twice has no field 'gate_'"):
        planned(", when: {method: 'twice:Twice', method.gate_: 1}")


def test_a_rate_can_be_searched_in_every_method(own, compose: Compose) -> None:
    search = own("only: [optim.lr]", "twice:Alone")
    assert [(p.name, p.ends) for p in search.space.params] == [("optim.lr", (0.001, 0.1))]
    wrapped = there(Search.plan(compose("axes: {method: [fedprox]}\nsearch: {sampler: random, only: [optim.lr]}")))
    assert names(wrapped.parts[0]) == {"optim.lr"}


def test_a_study_states_the_points_that_run_first(own) -> None:
    search = own("only: [optim.lr], published: [{optim.lr: 0.05}, {optim: {lr: 0.02}, method.n_ctx: 4}]")
    assert search.points == [{"optim.lr": 0.05}, {"optim.lr": 0.02}]
    with pytest.raises(ConfigError, match=r"published names 'method.n_ctxt', which .* Did you mean 'method.n_ctx'"):
        own("published: [{method.n_ctxt: 4}]")


BOTH = "axes: {method: [promptfl, pfedmoap]}\nsearch: {sampler: random}"


def test_each_method_is_searched_in_those_of_the_named_fields_that_it_has(compose: Compose) -> None:
    def planned(*overrides: str) -> list[CellSearch]:
        return there(Search.plan(compose(BOTH, *overrides))).parts

    both = planned("search.only=[optim.lr,method.lam]")
    assert [names(search) for search in both] == [{"optim.lr"}, {"optim.lr", "method.lam"}]
    every, rest = planned(), planned("search.without=[optim.batch,method.lam]")
    assert [names(a) - names(b) for a, b in zip(every, rest, strict=True)] == [
        {"optim.batch"},
        {"optim.batch", "method.lam"},
    ]
    own = planned("search.published=[{optim.lr: 0.05, method.lam: 0.25}]", "search.only=[optim.lr,method.lam]")
    assert [search.points for search in own] == [[{"optim.lr": 0.05}], [{"optim.lr": 0.05, "method.lam": 0.25}]]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("search.only=[method.lam]", r"^promptfl: search.only and search.without leave nothing to search"),
        ("search.only=[optim.lr,method.lamm]", r"only names 'method.lamm', which is .* Did you mean 'method.lam'\?$"),
        ("search.space.method.d_gatin=[8]", r"pfedmoap has no field 'd_gatin'. Did you mean 'd_gating'\?"),
    ],
)
def test_a_field_that_no_method_has_gets_a_name_near_to_it_from_any_of_them(
    compose: Compose, override: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Search.plan(compose(BOTH, override))


@pytest.mark.parametrize(
    ("method", "field", "space", "value", "wider"),
    [
        ("promptfl", "optim.lr", "{low: 0.001, high: 0.1, log: true}", 0.1, True),
        ("promptfl", "optim.lr", "{low: 0.0, high: 0.1}", 0.001, False),  # rates are at least 0
        ("promptfl", "protocol.participation", "{low: 0.2, high: 1.0}", 0.99, False),
        ("promptfl", "protocol.participation", "{low: 0.2, high: 1.0}", 0.21, True),
        ("fedpgp", "method.rank", "[1, 2, 4]", 1, False),  # 0 would leave the part out
        ("fedpgp", "method.rank", "[1, 2, 4]", 4, True),
        ("pfedmoap", "method.experts", "[2, 3, 5]", 2, False),  # it rejects 1
        ("pfedmoap", "method.lam", "[1, 2, 5]", 1, True),  # a number, not a count
    ],
)
def test_a_space_can_be_wider_where_the_method_takes_further_values(
    compose: Compose, method: str, field: str, space: str, value: float, wider: bool
) -> None:
    searched = f"search: {{sampler: random, only: [{field}], space: {{{field}: {space}}}}}"
    body = f"axes: {{}}\nmethod: {{name: {method}}}\n{searched}"
    (search,) = there(Search.plan(compose(body))).parts
    assert search.widens({field: value}, search.space.params[0]) == wider


def test_no_shipped_space_searches_what_a_budget_of_rounds_does_not_count() -> None:
    for path in sorted(shipped("search_spaces").glob("*.yaml")):
        fields = config.read_mapping(path, "A search space")["space"]
        assert not [name for name in fields if name.startswith("protocol.")], path.name


def test_how_clients_train_may_be_searched(compose: Compose) -> None:
    space = "{data.views: [0, 2], protocol.rounds: [1, 2], protocol.participation: {low: 0.5, high: 1}}"
    search = there(Search.plan(compose(f"axes: {{}}\nsearch: {{sampler: random, space: {space}}}")))
    assert {"data.views", "protocol.rounds"} < {param.name for param in search.parts[0].space.params}


def test_a_study_with_a_search_runs_continues_and_repeats(compose: Compose, tmp_path: Path) -> None:
    body = LR + "references: [{method: zeroshot}]"
    outcome = run_study(compose(body, "search.trials=3", "protocol.rounds=1", "search.confirm=0"), root=tmp_path)
    assert (outcome.done, outcome.pending, outcome.exit_code) == (4, 0, 0)
    more = run_study(compose(body, "search.trials=5", "protocol.rounds=1", "search.confirm=0"), root=tmp_path)
    assert (more.done, more.skipped, more.exit_code) == (2, 4, 0)
    store = Store.open(tmp_path, "tiny")
    assert [c.role for c in store.cells()].count("trial") == 5
    assert set(store.table().frame()["role"]) == {"reference", "trial"}
    again = run_study(compose(body, "search.trials=5", "protocol.rounds=1", "search.confirm=0"), root=tmp_path)
    assert (again.done, again.skipped) == (0, 6)


def test_other_test_figures_change_nothing_that_is_suggested(compose: Compose) -> None:
    made, params = compose(LR, "search.trials=9"), []  # three by TPE
    for flipped in (False, True):
        asked = Asked(made)
        for cell in iter(asked.request, None):
            found = drawn_results(score(cell))
            for record in (record for history in found.values() for record in history):
                record["test/acc_mean"] = abs(flipped - record["test/acc_mean"])
            asked.note(cell, found)
        params.append([there(row.cell.suggestion).params for row in asked.rows])
    assert params[0] == params[1]


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
def test_any_sampler_of_optuna_runs_a_search(compose: Compose, sampler: str) -> None:
    found = driven(compose(BODY, f"search.sampler={sampler}"))
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
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "names", lambda kind: ["greedy"] if kind == "samplers" else [])
    monkeypatch.setattr(plugins, "load", lambda kind, name: Greedy)
    driven(compose(BODY, "search.sampler={name: greedy, caution: 2.0}"))
    assert max(Greedy.seen) == pytest.approx(2 * 0.01)  # two seeds 0.02 apart

    module = ModuleType("others_samplers")
    module.Greedy = Greedy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "others_samplers", module)
    made = compose(BODY, "search.sampler=others_samplers:Greedy")
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    with pytest.raises(
        ConfigError, match=r"A file may not import code from elsewhere, but names search\.sampler=others_sampl"
    ):
        Search.plan(made)
    monkeypatch.setenv(plugins.VARIABLE, "others_samplers")
    assert len(driven(made)) == 8


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
            r"does not support search.objectives=\['val/acc_mean', .* over this space: Greedy has one objective.",
        ),
        (
            ["search.sampler=gp", CONDITION],
            "gp models only fields that all trials have, .*, but method.n_ctx is searched only where optim.lr",
        ),
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


@pytest.mark.parametrize(
    ("distribution", "grid"),
    [
        (FloatDistribution(0.1, 0.7, step=0.2), [0.1, 0.3, 0.5, 0.7]),
        (IntDistribution(1, 9, step=4), [1, 5, 9]),
        (IntDistribution(2, 4), [2, 3, 4]),
    ],
)
def test_a_range_with_steps_holds_its_grid_alone(distribution: Any, grid: list[float]) -> None:
    param = Param("x", distribution)
    assert all(map(param.holds, grid))
    between = [low + share * (high - low) for low, high in itertools.pairwise(grid) for share in (0.25, 0.5, 0.9)]
    assert not any(map(param.holds, [*between, grid[0] - 0.1, grid[-1] + 0.2, "1", None]))
    for value in (*grid, *between, grid[0] - 9, grid[-1] + 9):
        gaps = [abs(value - each) for each in grid]
        assert abs(value - param.nearest(value)) == pytest.approx(min(gaps))
