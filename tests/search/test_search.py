from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.config import SearchSpec
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.search.objective import parse_constraint
from fpl_tune.search.record import open_storage
from fpl_tune.search.search import Search
from fpl_tune.search.space import read_space
from fpl_tune.study.store import Store

Compose = Callable[..., Any]

LR = """
axes: {}
search: {sampler: tpe, trials: 14, batch: 4, space: {optim.lr: {low: 1.0e-4, high: 1.0, log: true}}, only: [optim.lr]}
"""


def results(value: float, *, status: str = "done", rounds: int = 3, seeds: int = 2, up: int = 10) -> Any:
    """What two seeds of a cell left: validation accuracy value ± 0.01; the test figures are noise."""
    found = {}
    for seed in range(1, seeds + 1):
        val = value + 0.01 * (-1) ** seed
        history = [
            {"seed": seed, "round": r, "val/acc_mean": val, "test/acc_mean": (37 * r * seed) % 10 / 10}
            | {"comm/up_bytes": up * r, "comm/down_bytes": up * r, "time/seconds": 1.0 * r}
            for r in range(1, rounds + 1)
        ]
        found[seed] = ({"status": status}, history)
    return found


def score(cell: Any) -> float:
    return 1 - (cell.run.optim.lr - 0.05) ** 2


def drive(
    made: Any,
    folder: Path,
    *,
    backwards: bool = False,
    kill_after: int = 0,
    most: int | None = None,
    scored: Callable[[Any], float] = score,
) -> list[dict[str, Any]]:
    """Runs a search to its end, or `most` trials of it; `kill_after` tells, everything in memory is lost once."""
    search = Search.plan(made)
    assert search is not None
    open_cells = search.open(folder)
    told = 0
    while search.unfinished and told != most:
        open_cells += search.request()
        cell = open_cells.pop(-1 if backwards else 0)
        if cell.role == "trial":
            search.report(cell, results(scored(cell)))
        told += 1
        if told == kill_after:
            search = Search.plan(made)
            assert search is not None
            open_cells = search.open(folder)
    studies = [optuna.load_study(storage=open_storage(folder), study_name=p.name) for p in search.parts]
    return [t.params for study in studies for t in study.get_trials()]


def test_suggestions_depend_neither_on_the_order_of_finishing_nor_on_kills(compose: Compose, tmp_path: Path) -> None:
    made = compose(LR)
    plain = drive(made, tmp_path / "a")
    assert len(plain) == 14
    assert drive(made, tmp_path / "b", backwards=True) == plain
    for i, kill in enumerate((1, 4, 5, 11)):
        assert drive(made, tmp_path / f"k{i}", kill_after=kill) == plain
    other = drive(compose(LR, "search.seed=1"), tmp_path / "c")
    assert other[1:] != plain[1:]  # the first is published


def test_published_values_come_first_and_only_inside_the_range(compose: Compose, tmp_path: Path) -> None:
    made = compose(LR)
    lrs = [p["optim.lr"] for p in drive(made, tmp_path / "a")]
    space = read_space(["promptfl"], made.search, [])
    published = [p["optim.lr"] for p in space.published]
    assert published
    assert lrs[: len(published)] == published
    narrow = SearchSpec(space={"optim.lr": {"low": 0.9, "high": 1.0}}, only=["optim.lr"])
    narrowed = read_space(["promptfl"], narrow, [])
    assert not narrowed.published
    assert list(narrowed.outside) == list(space.published)


def test_combinations_that_cannot_run_cost_nothing(compose: Compose, tmp_path: Path) -> None:
    """They do not count as trials; fixed points among them are named."""

    def fits(run: Any) -> None:
        if run.optim.lr < 0.01:
            raise ConfigError("too small a rate")

    made = compose(LR, "search.trials=8", "search.batch=null")
    search = Search.plan(made, fits=fits)
    assert search is not None
    search.open(tmp_path)
    with pytest.warns(Notice, match=r"lr=0\.00[12] cannot run and is not tried: too small a rate"):
        cells = [cell for _ in range(8) for cell in search.request()]
    assert not search.request()
    assert len(cells) == 8
    assert min(cell.run.optim.lr for cell in cells) >= 0.01
    assert min(run.optim.lr for runs in search.draw().values() for run in runs) >= 0.01
    trials = search.parts[0].trials()
    refused = [t for t in trials if t.params["optim.lr"] < 0.01]
    assert len(trials) == 8 + len(refused) > 9
    assert {t.state.name for t in refused} == {"FAIL"}
    again = Search.plan(made, fits=fits)
    assert again is not None
    assert [cell.id for cell in again.open(tmp_path)] == [cell.id for cell in cells]

    def never(run: Any) -> None:
        raise ConfigError("no rate fits.")

    none = Search.plan(made, fits=never)
    assert none is not None
    none.open(tmp_path / "none")
    says = r"refuses nearly every combination of optim\.lr: no rate fits\. Narrow"
    with pytest.warns(Notice), pytest.raises(ConfigError, match=says):
        none.request()


def test_a_field_that_may_be_null_is_searched_as_the_integer_that_it_is() -> None:
    node = config.as_dict(config.compose_run(["method=pfedmoap"]))
    assert node["method"]["d_gating"] is None
    ranges = {"method.d_gating": {"low": 16, "high": 96}, "method.lam": {"low": 0, "high": 5}}
    space = read_space(["pfedmoap"], SearchSpec(space=ranges, only=list(ranges)), [], node)
    kinds = {param.name: type(param.distribution) for param in space.params}
    assert kinds == {"method.d_gating": IntDistribution, "method.lam": FloatDistribution}


@pytest.mark.parametrize(("trials", "blind"), [(6, 4), (12, 4), (18, 6), (42, 10)])
def test_a_third_of_the_budget_is_drawn_blindly_before_tpe_looks_at_results(
    compose: Compose, tmp_path: Path, trials: int, blind: int
) -> None:
    """Published values count as drawn. What does not look at results is the same whatever they are."""
    made = compose(LR, f"search.trials={trials}", "search.batch=1")
    one = [p["optim.lr"] for p in drive(made, tmp_path / "a", most=blind + 2)]
    other = [p["optim.lr"] for p in drive(made, tmp_path / "b", most=blind + 2, scored=lambda cell: -score(cell))]
    published = [p["optim.lr"] for p in read_space(["promptfl"], made.search, []).published]
    assert one[: len(published)] == published
    assert one[:blind] == other[:blind]
    assert one[blind:] != other[blind:]


def test_every_cell_of_the_axes_gets_the_same_budget(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {data: {shots: [2, 4, 8]}}" + LR.partition("axes: {}")[2]
    made = compose(body, "search.trials=6", "search.sampler=random")
    search = Search.plan(made)
    assert search is not None
    search.open(tmp_path)
    shots = []
    numbers = set()
    while cells := search.request():
        for cell in cells:
            shots.append(cell.run.data.shots)
            numbers.add(cell.number)
            search.report(cell, results(0.5))
    assert {n: shots.count(n) for n in shots} == {2: 6, 4: 6, 8: 6}
    assert len(numbers) == 18


def test_a_search_is_extended_by_trials_and_a_wider_range(compose: Compose, tmp_path: Path) -> None:
    first = drive(compose(LR, "search.trials=6"), tmp_path)
    wider = compose(LR, "search.trials=12", "search.space={optim.lr:{low:0.00001,high:2.0,log:true}}")
    both = drive(wider, tmp_path)
    assert both[:6] == first
    assert len(both) == 12


def test_the_sampler_receives_mean_and_error_and_pruned_as_pruned(compose: Compose, tmp_path: Path) -> None:
    search = Search.plan(compose(LR, "search.trials=4"))
    assert search is not None
    search.open(tmp_path)
    cells = search.request()
    search.report(cells[0], results(0.5))
    search.report(cells[1], results(0.25, status="pruned", rounds=2))
    search.report(cells[2], results(0.1, status="diverged", rounds=1))
    search.report(cells[3], results(0.1, status="failed"))
    assert search.unfinished == 0
    trials = optuna.load_study(storage=open_storage(tmp_path), study_name=search.parts[0].name).get_trials()
    assert [t.state.name for t in trials] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL"]
    assert trials[0].value == pytest.approx(0.5)
    assert trials[0].user_attrs["sem"]["val/acc_mean"] == pytest.approx(0.01)
    assert trials[0].user_attrs["n"] == 2
    assert trials[1].intermediate_values == {1: pytest.approx(0.25), 2: pytest.approx(0.25)}
    assert trials[2].intermediate_values == {1: pytest.approx(0.1)}


def test_several_objectives_and_constraints(compose: Compose, tmp_path: Path) -> None:
    made = compose(
        LR,
        "search.trials=12",
        "search.objectives=[val/acc_mean,comm/total_bytes]",
        "search.constraints=['comm/up_bytes <= 100']",
    )
    search = Search.plan(made)
    assert search is not None
    search.open(tmp_path)
    ups = itertools.count(10, 5)
    while cells := search.request():
        for cell in cells:
            search.report(cell, results(score(cell), up=next(ups)))
    study = optuna.load_study(storage=open_storage(tmp_path), study_name=search.parts[0].name)
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    trials = study.get_trials()
    assert trials[0].values[1] == 60  # 10 bytes up and down in each of three rounds
    assert [t.user_attrs["constraints"]["comm/up_bytes <= 100"] for t in trials[:3]] == [-70, -55, -40]


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


def test_conditions_choose_what_is_sampled(compose: Compose, tmp_path: Path) -> None:
    search = Search.plan(compose(CONDITIONAL))
    assert search is not None
    search.open(tmp_path)
    seen = set()
    while cells := search.request():
        for cell in cells:
            search.report(cell, results(0.5))
            names = {"fedprox": "mu", "pfedmoap": "lam"}
            chosen = cell.varied["method"]
            assert set(cell.varied) == {"method"} | ({f"method.{names[chosen]}"} if chosen in names else set())
            seen.add(chosen)
    assert seen == {"promptfl", "fedprox", "pfedmoap"}


def test_grid_goes_through_every_combination_once(compose: Compose, tmp_path: Path) -> None:
    body = """
axes: {}
search:
  sampler: grid
  only: [optim.lr, method.n_ctx]
  space: {optim.lr: {choices: [0.1, 0.2]}, method.n_ctx: {low: 2, high: 6, step: 2, int: true}}
"""
    found = drive(compose(body), tmp_path)
    assert sorted((p["optim.lr"], p["method.n_ctx"]) for p in found) == [
        (lr, n) for lr in (0.1, 0.2) for n in (2, 4, 6)
    ]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["search.sampler=tpee"], "no sampler 'tpee'. Did you mean 'tpe'"),
        (["search.trials=0"], "must be >= 1"),
        (["search.seconds=0"], "must be > 0"),
        (["search.objectives=[test/acc_mean]"], "test figures choose nothing. Use 'val/acc_mean'"),
        (["search.objectives=[val/acc]"], "nothing reports 'val/acc'. Did you mean"),
        (["search.objectives=[]"], "needs an objective"),
        (["search.constraints=[comm/up_bytes]"], "A constraint reads"),
        (["search.constraints=['test/acc_mean >= 0.5']"], "test figures choose nothing"),
        (["search.only=[optim.lrr]"], "search.only names 'optim.lrr'. Did you mean 'optim.lr'"),
        (["+axes.optim.lr=[0.1]"], "an axis or searched, not both"),
        (["data.val=0"], "reads validation figures"),
        (["search.sampler=grid"], "needs finitely many values"),
    ],
)
def test_refused(compose: Compose, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Search.plan(compose(LR, *overrides))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("{optim.lr: {low: 1, high: 0.1}}", "low < high"),
        ("{optim.lr: {low: 1, high: 1}}", "low < high"),
        ("{optim.lr: {low: 1}}", "must have low < high"),
        ("{optim.lr: {low: little, high: 1}}", r"search.space.optim.lr.low must be a number, but is 'little'"),
        ("{optim.lr: {low: 0, high: .inf}}", "search.space.optim.lr.high must be a finite number"),
        ("{optim.lr: {choices: []}}", "search.space.optim.lr.choices"),
        ("{optim.lr: {low: 0, high: 1, log: true}}", "`low > 0` must hold"),
        ("{optim.lr: {low: 0, high: 1, step: 2}}", "a step up to high - low"),
        ("{optim.lr: {low: 1, high: 3, log: true, step: 1}}", "`step` is not supported when `log` is true"),
        ("{method.n_ctx: {low: 1, high: 2.5}}", "needs integers"),
        (
            "{optim.lr: {low: 0, hihg: 1}}",
            "no field 'search.space.optim.lr.hihg'. Did you mean 'search.space.optim.lr.hig",
        ),
        ("{optim.lrr: {low: 0, high: 1}}", "no field 'optim.lrr'"),
        ("{optim.lr: 3}", "search.space.optim.lr must be a mapping of its fields"),
        ("{optim.lr: {choices: [1], when: {optim.lr: 1}}}", "must not form a circle"),
    ],
)
def test_refused_spaces(compose: Compose, space: str, says: str) -> None:
    made = compose(f"axes: {{}}\nsearch: {{sampler: tpe, space: {space}}}")
    with pytest.raises(ConfigError, match=says):
        Search.plan(made)


def test_constraint_reads_both_ways() -> None:
    assert parse_constraint("comm/total_bytes <= 5e6").excess(6e6) == 1e6
    assert parse_constraint("val/acc_mean >= 0.5").excess(0.6) == pytest.approx(-0.1)


def test_a_study_with_a_search_runs_continues_and_repeats(compose: Compose, tmp_path: Path) -> None:
    body = LR + "references: [{method: zeroshot}]"
    short = compose(body, "search.trials=3", "search.batch=2", "protocol.rounds=1")
    outcome = run_study(short, root=tmp_path)
    assert (outcome.done, outcome.pending, outcome.exit_code) == (4, 0, 0)
    more = run_study(compose(body, "search.trials=5", "search.batch=2", "protocol.rounds=1"), root=tmp_path)
    assert (more.done, more.skipped, more.exit_code) == (2, 4, 0)
    store = Store.open(tmp_path, "tiny")
    assert [c.role for c in store.cells()].count("trial") == 5
    assert set(store.frame()["role"]) == {"reference", "trial"}
    again = run_study(compose(body, "search.trials=5", "search.batch=2", "protocol.rounds=1"), root=tmp_path)
    assert (again.done, again.skipped) == (0, 6)


def test_permuting_test_figures_changes_nothing_that_is_chosen(compose: Compose, tmp_path: Path) -> None:
    """The test figures of `results` differ by seed and round; with any others the same is suggested."""
    made = compose(LR, "search.trials=9")
    plain = drive(made, tmp_path / "a")
    search = Search.plan(made)
    assert search is not None
    search.open(tmp_path / "b")
    while cells := search.request():
        for cell in cells:
            found = results(score(cell))
            for _, history in found.values():
                for record in history:
                    record["test/acc_mean"] = 1 - record["test/acc_mean"]
            search.report(cell, found)
    study = optuna.load_study(storage=open_storage(tmp_path / "b"), study_name=search.parts[0].name)
    assert [t.params for t in study.get_trials()] == plain
