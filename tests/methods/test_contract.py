"""The contract, for every method and composition: each joins by one line of `tests/shared/method_cases.py`."""

import ast
import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
import yaml
from method_cases import METHODS, node, one_of_each_base
from scipy.optimize import root_scalar
from scipy.stats import norm
from step_contract import a_step_waits_for_nothing

import fpl_tune
from fpl_tune import methods
from fpl_tune.config import SearchSpec, compose_run
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Local, Method, State, generator, same_leaves, sent_leaves
from fpl_tune.search.space import read_space
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import CONTRACT, Toy, assert_same, play, toy
from fpl_tune.wrappers._wrapper import Wrapper
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.finetuned import FineTuned
from fpl_tune.wrappers.moon import Moon
from fpl_tune.wrappers.private import Private
from fpl_tune.wrappers.proximal import Proximal
from fpl_tune.wrappers.robust import Robust
from fpl_tune.wrappers.scaffold import Scaffold
from fpl_tune.wrappers.server import ServerOptimizer

PACKAGE = Path(fpl_tune.__file__).parent
REPOSITORY = Path(__file__).parents[2]


def source_files() -> list[Path]:
    return sorted(p for p in (PACKAGE / "methods").glob("*.py") if not p.name.startswith("_"))


@pytest.fixture(scope="module", params=sorted({name for name, _ in METHODS}))
def cases(request: pytest.FixtureRequest) -> list[Toy]:
    """A method in all of its listed forms."""
    return [toy(methods.build(node(name, how))) for name, how in METHODS if name == request.param]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(cases: list[Toy], check: Callable[[Toy], None]) -> None:
    for case in cases:
        print(case.method)  # shown where the check fails
        check(case)


@pytest.mark.system
def test_a_step_waits_for_nothing(cases: list[Toy]) -> None:
    """The simulated accelerator takes as long as all of the contract."""
    for case in cases:
        print(case.method)
        a_step_waits_for_nothing(case)


def test_a_step_of_one_method_of_each_base_class_waits_for_nothing() -> None:
    for name, how in one_of_each_base():
        print(name, how)
        a_step_waits_for_nothing(toy(methods.build(node(name, how))))


def test_groups_of_rates_have_leaves(cases: list[Toy]) -> None:
    """In one of the forms at least: an expert alone has no gate."""
    leaves: set[str] = set()
    for case in cases:
        (task, *_), method = case.tasks, case.method
        leaves |= method.start(task, method.init(task, generator("groups")), torch.arange(2)).params.keys()
    names = {group.name for group in cases[0].method.leaf_groups}
    assert names <= leaves | {leaf.split(".")[0] for leaf in leaves}


def test_a_wrapper_that_changes_nothing_leaves_every_method_as_it_is(cases: list[Toy]) -> None:
    """No bound and no noise, no pull, a server without memory, a first round of control variates, an unsent copy.

    Forms that hold the same leaves are one to a wrapper.
    """
    held = {str([sorted(tree) for tree in (*case.history[1], *_started(case))]): case for case in cases}
    for case in held.values():
        inner, task, wanted = case.method, case.tasks[0], case.history[1]
        neutral: list[Method] = []
        if not isinstance(inner, Wrapper) and inner.learns:
            first = case.history[0].shared
            started = _started(case).params
            if started.keys() & first.keys():
                neutral = [Proximal(inner, mu=0), ServerOptimizer(inner, beta1=0), Ditto(inner)]
                neutral += [Moon(inner, mu=0)] if inner.represents else []
            if any(first[n].shape == leaf.shape[1:] for n, leaf in started.items() if n in first):
                neutral.append(Scaffold(inner))
            if not not_robust(inner, task):
                neutral.append(Robust(inner, rule="norm_bound", bound=math.inf))
            if inner.traffic(task, case.history[0], torch.arange(4)).up.keys():
                neutral.append(Private(inner, epsilon=math.inf, clip=math.inf))
        for method in neutral:
            (state,) = play(method, case.tasks[:1], cohorts=[(0, 2)], rounds=len(case.history) - 1)[-1]
            kept = State(*({n: found[n] for n in leaves} for found, leaves in zip(state, wanted, strict=True)))
            assert_same(kept, wanted, tolerance=1e-12)


def _started(case: Toy) -> Local:
    return case.method.start(case.tasks[0], case.history[0], torch.tensor([0]))


def by_formula(noise: float, delta: float, uploads: int) -> float:
    """ε of so many uploads, which are one with noise / √uploads (Balle, Wang, ICML 2018, Theorem 8)."""
    mu = math.sqrt(uploads) / noise

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return root_scalar(excess, bracket=(0.0, 100.0)).root


def spent_by(method: Private, task: ClientTask) -> list[float]:
    """ε after each round: client 0 uploads in all of them, client 1 in the first alone, and who uploads most counts."""
    method.check(task)
    state, found = method.init(task, generator("dp")), []
    for number in range(1, method.rounds + 1):
        here, clients = task.during(number, method.rounds, key=number), torch.arange(2 if number == 1 else 1)
        state = method.merge(here, state, clients, method.start(here, state, clients))
        found.append(method.metrics(task, state)["privacy/epsilon"])
    return found


def test_private_spends_what_another_formula_says_or_refuses(cases: list[Toy], request: pytest.FixtureRequest) -> None:
    refusal = NOT_PRIVATE.get(request.node.callspec.params["cases"])
    for case, (epsilon, delta, rounds) in itertools.product(cases, [(0.5, 1e-3, 1), (1.0, 1e-5, 3), (8.0, 1e-6, 2)]):
        method = Private(case.method, epsilon, delta, calibration="accountant", rounds=rounds)
        if refusal is not None:
            with pytest.raises(ConfigError, match=refusal):
                spent_by(method, case.tasks[0])
            continue
        found, noise = spent_by(method, case.tasks[0]), method.sigma(case.tasks[0]) / method.clip
        assert found == pytest.approx([by_formula(noise, delta, n + 1) for n in range(rounds)], rel=1e-6), case.method
        assert found[-1] == pytest.approx(epsilon, rel=1e-6)


NOT_PRIVATE = {
    **dict.fromkeys(["zeroshot", "coop", "tofa"], "none of .* is exchanged"),
    **dict.fromkeys(
        ["promptfl_dp", "fedprox_dp", "pfedmoap_dp", "dpfpl_dp", "fedsept_dp"], "must not be wrapped in the same way"
    ),
    "promptfl_scaffold": "also uploads control.prompt, to which no noise is added",
    "capt": "also uploads histogram, to which",
    "fedmap": "also uploads prototypes, seen, to which",
    "sgpt": "also uploads chosen, to which",
}


def not_robust(method: Method, task: ClientTask) -> str:
    """Why the server's average of a method cannot be replaced; "" if it can."""
    try:
        Robust(method).check(task)
        Robust(method).init(task, generator("robust"))
    except ConfigError as refusal:
        return str(refusal)
    return ""


def test_robust_rules_keep_what_they_should_or_are_refused(cases: list[Toy], request: pytest.FixtureRequest) -> None:
    """No rule moves shared leaves further than the longest update, or 1.1 times as far as the method itself."""
    found = {refusal for case in cases if (refusal := not_robust(case.method, case.tasks[0]))}
    reason = NOT_ROBUST.get(request.node.callspec.params["cases"])
    assert bool(found) == bool(reason), found
    assert all(re.search(reason or "", refusal) for refusal in found)
    for case in cases:
        task, clients, state = case.tasks[0].during(2, 3, key=1), torch.arange(4), case.history[-1]
        if not_robust(case.method, task):
            continue
        local, rng = case.method.start(task, state, clients), generator("moves")
        sent, _ = sent_leaves(local, case.method.traffic(task, state, clients).up)
        for name, leaf in sent.items():
            local.params[name] = leaf + 0.1 * torch.randn(leaf.shape, generator=rng, dtype=task.dtype)
        plain = case.method.merge(task, state, clients, local)
        lengths = [distance({name: local.params[name][i] for name in sent}, state.shared) for i in range(4)]
        for rule in get_args(get_type_hints(Robust)["rule"]):
            method = Robust(case.method, rule=rule)
            empty = method.init(task, generator("rule"))
            begun = state._replace(server={**empty.server, **state.server})
            after = method.merge(task, begun, clients, local)
            assert same_leaves(after, begun)
            assert_same(State({}, after.personal, {}), State({}, plain.personal, {}))
            farthest = max(*lengths, 1.1 * distance(plain.shared, state.shared, sent))
            assert distance(after.shared, state.shared, sent) <= farthest, method  # False of nan


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], names: Iterable[str] = ()) -> float:
    """Between two trees, over the leaves of the first or some of them."""
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in names or one))


NOT_ROBUST = {
    **dict.fromkeys(
        ["zeroshot", "coop", "tofa", "promptfl_ft", "fedamp", "fedmgp", "pfedpg"], "none of .* is exchanged"
    ),
    "fedclip": "none of .* is exchanged",  # one form sends what nobody receives
    "promptfl_scaffold": r"also sends control\.prompt",
    "fedmap": "also sends prototypes",
    "feddpt": "also sends text|none of .* is exchanged",  # forms in which a client sends the prompt of its domain
    "promptfl_robust": "must not be wrapped in the same way again",
    **dict.fromkeys(["promptfl_dp", "fedprox_dp", "pfedmoap_dp", "dpfpl_dp", "fedsept_dp"], "Wrap robust in private"),
}
"""Methods of which some forms are refused, and why."""


def test_every_method_can_be_fine_tuned(cases: list[Toy]) -> None:
    """A round moves the cohort's own copies of what its clients learn, and nothing that is shared."""
    for case in cases:
        if isinstance(case.method, (FineTuned, Ditto)) or not case.method.learns:
            continue  # has copies of its own, or learns nothing
        method, before = FineTuned(case.method), case.history[-1]
        began = method.init(case.tasks[0], generator("ft"), before)
        (after,) = play(method, case.tasks[:1], states=[began], cohorts=[(0, 3)], epochs=1)[-1]
        assert_same(after._replace(personal={}, server={}), before._replace(personal={}, server={}))
        own = [name for name in after.personal if name.startswith("own.")]
        moved = torch.stack([(after.personal[n] != began.personal[n]).flatten(1).any(1) for n in own])
        assert moved.any(0).tolist() == [True, False, False, True], case.method


def test_what_a_step_keeps_is_counted(cases: list[Toy]) -> None:
    """Blocks of clients are planned by it."""
    for case in cases:
        kept = kept_bytes(case.method, case.tasks[0], case.history[0], OptimSpec(batch=4))
        learned = case.method.start(case.tasks[0], case.history[0], torch.arange(1)).params
        assert (kept > 0) == bool(learned), case.method


def test_every_method_and_composition_is_in_the_list() -> None:
    files = {p.stem for p in source_files()}
    compositions = {p.stem for p in (PACKAGE / "config" / "conf" / "method").glob("*.yaml")}
    assert files | compositions == {name for name, _ in METHODS}


@pytest.mark.parametrize("name", sorted({name for name, _ in METHODS} - {"zeroshot"}))  # has nothing to search
def test_every_method_has_a_search_space_that_holds_the_published_values(name: str) -> None:
    stored = yaml.safe_load((REPOSITORY / "search_spaces" / f"{name}.yaml").read_text())
    space = read_space([name], SearchSpec(), [])
    assert len(stored["published"]) >= 1
    assert list(space.published) == stored["published"]
    searched = [param.name.partition(".") for param in space.params]
    assert {room for room, _, _ in searched} <= {"method", "optim", "protocol"}
    assert {"optim.lr", "optim.batch"} <= {param.name for param in space.params}
    node(name, {field: None for room, _, field in searched if room == "method"})  # refuses unknown fields
    known = {f.name for f in fields(OptimSpec)}
    assert {field.split(".")[0] for room, _, field in searched if room == "optim"} <= known
    points = [{n: v for n, v in point.items() if n.startswith("method.")} for point in stored["published"]]
    for point in points:
        methods.build(node(name, {n.removeprefix("method."): v for n, v in point.items()}))
    params = {param.name: param for param in space.params}
    agrees = [all(not params[n].holds(default(name, n)) or default(name, n) == v for n, v in p.items()) for p in points]
    assert any(agrees), "the default is a published value, where the space of the compact towers holds it"


def default(name: str, field: str) -> Any:
    """The value of `method.<field>` as composed."""
    found = node(name, {})
    for step in field.split(".")[1:]:
        found = found[step]
    return found


def test_every_method_cites_its_paper() -> None:
    missing = [p.stem for p in source_files() if "https://" not in (ast.get_docstring(ast.parse(p.read_text())) or "")]
    assert not missing


def test_every_method_has_a_test_of_its_own() -> None:
    """One that goes through its class: the contract says nothing about the paper's formulas."""
    for file in source_files():
        own = Path(__file__).with_name(f"test_{file.stem}.py")
        assert own.is_file(), f"write {own.name}"
        kinds = [n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)]
        assert any(re.search(rf"\b{kind}\b", own.read_text(encoding="utf-8")) for kind in kinds), own.name


def test_a_composition_names_only_what_differs_from_its_classes() -> None:
    for path in (PACKAGE / "config" / "conf" / "method").glob("*.yaml"):
        composed = yaml.safe_load(path.read_text(encoding="utf-8"))
        node = composed.get("method", composed)
        while node is not None:
            known = methods.defaults(methods.find(node["name"]))
            assert not [name for name, value in node.items() if name in known and known[name] == value], path.stem
            node = node.get("inner")
        assert all(stage.rounds >= 1 and stage.epochs >= 1 for stage in compose_run([f"method={path.stem}"]).stages)
