"""The ablation path: its order, conditions, what runs, what the report shows, refusals."""

import itertools
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.findings import Findings
from fpl_tune.report.curves import ablation
from fpl_tune.search.ablation import _units, ablation_paths
from fpl_tune.search.search import stored_searches
from fpl_tune.search.space import Param, Space
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store

from ..conftest import Compose, make_plan, there
from ..conftest import start_study as run_study

BODY = """
axes: {}
search:
  sampler: random
  seed: 1  # with which a trial differs from the first in all fields
  trials: 6
  confirm: 0
  only: [optim.lr, method.n_ctx, protocol.epochs]
  space:
    optim.lr: {low: 0.001, high: 0.5, log: true}
    method.n_ctx: {choices: [1, 2, 4, 16]}
    protocol.epochs: {choices: [1, 2]}
prune: {rule: null}
tracking: {enabled: false}
"""


def differing(a: Cell, b: Cell) -> list[str]:
    """Fields in which two trials differ."""
    return [name for name in a.varied if a.varied[name] != b.varied[name]]


def make_farthest_best(store: Store) -> Cell:
    """Makes the trial best that differs from the first in most fields; returns it."""
    first, *others = sorted((c for c in store.cells() if c.role == "trial"), key=lambda c: c.number)
    best = max(others, key=lambda cell: len(differing(first, cell)))
    assert len(differing(first, best)) == 3
    for seed in (1, 2):
        result = there(store.result(best, seed))
        rules = {name: {**rule, "val/acc_mean": 1.5} for name, rule in result.rules.items()}
        store.put(best, seed, replace(result, rules=rules))
    return best


def test_every_step_of_the_path_is_run_once_and_reported(compose: Compose, tmp_path: Path) -> None:
    spec = compose(BODY)
    run_study(spec, root=tmp_path)
    best = make_farthest_best(Store.open(tmp_path, spec.name))
    with pytest.raises(ConfigError, match="2 trials of tiny are left"):
        run_study(compose(BODY, "ablate=best", "search.trials=8"), root=tmp_path)
    assert not any(cell.role == "ablation" for cell in Store.open(tmp_path, spec.name).cells())
    spec = compose(BODY, "ablate=best")
    plan = make_plan(spec, root=tmp_path)
    assert plan.totals()["done"] == 6
    outcome = run_study(spec, root=tmp_path)
    store = Store.open(tmp_path, spec.name)
    (path,) = ablation_paths(spec, stored_searches(spec, store.effective()), store.table().rows)
    fields = [step.fields for step in path]
    assert fields[0] == ()
    assert sorted(name for step in fields for name in step) == sorted(best.varied)
    assert all(len(step) == 1 for step in fields[1:])
    for a, b in itertools.pairwise(path):
        assert differing(a.cell, b.cell) == list(b.fields)
    assert path[-1].cell.id == best.id
    new = [cell for cell in store.cells() if cell.role == "ablation"]
    assert [cell.id for cell in new] == [step.cell.id for step in path[1:-1]]
    assert plan.totals()["cells"] == 6 + len(new) == outcome.done + outcome.skipped
    assert all(store.seeds(cell) == [1, 2] for cell in new)
    again = run_study(spec, root=tmp_path)
    assert (again.done, again.skipped) == (0, 6 + len(new))
    findings = Findings(store.spec(), store.table())
    section = there(ablation(findings, compare(findings)))
    rows = [[td.text for td in row.cells] for row in section.tables[0].rows]
    assert [row[1] for row in (rows[0], rows[-1])] == ["published setting", "all of them"]
    means = {row["cell"]: row["mean"] for row in store.table().summary()}
    gaps = [f"{100 * (means[b.cell.id] - means[a.cell.id]):+.2f}" for a, b in itertools.pairwise(path)]
    assert [row[4] for row in rows[1:-1]] == gaps
    assert rows[-1][4] == f"{100 * (means[best.id] - means[path[0].cell.id]):+.2f}"
    assert all(cell.id not in compare(findings).frame.index for cell in new)
    assert not section.code, "all steps have run"
    for seed in (1, 2):
        store.forget(new[0], seed)
    findings = Findings(store.spec(), store.table())
    section = there(ablation(findings, compare(findings)))
    assert section.texts[-1] == "1 step without results."
    assert [code.rpartition(" ")[2] for code in section.code] == ["ablate=best"]


def test_a_step_is_never_the_best_cell(compose: Compose, tmp_path: Path) -> None:
    step = Cell("a", 0, "a", "ablation", {}, compose(BODY))
    assert not step.candidate


def test_refused_without_a_search_its_end_or_anything_to_change(compose: Compose, tmp_path: Path) -> None:
    for body, message in (
        ("axes: {optim.lr: [0.1, 0.2]}", "starts from the first point of a search, but there is none"),
        (BODY, "needs a finished search, but 6 trials of tiny are left. Run fpl-tune study tiny without it"),
    ):
        spec = compose(body, "ablate=best")
        for call in (run_study, make_plan):
            with pytest.raises(ConfigError, match=message):
                call(spec, root=tmp_path)
    spec = compose(BODY, "search.trials=1")
    run_study(spec, root=tmp_path)
    with pytest.raises(ConfigError, match="the first point of tiny is its best cell"):
        run_study(compose(BODY, "search.trials=1", "ablate=best"), root=tmp_path)
    with pytest.raises(ConfigError, match="ablate"):
        compose(BODY, "ablate=worst")


def test_a_front_has_no_path_to_a_best_cell(compose: Compose, tmp_path: Path) -> None:
    several = "search.objectives=[val/acc_mean,comm/total_bytes]"
    run_study(compose(BODY, several, "search.trials=2", "protocol.rounds=1"), root=tmp_path)
    front = "on the front of val/acc_mean and comm/total_bytes: no cell is best. On the front: "
    with pytest.raises(ConfigError, match=rf"{front}.* Remove ablate, which needs one objective"):
        run_study(compose(BODY, several, "search.trials=2", "protocol.rounds=1", "ablate=best"), root=tmp_path)


def test_conditional_fields_change_with_what_they_depend_on() -> None:
    d = optuna.distributions.CategoricalDistribution([0, 1])
    space = Space((Param("a", d), Param("b", d, when={"a": [1]}), Param("c", d, when={"b": [1]}), Param("e", d)), ())
    start, end = {"a": 0, "e": 0}, {"a": 1, "b": 1, "c": 0, "e": 1}
    assert _units(start, end, space) == {"a": ["a", "b", "c"], "e": ["e"]}
    assert _units(end, start, space) == {"a": ["a", "b", "c"], "e": ["e"]}
    assert _units(end, {**end, "c": 1}, space) == {"c": ["c"]}
