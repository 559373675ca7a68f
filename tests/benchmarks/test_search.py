"""Tables of searches: read as they were written, and replays that count every round once."""

import dataclasses
import hashlib
import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import bench_search
import load_table
import made_table
import numpy as np
import optuna
import pytest
import search_table
import table_costs
from bench_replay import Exhausted, Replay
from load_table import Table

N, SEEDS, ROUNDS, CLIENTS = 16, 2, (2, 4, 6), 5
"""Of a made-up table."""
SMALL = ["seeds=2", "protocol.rounds=6", "search.trials=8"]
"""A study of its size."""


@pytest.fixture(autouse=True)
def _output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Lines of a table over the space of PromptFL's: accuracy grows with the number of the configuration."""
    _, search = search_table.search_of("promptfl")
    images = [[100] * CLIENTS] * SEEDS
    with (tmp_path / "promptfl.jsonl").open("w") as file:
        for i, point in enumerate(search_table.design(search, N)):
            right = [[[40 + i + seed + step] * CLIENTS for step in range(len(ROUNDS))] for seed in range(SEEDS)]
            sets = {f"{name}_{key}": value for name in ("val", "test") for key, value in
                    (("images", images), ("right", right))}  # fmt: skip
            file.write(json.dumps({"params": point, "seconds": 1.5, **sets}) + "\n")
    return tmp_path


@pytest.fixture
def table(folder: Path) -> Table:
    search_table.pack("promptfl", folder, folder)
    return dataclasses.replace(load_table.load("promptfl", folder), rounds=np.array(ROUNDS))


def test_a_table_is_read_as_it_was_simulated(table: Table) -> None:
    assert table.val.shape == (N, SEEDS, len(ROUNDS), CLIENTS)
    np.testing.assert_allclose(table.val[:, :, -1].mean((1, 2)), (np.arange(N) + 42.5) / 100)
    assert table.published == 3
    assert table.points[0] == {"optim.lr": 0.002, "method.n_ctx": 16}


@pytest.mark.parametrize("name", search_table.NAMES)
def test_the_published_tables_are_what_their_card_says(name: str) -> None:
    published, study = load_table.load(name), search_table.search_of(name)[0]
    assert len(published.points) == 256
    assert published.val.shape[:3] == published.test.shape[:3] == (256, 3, 6)
    assert published.rounds[-1] == study.protocol.rounds
    assert np.isfinite(published.val).all()
    path = load_table.TABLES / f"{name}.npz"
    card = (load_table.TABLES.parents[1] / "docs" / "explanation" / "search_cost.md").read_text()
    assert f"{name} `{hashlib.sha256(path.read_bytes()).hexdigest()}`" in card


@pytest.mark.parametrize("name", search_table.NAMES)
def test_published_configurations_are_those_of_the_search_space(name: str) -> None:
    _, search = search_table.search_of(name)
    published = load_table.load(name)
    assert published.points[: published.published] == search_table.design(search, published.published)


def test_equal_lines_give_equal_bytes(folder: Path) -> None:
    first, second = (search_table.pack("promptfl", folder, folder / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_line_that_a_kill_cut_off_is_left_out(folder: Path) -> None:
    whole = search_table.pack("promptfl", folder, folder / "a").read_bytes()
    with (folder / "promptfl.jsonl").open("a") as file:
        file.write('{"params": {"optim')
    assert search_table.pack("promptfl", folder, folder / "b").read_bytes() == whole


def test_optuna_finds_the_best_configuration(table: Table) -> None:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(table.points[-1])
    study.optimize(table.objective, n_trials=4)
    assert study.best_trial.user_attrs["configuration"] == N - 1
    assert study.best_value == pytest.approx(0.575)


def test_costs_are_counted_in_full_trials(table: Table) -> None:
    replay = Replay(table, budget=2)
    replay.pay(6, 2)
    replay.complete(9)  # 51.5 %, the best has 57.5 %
    replay.pay(3, 1)
    replay.pay(3, 2)
    replay.complete(15)
    assert replay.completed == [(1.0, 9), (1.75, 15)]
    assert replay.regret(0.9) == (math.inf, math.inf)
    assert replay.regret(1.0) == (pytest.approx(6.0), pytest.approx(6.0))
    assert replay.regret(2.0) == (0.0, 0.0)
    assert replay.cost_within(6.0) == 1.0
    assert replay.cost_within(0.5) == 1.75
    with pytest.raises(Exhausted):
        replay.pay(4, 1)


@pytest.mark.parametrize("pruner", list(bench_search.PRUNERS))
def test_optuna_pays_for_the_rounds_that_it_sees(table: Table, pruner: str) -> None:
    replay = Replay(table, budget=8)
    bench_search.SEARCHERS[f"TPE{pruner}"](replay, 0)
    assert [index for _, index in replay.completed][:2] == [0, 1]  # published points
    assert 6 <= replay.spent / (SEEDS * ROUNDS[-1]) <= 8
    if not pruner:
        assert replay.completed == [(i + 1.0, index) for i, index in enumerate(replay.used[:8])]


def test_the_platform_pays_for_every_round_once(table: Table) -> None:
    replay, again = Replay(table, budget=40), Replay(table, budget=40)
    for each in (replay, again):
        bench_search.platform_search([*SMALL, "prune.rule=halving"], each, 3)
    assert replay.completed == again.completed
    assert len(replay.used) == 8
    assert 1 <= len(replay.completed) <= replay.spent / (SEEDS * ROUNDS[-1]) < 8


@pytest.fixture
def priced(table: Table) -> Table:
    """The table, in which a configuration costs its number, but for the worst one, which costs the most."""
    return dataclasses.replace(table, costs={"comm/total_bytes": np.array([N, *range(1, N)], float)})


def test_the_figure_of_two_objectives_is_the_share_of_the_hypervolume_above_the_worst_values(priced: Table) -> None:
    """Accuracies are 42.5 to 57.5 %, in steps of one: the front is a staircase of 15 steps."""
    whole = sum(range(1, N))
    replay = Replay(priced, budget=8)
    for index in (0, 15, 8, 1):
        replay.pay(6, 2)
        replay.complete(index)
    assert replay.volumes == pytest.approx([0, 15 / whole, (15 + 7 * 8) / whole, (15 + 7 * 8) / whole + 7 / whole])
    assert replay.cost_to(15 / whole) == 2.0
    assert replay.cost_to(0.5) == 3.0
    assert replay.cost_to(0.9) == math.inf


def test_a_search_of_two_objectives_ends_once_enough_is_found(priced: Table) -> None:
    for name in ("TPE", "MO-ASHA (own code)"):
        replay = Replay(priced, budget=16, enough=0.5)
        bench_search.FRONT_SEARCHERS[name](replay, 0)
        assert replay.cost_to(0.5) == replay.spent / (SEEDS * ROUNDS[-1]) <= 16


def test_the_platform_searches_for_accuracy_and_what_it_costs(priced: Table) -> None:
    replay = Replay(priced, budget=40)
    bench_search.platform_search([*SMALL, "prune.rule=halving"], replay, 3)
    assert len(replay.used) == 8
    assert len(replay.completed) <= replay.spent / (SEEDS * ROUNDS[-1]) < 8
    assert 0 < replay.volumes[-1] < 1
    assert replay.volumes == sorted(replay.volumes)


def test_what_fedpgp_computes_depends_on_its_rank_and_what_it_sends_does_not() -> None:
    assert ("fedpgp", "bytes") not in bench_search.PROBLEMS
    ranks = [point["method.rank"] for point in load_table.load("fedpgp").points]
    sent, computed = (table_costs.costs_of("fedpgp", metric) for metric in table_costs.COSTS.values())
    assert len({*sent}) == 1
    assert len({*zip(ranks, computed, strict=True)}) == len({*computed}) == 4


def test_curves_of_the_crossing_table_rank_configurations_the_wrong_way_round_and_end_as_simulated() -> None:
    base, made = load_table.load(made_table.BASE), made_table.table_of("crossing")
    assert made_table.foresight(base, 4) == pytest.approx(0.80, abs=0.01)
    assert made_table.foresight(made, 4) == pytest.approx(-0.56, abs=0.01)
    np.testing.assert_array_equal(made.val[:, :, -1], base.val[:, :, -1])
    np.testing.assert_array_equal(made.test[:, :, -1], base.test[:, :, -1])
    assert made.points == base.points
    np.testing.assert_array_equal(made.val, made_table.table_of("crossing").val, "the random numbers are fixed")


def test_half_of_the_diverging_table_diverges_mostly_at_high_rates() -> None:
    base, made = load_table.load(made_table.BASE), made_table.table_of("diverging")
    broken = np.isnan(made.val).any(axis=(1, 2, 3)).reshape(-1)
    assert broken.sum() == len(base.points) / 2
    assert not broken[: made.published].any()
    rates = np.array([point["optim.lr"] for point in base.points])
    assert np.median(rates[broken]) > 2 * np.median(rates[~broken])
    np.testing.assert_array_equal(made.val[~broken], base.val[~broken])
    assert np.isnan(made.val[broken][:, :, -1]).all(), "what has diverged stays so"
    ends = np.isnan(made.val[broken][:, 0, :, 0]).argmax(1)
    assert set(ends) == set(range(6)), "after any evaluation"


@pytest.fixture
def broken(table: Table) -> Table:
    """The table, in which the first published configuration diverges in round 4, and all other than published in 2."""
    val, test = table.val.copy(), table.test.copy()
    for values in (val, test):
        values[0, :, 1:] = np.nan
        values[table.published :] = np.nan
    return dataclasses.replace(table, val=val, test=test)


def test_a_configuration_that_diverges_costs_what_ran_and_is_not_found(broken: Table) -> None:
    replay = Replay(broken, budget=40)
    assert [replay.fails(0, number) for number in (3, 4, 5)] == [False, True, False]
    bench_search.SEARCHERS["TPE"](replay, 0)
    others, full = N - broken.published, SEEDS * ROUNDS[-1]
    assert replay.spent == SEEDS * (4 + 2 * others) + full * (broken.published - 1)
    assert [index for _, index in replay.completed] == [1, 2]
    assert replay.regret(40) == (0.0, 0.0), "the best is one that does not diverge"


def test_the_platform_sees_a_configuration_that_diverges_as_diverged(broken: Table) -> None:
    replay = Replay(broken, budget=40)
    bench_search.platform_search([*SMALL, "prune.rule=halving"], replay, 3)
    first_seeds = 4 + 2 * (len(replay.used) - broken.published)  # of what diverges, the first seed alone
    assert len(replay.used) == 8
    assert first_seeds < replay.spent <= first_seeds + 2 * SEEDS * ROUNDS[-1]
    assert {index for _, index in replay.completed} <= {1, 2}
    assert replay.completed


def test_the_platform_stops_at_the_budget(table: Table) -> None:
    replay = Replay(table, budget=2.5)
    bench_search.platform_search([*SMALL, "prune.rule=null"], replay, 0)
    assert [paid for paid, _ in replay.completed] == [1.0, 2.0]
    assert replay.spent <= 2.5 * SEEDS * ROUNDS[-1]


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
statistics = SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "bench_statistics.py")))


def by_what(rows):
    return {row["what"]: [row[key] for key in row if key.endswith(" seeds")] for row in rows}


@pytest.mark.parametrize("world", list(statistics.WORLDS))
def test_verdicts_hold_their_level_in_every_world(world):
    rows = by_what(statistics.errors(world, 400, (2, 3, 5, 10)))
    assert max(rows["false better or worse, any row"]) <= 0.05 + 0.033  # three standard errors of 400 studies
    assert max(rows.get("false equal at the border, a row", [0])) <= 0.05 + 0.017
    assert min(rows.get("intervals that cover, all rows", [1])) >= 0.95 - 0.033


def test_pooled_noise_finds_more_than_the_pair_s_own():
    rows = statistics.power(400)
    at = [row["what"] for row in rows].index("power at 5 points")
    now, before = ([row[f"{n} seeds"] for n in (3, 5)] for row in rows[at : at + 2])
    assert all(a > 1.4 * b for a, b in zip(now, before, strict=True))


def test_what_is_found_depends_on_the_difference_in_units_of_the_noise():
    found = [row["5 seeds"] for row in statistics.power(400) if " x noise" in row["what"]]
    assert found == sorted(found)
    assert found[0] < 0.2
    assert found[-1] > 0.95


@pytest.mark.parametrize("world", statistics.LOOKED)
def test_declared_looks_keep_their_error_and_others_do_not(world):
    rows = {row["what"]: row for row in statistics.until_decided(world, 300)}
    false, found = "false better or worse, any row", "found at 3 points"
    declared = rows[f"declared looks: {false}"]["share"]
    assert declared <= 0.05 + 0.038  # three standard errors of 300
    assert rows[f"looks without correction: {false}"]["share"] > declared
    assert rows[f"declared looks: {found}"]["share"] > rows[f"ten seeds: {found}"]["share"] - 0.02
    assert rows[f"declared looks: {found}"]["seeds of the cell"] < 20


def test_answers_to_sweeps_seldom_call_a_value_worse_that_is_not():
    rows = {(row["world"], row["what"]): row["5 seeds"] for row in statistics.sweeps(150, (5,))}
    for world, equal in (("sweep", 0.05), ("sweep, graded noise", 0.09)):  # as statistics.md says
        assert rows[world, "a value worse where all are equal"] <= equal + 0.07  # three standard errors of 150
        assert rows[world, "a value of the plateau worse"] <= 0.05 + 0.053
    assert rows["sweep", "steps found of three (share)"] > 0.8


def test_cells_without_a_common_letter_differ():
    by_world = {}
    for row in statistics.groups(400, (3, 5)):
        by_world.setdefault(row["world"], {})[row["what"]] = row["3 seeds"], row["5 seeds"]
    assert len(by_world) == 5
    for rows in by_world.values():
        assert max(rows["equal cells without a common letter"]) <= 0.05 + 0.033  # three standard errors of 400 studies
        assert rows["cells 5 points apart without one"][1] > 0.97
        assert rows.get("studies without an interval", (0, 0)) == (0, 0)


def test_fields_without_an_effect_get_no_share():
    rows = by_what(statistics.importances(60, (5,)))
    assert max(rows["a share in a grid of noise"]) <= 0.05 + 0.084  # three standard errors of 60 studies
    assert max(rows["a share of a field drawn along"]) <= 0.05 + 0.084
    assert max(rows["shares above 100 %"]) == 0
