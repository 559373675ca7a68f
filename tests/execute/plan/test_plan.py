"""Plans: bytes, times, memory."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from fpl_tune.core.errors import ConfigError, MissingData
from fpl_tune.data import load, split
from fpl_tune.execute.plan import plan as planning
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.plan.preflight import SMALLEST, Loaded, gpu_share
from fpl_tune.execute.resources import setup_of
from fpl_tune.methods.coop import CoOp
from fpl_tune.search.sizes import check_of_sizes
from fpl_tune.simulation.bounds import estimate
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.study.grid import expand
from fpl_tune.study.store import Store

from ...conftest import Compose, make_plan, outdated
from ...conftest import start_study as run_study

ONE = "axes: {optim: {lr: [0.1]}}"
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


@pytest.fixture
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The typical round of a seed takes two seconds."""
    monkeypatch.setattr(Loaded, "typical_pace", lambda *_: 2.0)


def test_bytes_are_those_of_the_run(compose: Compose, tmp_path: Path) -> None:
    made = compose(METHODS, "protocol.rounds=2")
    totals = (plan := make_plan(made, root=tmp_path)).totals()
    run_study(made, root=tmp_path)
    final = Store.open(tmp_path, "tiny").table().frame()
    assert totals["bytes_up"] == final["comm/up_bytes"].sum() > 0
    assert totals["bytes_down"] == final["comm/down_bytes"].sum() > 0
    peaks = [item.peak_memory_bytes for item in plan.items]
    assert totals["peak_memory_bytes"] == max(peaks) > min(peaks) > planning.PROCESS_BYTES
    for item, row in zip(plan.items, plan.rows(), strict=True):
        assert row["seconds"] == pytest.approx(item.seconds, abs=0.051)
        assert row["up MB"] == pytest.approx(item.bytes_up / 1e6, abs=0.00051)
        assert row["down MB"] == pytest.approx(item.bytes_down / 1e6, abs=0.00051)
        assert row["memory MB"] == pytest.approx(item.peak_memory_bytes / 1e6, abs=0.51)


def test_a_cell_that_cannot_start_is_named(compose: Compose, tmp_path: Path) -> None:
    for fields, said in {
        "method: pfedmoap, method.experts: 9": r"^pfedmoap, experts=9: method\.experts must be at most the number",
        "method: coop, method.n_ctx: 100": r"^coop, n_ctx=100: .* tokens \(100 of them context\)",
    }.items():
        made = compose(f"axes: {{}}\nreferences: [{{method: fedprox}}, {{{fields}}}]")
        for refuse in (make_plan, run_study):
            with pytest.raises(ConfigError, match=said):
                refuse(made, root=tmp_path)


def test_the_sizes_of_a_trial_are_checked_before_it_is_suggested(compose: Compose) -> None:
    check = check_of_sizes()
    runs = [cell.run for cell in expand(compose("axes: {method: {experts: [3, 9]}}", "method=pfedmoap"))]
    check(runs[0])
    with pytest.raises(ConfigError, match=r"method\.experts must be at most the number"):
        check(runs[1])


@pytest.mark.parametrize("problem", [MemoryError(), RuntimeError("a bug of the method")])
def test_parameters_without_room_are_refused_but_a_method_may_raise_its_own_errors_later(
    compose: Compose, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    (cell,) = expand(compose("axes: {}", "method=coop"))

    def init(*_: object) -> None:
        raise problem

    monkeypatch.setattr(CoOp, "init", init)
    refused = isinstance(problem, MemoryError)
    with pytest.raises(ConfigError, match=r"^it: The parameters of coop do not fit") if refused else nullcontext():
        preflight.check([cell.run], labels=["it"])


def test_cells_are_done_partial_new_or_stale(compose: Compose, tmp_path: Path) -> None:
    run_study(compose(ONE), root=tmp_path)

    def states(body: str, *overrides: str) -> list[tuple[str, int, str]]:
        items = make_plan(compose(body, *overrides), root=tmp_path).items
        return [(item.status, len(item.missing), item.why) for item in items]

    assert states("axes: {optim: {lr: [0.1, 0.2]}}") == [("done", 0, ""), ("new", 2, "")]
    assert states(ONE, "seeds=4") == [("partial", 2, "")]
    assert make_plan(compose(ONE), root=tmp_path).totals()["seconds"] == 0
    outdated(Store.open(tmp_path, "tiny"), data="other", weights="other")
    assert states(ONE) == [("stale", 2, "data, weights")]
    rows = make_plan(compose("axes: {optim: {lr: [0.1, 0.2]}}"), root=tmp_path).rows()
    assert [row["status"] for row in rows] == ["stale (data, weights)", "new"]


@pytest.mark.parametrize(
    ("body", "shots", "coarse"),
    [("axes: {optim: {lr: [0.1, 0.2]}}", 4, True), ("axes: {optim: {lr: [0.1, 0.2]}}", 16, False), (ONE, 4, False),
     ("axes: {}\nsearch: {sampler: random}", 4, True)],
)  # fmt: skip
def test_validation_that_is_too_small_to_choose_by_is_said(
    compose: Compose, tmp_path: Path, body: str, shots: int, coarse: bool
) -> None:
    spec = compose(body, f"data.shots={shots}", "data.train_per_class=64", "data.domains=null")
    images = sum(map(len, split(load(spec.data), spec.data, spec.partition, 1).val))
    assert (images < 50) == (shots == 4)
    text = f"Validation has only {images} images a seed, so accuracies move in steps of {100 / images:.2g} points"
    assert (text in make_plan(spec, root=tmp_path).sentence()) == coarse


@pytest.mark.parametrize(
    ("overrides", "images", "remedy"),
    [
        (["data.test_per_class=1"], 20, "Raise data.test_per_class."),
        (["data.max_test=1"], 20, "Raise data.max_test."),
        (["data.test_per_class=2"], 40, "data.whole_test=[sketch] also tests on their training images"),
        (["data.test_per_class=1", "data.whole_test=[sketch]"], 100, ""),
        (
            ["data.test_per_class=1", "data.whole_test=[sketch]", "report.metric=test/own/acc_mean"],
            20,
            "test_per_class",
        ),
    ],
)
def test_a_test_set_of_few_images_is_said_with_the_step_of_its_accuracies(
    compose: Compose, tmp_path: Path, overrides: list[str], images: int, remedy: str
) -> None:
    domains = "data.domains=[photo,sketch]"
    if "sketch" in f"{overrides}{remedy}":
        unseen = ["partition=leave_one_domain_out", "partition.held_out=[sketch]", domains]
    else:
        unseen = ["partition=iid", "partition.n_clients=2", "data.domains=[photo]"]
    spec = compose("axes: {optim: {lr: [0.1, 0.2]}}", "data.train_per_class=4", *unseen, *overrides)
    said = make_plan(spec, root=tmp_path).sentence()
    named = "The test set own" if "report.metric=test/own/acc_mean" in overrides else "The test set"
    step = f"{named} has only {images} images a seed, so accuracies move in steps of {100 / images:.2g} points"
    assert (step in said) == (images < 50)
    assert ("The test set" in said) == bool(remedy)
    assert remedy in said


@pytest.mark.usefixtures("two_seconds")
def test_seconds_of_a_queue(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {optim: {lr: [1, 2, 3]}}"
    each = planning.TRIAL_SECONDS + 4 * 2 * 2  # rounds, seeds, seconds
    inline = make_plan(compose(body, "protocol.rounds=4"), root=tmp_path)
    assert inline.seconds == 3 * each
    assert "The times of 3 cells are typical values: no similar cell has run here yet." in inline.sentence()
    ray = make_plan(compose(body, "protocol.rounds=4", "execution.executor=ray", "execution.parallel=2"), root=tmp_path)
    assert ray.seconds == planning.RAY_SECONDS + 2 * each


@pytest.mark.usefixtures("two_seconds")
def test_times_come_from_earlier_runs(compose: Compose, tmp_path: Path) -> None:
    """From the study's own results, or those of another study with runs of equal cost; other methods stay typical."""
    run_study(compose(ONE), root=tmp_path)
    stored = Store.open(tmp_path, "tiny")
    (cell,) = stored.cells()
    pace = mean(run.costs["time/seconds"] / run.rounds for run in stored.row(cell).results.values())
    made = compose("axes: {optim: {lr: [0.1, 0.2]}, method: [promptfl, coop]}", "protocol.rounds=7")
    for name in ("tiny", "other"):
        plan = make_plan(replace(made, name=name, node={**made.node, "name": name}), root=tmp_path)
        same = next(item for item in plan.items if item.label.startswith("lr=0.2") and "coop" not in item.label)
        assert same.seconds == pytest.approx(planning.TRIAL_SECONDS + 7 * 2 * pace)
        assert plan.totals()["typical"] == 2


def test_the_typical_pace_follows_the_number_and_the_size_of_steps(compose: Compose) -> None:
    loaded = Loaded()

    def pace(*overrides: str, device: str = "cpu") -> float:
        (cell,) = expand(compose("axes: {}", *overrides))
        return loaded.typical_pace(cell.run, device)

    assert pace("method=zeroshot") < pace() < pace("protocol.epochs=2") < pace("protocol.epochs=4")
    assert pace("method.n_ctx=1") < pace()
    assert pace(device="cuda") < pace()


@pytest.mark.usefixtures("two_seconds")
def test_a_search_is_planned_with_the_trials_that_are_left(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {data: {shots: [2, 4]}}\nsearch: {sampler: random, trials: 3, only: [optim.lr]}"
    short = ("protocol.rounds=1", "seeds=1")
    assert [item.trials for item in make_plan(compose(body, *short), root=tmp_path).items] == [3, 2, 3, 2], (
        "two are confirmed"
    )
    run_study(compose(body, *short), root=tmp_path)
    plan = make_plan(compose(body, *short, "search.trials=5"), root=tmp_path)
    each = planning.TRIAL_SECONDS
    assert [(item.status, item.trials) for item in plan.items] == [("done", 3), ("partial", 2), ("new", 2)] * 2
    assert (plan.totals()["cells"], plan.totals()["done"]) == (14, 6)
    assert all(item.seconds > 2 * each for item in plan.items if item.status == "partial")
    assert make_plan(compose(body, "protocol.rounds=1", "seeds=2"), root=tmp_path).totals()["done"] == 0


def test_trials_that_do_not_fit_into_memory_side_by_side_are_infeasible(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compose("axes: {}", "execution.executor=ray", "execution.parallel=4")
    each = make_plan(made, root=tmp_path).totals()["peak_memory_bytes"]
    assert make_plan(made, root=tmp_path).feasible
    monkeypatch.setattr(planning, "memory", lambda: int(2.5 * each))
    plan = make_plan(made, root=tmp_path)
    assert not plan.feasible
    assert "Set execution.parallel=2" in plan.reasons[0]


def test_a_client_that_does_not_fit_a_gpu_is_refused_before_anything_starts(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its step keeps, the towers, images and the CUDA context."""
    spec = compose(METHODS)
    runs, setup = [cell.run for cell in expand(spec)], replace(setup_of(spec, tmp_path, [spec]), device="cuda")
    monkeypatch.setattr(preflight, "gpus_here", lambda: ((80 << 30, 80 << 30), (8 << 30, 300 << 20)))
    monkeypatch.setattr(preflight, "memory", lambda: 1)
    preflight.check(runs, 1, setup)
    with pytest.raises(ConfigError, match="memory"):
        preflight.check(runs, 1, replace(setup, device="cpu"))
    monkeypatch.setattr(preflight, "gpus_here", lambda: ((80 << 30, 600 << 20),))
    with pytest.raises(ConfigError, match=r"needs at least .* of GPU memory, but the GPU has .* free. Lower"):
        preflight.check(runs, 1, setup)


@pytest.mark.parametrize("method", ["promptfl", "vpt", "full_model"])
def test_the_memory_of_a_trial_follows_its_batch_and_its_seeds(compose: Compose, method: str) -> None:
    (cell,) = expand(compose("axes: {}", f"method={method}", "optim.batch=8"))
    run, task = cell.run, Loaded().task_of(cell.run)
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
    made = compose("axes: {method: [promptfl, coop]}", "optim.batch=13")  # of which nothing is known yet
    coop = next(cell for cell in expand(made) if "coop" in cell.label)
    monkeypatch.setattr(CoOp, "loss", lambda *_: 1 / 0)
    with pytest.raises(ConfigError, match=r"coop.* cannot be planned: ZeroDivisionError: division by zero"):
        make_plan(made, root=tmp_path)
    assert gpu_share(replace(coop.run, optim=replace(coop.run.optim, batch=7)), 1, 80 << 30) == 1


def test_a_plan_needs_no_images(compose: Compose, tmp_path: Path) -> None:
    """The study does."""
    made = compose(ONE, "data=dtd", "data.root=/not/here", "protocol.rounds=1")
    plan = make_plan(made, root=tmp_path)
    assert "Not on this machine: images of dtd. " in plan.sentence()
    assert plan.seconds > 0
    with pytest.raises(MissingData, match="/not/here is not a folder"):
        run_study(made, root=tmp_path)
    with pytest.raises(MissingData, match="data=folder needs files"):  # nothing is published of these
        make_plan(compose(ONE, "data=folder"), root=tmp_path)
