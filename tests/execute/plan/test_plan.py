from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.execute.plan import plan as planning
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.plan.costs import typical_pace
from fpl_tune.execute.plan.memory import SMALLEST, gpu_share
from fpl_tune.execute.plan.plan import make_plan
from fpl_tune.execute.profile import cost_key
from fpl_tune.execute.resources import setup_of
from fpl_tune.methods.coop import CoOp
from fpl_tune.simulation.bounds import estimate
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.study.cells import expand
from fpl_tune.study.store import Store

Compose = Callable[..., Any]

METHODS = """
axes: {}
references:
  - {method: pfedmoap, method.experts: 3, method.d_gating: 32}
  - {method: promptfl_ft}
  - {method: fedprox}
  - {method: fedper}
  - {method: promptsrc, method.depth: 1}
  - {method: zeroshot}
"""


@pytest.fixture(autouse=True)
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The typical round of a seed takes two seconds."""
    monkeypatch.setattr(planning, "typical_pace", lambda *_: 2.0)


@pytest.mark.parametrize("participation", ["1.0", "0.5"])
def test_bytes_are_exact(compose: Compose, tmp_path: Path, participation: str) -> None:
    made = compose(METHODS, f"protocol.participation={participation}", "protocol.rounds=5")
    totals = make_plan(made, root=tmp_path).totals()
    run_study(made, root=tmp_path)
    frame = Store.open(tmp_path, "tiny").frame()
    final = frame[frame["rule"] == "final"]
    assert totals["bytes_up"] == final["comm/up_bytes"].sum() > 0
    assert totals["bytes_down"] == final["comm/down_bytes"].sum() > 0


def test_a_cell_that_cannot_start_is_named(compose: Compose, tmp_path: Path) -> None:
    made = compose("axes: {}\nreferences: [{method: fedprox}, {method: pfedmoap, method.experts: 9}]")
    for refuse in (make_plan, run_study):
        with pytest.raises(ConfigError, match=r"^pfedmoap, experts=9: method\.experts must be at most the number"):
            refuse(made, root=tmp_path)


def test_what_is_done_costs_nothing(compose: Compose, tmp_path: Path) -> None:
    run_study(compose("axes: {optim: {lr: [0.1]}}"), root=tmp_path)
    made = compose("axes: {optim: {lr: [0.1, 0.2]}}")
    plan = make_plan(made, root=tmp_path)
    assert [(i.label, i.status, len(i.missing)) for i in plan.items] == [("lr=0.1", "done", 0), ("lr=0.2", "new", 2)]
    assert (plan.totals()["cells"], plan.totals()["done"]) == (2, 1)
    half = make_plan(compose("axes: {optim: {lr: [0.1]}}", "seeds=4"), root=tmp_path)
    assert [(i.status, len(i.missing)) for i in half.items] == [("partial", 2)]
    nothing = make_plan(compose("axes: {optim: {lr: [0.1]}}"), root=tmp_path)
    assert nothing.totals()["seconds"] == 0
    assert nothing.feasible


def test_seconds_of_a_queue(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {optim: {lr: [1, 2, 3]}}"
    each = planning.TRIAL_SECONDS + 4 * 2 * 2  # rounds, seeds, seconds
    inline = make_plan(compose(body, "protocol.rounds=4"), root=tmp_path)
    assert inline.seconds == 3 * each
    assert "Times of 3 cells are typical ones; --measure measures them." in inline.sentence()
    ray = make_plan(compose(body, "protocol.rounds=4", "execution.executor=ray", "execution.parallel=2"), root=tmp_path)
    assert ray.seconds == planning.RAY_SECONDS + 2 * each


def test_times_come_from_earlier_runs(compose: Compose, tmp_path: Path) -> None:
    """From the study's own results, or those of another study with runs of equal cost; other methods stay typical."""
    made = compose("axes: {optim: {lr: [0.1]}}")
    run_study(made, root=tmp_path)
    stored = Store.open(tmp_path, "tiny")
    (cell,) = stored.cells()
    pace = mean(result["time/seconds"] / result["rounds"] for result in stored.seed_results(cell).values())
    spec = compose("axes: {optim: {lr: [0.1, 0.2]}, method: [promptfl, coop]}", "protocol.rounds=7")
    for name in ("tiny", "other"):
        plan = make_plan(replace(spec, name=name), root=tmp_path)
        seconds = {item.label: (item.basis, item.seconds) for item in plan.items}
        same = (
            seconds["lr=0.2, method=promptfl"] if "lr=0.2, method=promptfl" in seconds else seconds["lr=0.2, promptfl"]
        )
        assert same == ("earlier runs", pytest.approx(planning.TRIAL_SECONDS + 7 * 2 * pace))
        assert plan.totals()["typical"] == 2


def test_what_never_ran_is_measured_on_request(compose: Compose, tmp_path: Path) -> None:
    made = compose("axes: {optim: {lr: [0.1, 0.2]}}", "protocol.rounds=3")
    seen: list[tuple[int, int]] = []
    plan = make_plan(made, root=tmp_path, measure=True, progress=lambda *done: seen.append(done))
    assert seen == [(0, 1)], "one kind of runs"
    assert {item.basis for item in plan.items} == {"measured"}
    assert 0 < plan.seconds - 2 * planning.TRIAL_SECONDS < 2 * 3 * 2 * 2.0
    assert "typical" not in plan.sentence()


def test_the_typical_pace_follows_the_number_and_the_size_of_steps(compose: Compose) -> None:
    loaded = preflight.Loaded()

    def pace(*overrides: str, device: str = "cpu") -> float:
        (cell,) = expand(compose("axes: {}", *overrides))
        return typical_pace(cell.run, loaded, device)

    assert pace("method=zeroshot") < pace() < pace("protocol.epochs=2") < pace("protocol.epochs=4")
    assert pace("method.n_ctx=1") < pace()
    assert pace(device="cuda") < pace()


def test_a_search_is_planned_with_its_trials(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {data: {shots: [2, 4]}}\nsearch: {sampler: random, trials: 7, only: [optim.lr]}"
    plan = make_plan(compose(body), root=tmp_path)
    assert [item.trials for item in plan.items] == [7, 7]
    assert plan.totals()["cells"] == 14


def test_trials_of_a_search_that_are_over_cost_nothing(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {}\nsearch: {sampler: random, trials: 3, batch: 1, only: [optim.lr]}"
    run_study(compose(body, "protocol.rounds=1"), root=tmp_path)
    plan = make_plan(compose(body, "protocol.rounds=1", "search.trials=5"), root=tmp_path)
    assert [(item.status, item.trials, item.seconds > 0) for item in plan.items] == [
        ("done", 3, False),
        ("partial", 2, True),
    ]
    assert (plan.totals()["cells"], plan.totals()["done"]) == (5, 3)
    wider = compose(body, "protocol.rounds=1", "search.space={optim.lr: {low: 1.0e-6, high: 10.0, log: true}}")
    assert make_plan(wider, root=tmp_path).totals()["done"] == 3
    more = make_plan(compose(body, "protocol.rounds=1", "search.trials=5", "seeds=3"), root=tmp_path)
    assert more.totals()["done"] == 0


def test_the_share_that_is_held_out_of_all_images_is_said(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {optim: {lr: [1]}}"
    assert "validate on" not in make_plan(compose(body), root=tmp_path).sentence()
    plan = make_plan(compose(body, "data.shots=null", "data.val=0.1"), root=tmp_path)
    assert "Clients validate on 10% of their training images (data.val) and train on the others." in plan.sentence()


def test_trials_that_fill_no_memory_are_feasible_and_others_are_not(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compose("axes: {}", "execution.executor=ray", "execution.parallel=4")
    assert make_plan(made, root=tmp_path).feasible
    each = make_plan(made, root=tmp_path).totals()["peak_memory_bytes"]
    monkeypatch.setattr(planning, "memory", lambda: int(2.5 * each))
    plan = make_plan(made, root=tmp_path)
    assert not plan.feasible
    assert "Set execution.parallel=2" in plan.reasons[0]


def test_a_search_is_planned_by_points_of_its_space(compose: Compose, tmp_path: Path) -> None:
    """Rounds are searched: what a trial takes is a mean over them, the published point aside."""
    body = (
        "axes: {}\nsearch: {sampler: random, trials: 200, only: [protocol.rounds], "
        "space: {protocol.rounds: {choices: [1, 3]}}}"
    )
    plan = make_plan(compose(body, "seeds=1"), root=tmp_path)
    assert plan.items[0].trials == 200
    assert plan.seconds / 200 == pytest.approx(planning.TRIAL_SECONDS + 2 * (0.5 * 1 + 0.5 * 3), rel=0.1)


def test_kinds_of_trials_are_told_apart_by_sizes_alone(compose: Compose) -> None:
    cells = expand(compose("axes: {optim: {lr: [1, 2]}, method: {n_ctx: [2, 4]}}"))
    assert len({cost_key(cell.run) for cell in cells}) == 2


def test_a_client_that_does_not_fit_a_gpu_is_refused_before_anything_starts(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its step keeps, the towers, images and the CUDA context."""
    spec = compose(METHODS)
    runs, setup = [cell.run for cell in expand(spec)], replace(setup_of(spec, tmp_path), device="cuda")
    monkeypatch.setattr(preflight, "gpus_here", lambda: ((80 << 30, 80 << 30), (8 << 30, 300 << 20)))
    preflight.check(runs, 1, setup)
    monkeypatch.setattr(preflight, "gpus_here", lambda: ((80 << 30, 600 << 20),))
    with pytest.raises(ConfigError, match=r"needs at least .* of GPU memory, but the GPU has .* free. Lower"):
        preflight.check(runs, 1, setup)
    monkeypatch.setattr(preflight, "gpus_here", lambda: pytest.fail("trials run on the CPU"))
    preflight.check(runs, 1, replace(setup, device="cpu"))


@pytest.mark.parametrize("method", ["promptfl", "vpt", "full_model"])
def test_the_memory_of_a_trial_follows_its_batch_and_its_seeds(compose: Compose, method: str) -> None:
    spec = compose("axes: {}", f"method={method}", "optim.batch=8")
    (cell,) = expand(spec)
    run, loaded = cell.run, preflight.Loaded()
    task = loaded.task_of(run)
    state = run.method.init(task, torch.Generator().manual_seed(0), None)
    found = estimate(run, task, state)
    assert found.step == pytest.approx(kept_bytes(run.method, task, state, run.optim), rel=0.05)
    less = estimate(replace(run, optim=replace(run.optim, batch=4)), task, state)
    assert less.step < found.step
    assert found.least < found.peak(1 << 40) == found.least + (found.clients - 1) * (found.step + found.client)
    assert found.peak(found.step) == found.least, "one client at a time"
    three = found.of_seeds(3)
    assert (three.states, three.clients) == (3 * found.states, 3 * found.clients)


def test_the_share_of_a_gpu_grows_with_what_a_trial_holds(compose: Compose) -> None:
    (cell,) = expand(compose("axes: {}", "method=full_model", "optim.batch=8"))
    shares = [gpu_share(cell.run, seeds, 2 << 30) for seeds in (1, 4)]
    assert SMALLEST < shares[0] < shares[1] <= 1
    assert gpu_share(cell.run, 1, 80 << 30) == SMALLEST


def test_a_method_that_fails_is_named_with_its_cell(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trial, which says more, gets a GPU of its own."""
    made = compose("axes: {method: [promptfl, coop]}", "method.n_ctx=3")
    coop = next(cell for cell in expand(made) if "coop" in cell.label)
    monkeypatch.setattr(CoOp, "loss", lambda *_: 1 / 0)
    with pytest.raises(ConfigError, match=r"coop.* cannot be planned: ZeroDivisionError: division by zero"):
        make_plan(made, root=tmp_path)
    assert gpu_share(replace(coop.run, optim=replace(coop.run.optim, batch=7)), 1, 80 << 30) == 1
