"""The choice of the best cell: by the objective, among cells of the same data, partition and protocol; its export."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fpl_tune import config, methods
from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.choice import best, choose, choose_finished, common_seeds
from fpl_tune.study.cells import Cell
from fpl_tune.study.export import export
from fpl_tune.study.grid import expand
from fpl_tune.study.results import Status, make_result
from fpl_tune.study.store import Store

from ..conftest import Compose, MakeStore, there
from ..conftest import start_study as run_study
from ..report.conftest import amend, findings_of

TWO_SETS = "axes: {data.domains: [[clipart], [sketch]], method: {n_ctx: [2, 4]}}\nseeds: 2\n"


def n_ctx(cell: Cell) -> int:
    return methods.as_dict(cell.run.method)["n_ctx"]


def level(cell: Cell) -> float:
    """Clipart is easy. There, 2 tokens are a little better; on sketch, 4 are much better."""
    few = n_ctx(cell) == 2
    return (0.92 if few else 0.9) if cell.run.data.domains == ["clipart"] else (0.3 if few else 0.5)


def test_over_two_data_sets_the_mean_over_sets_chooses_not_the_easiest_set(make_store: MakeStore) -> None:
    store = make_store(body=TWO_SETS, level=level)
    found = best(store.table())
    assert {n_ctx(cell) for cell in found.cells} == {4}
    assert [cell.run.data.domains for cell in found.cells] == [["clipart"], ["sketch"]]
    val = pd.DataFrame(store.table().summary(metric="val/acc_mean")).set_index("cell")["mean"]
    test = pd.DataFrame(store.table().summary()).set_index("cell")["mean"]
    ids = [cell.id for cell in found.cells]
    assert found.value == pytest.approx(val[ids].mean())
    assert found.test == pytest.approx(test[ids].mean())
    assert "over 2 settings" in found.by
    assert findings_of(store).chosen == ids


def test_a_configuration_that_lacks_a_data_set_is_not_chosen(make_store: MakeStore) -> None:
    body = TWO_SETS.replace("[2, 4]", "[2, 4, 8]")
    kept = make_store(
        body=body,
        level=lambda cell: 0.99 if n_ctx(cell) == 8 else level(cell),
        fill=lambda cell, seed: n_ctx(cell) != 8 or cell.run.data.domains == ["clipart"],
    )
    assert {n_ctx(cell) for cell in best(kept.table()).cells} == {4}


def test_settings_without_a_common_configuration_have_a_best_cell_each(make_store: MakeStore) -> None:
    store = make_store(body=TWO_SETS.replace("[2, 4]", "[2, 4, 8, 16]"), level=lambda cell: 0.05 * n_ctx(cell))
    cells = [cell for cell in store.cells() if (n_ctx(cell) > 4) == (cell.run.data.domains == ["sketch"])]
    choice = there(choose(map(store.row, cells), "final", store.study()))
    assert [n_ctx(cell) for cell in choice.cells] == [4, 16]
    assert "in each of 2 settings" in choice.by


MOMENTUM = "axes: {optim: {momentum: [0, 0.5]}}\nseeds: 3\n"


def _better_on_seed_4(make_store: MakeStore) -> Store:
    """momentum=0.5 is better on seeds 1 to 3; momentum=0 alone has run on seed 4 too so far."""
    store = make_store(body=MOMENTUM, level=lambda cell: 0.7 + 0.05 * cell.number)
    cell = store.cells()[0]
    result = there(store.result(cell, 3))
    rules = {name: {**rule, "val/acc_mean": 0.99} for name, rule in result.rules.items()}
    store.put(cell, 4, replace(result, rules=rules))
    return make_store(["seeds=4"], body=MOMENTUM, fill=lambda cell, seed: False)


def test_more_seeds_of_one_cell_do_not_change_the_winner(make_store: MakeStore) -> None:
    store = _better_on_seed_4(make_store)
    assert [row["status"] for row in store.table().summary()] == ["done", "queued"]
    assert [row["n"] for row in store.table().summary()] == [4, 3]
    found = best(store.table())
    assert (found.label, found.seeds, found.tested) == ("momentum=0.5", (1, 2, 3), (1, 2, 3))
    assert found.by.endswith(", compared on seeds 1, 2, 3, which all cells have")
    assert store.table().frame().drop_duplicates("cell")["seeds"].tolist() == [4, 3]
    even = best(make_store(body=MOMENTUM, name="even").table())
    assert even.by == "highest mean validation accuracy"


def test_the_best_cell_is_chosen_where_it_alone_has_more_seeds(make_store: MakeStore) -> None:
    store = make_store(
        body="axes: {optim.momentum: [0, 0.5]}\nseeds: 3\n", fill=lambda cell, seed: cell.number or seed < 3
    )
    choice = best(store.table())
    assert (choice.label, choice.seeds, choice.tested) == ("momentum=0.5", (1, 2), (1, 2, 3))


@pytest.mark.parametrize(
    ("seeds", "common"),
    [
        ({}, []),
        ({"a": [1, 2, 3], "b": [2, 3, 4]}, [2, 3]),
        ({"a": [1, 2], "b": [1, 2], "c": [5]}, [1, 2]),
        ({"a": [1], "b": [2]}, [1]),
        ({"a": [1], "b": []}, [1]),
    ],
)
def test_seeds_that_cells_have_in_common(seeds: dict[str, list[int]], common: list[int]) -> None:
    assert common_seeds(seeds) == common


def test_a_cell_with_a_failed_seed_is_not_chosen(make_store: MakeStore) -> None:
    store = make_store(body=MOMENTUM)
    cell = store.cells()[1]
    result = there(store.result(cell, 2))
    store.put(cell, 2, replace(result, status=Status.DIVERGED, rules={}, rounds=0, records=list))
    assert best(store.table()).label == "momentum=0"


@pytest.mark.parametrize("axis", ["protocol: {rounds: [1, 2]}", "data: {shots: [2, 4]}", "partition: {alpha: [1, 2]}"])
def test_nothing_is_chosen_where_no_two_cells_compare(make_store: MakeStore, axis: str) -> None:
    store = make_store(body=f"axes: {{{axis}}}\nseeds: 1\n")
    with pytest.raises(ConfigError, match="no two finished cells of toy share them"):
        best(store.table())
    assert findings_of(store).best is None


def test_validation_chooses_the_round_too_and_no_rule_that_reads_the_test_set_does(make_store: MakeStore) -> None:
    """The best validation round of one cell, the last round of the other."""
    store = make_store(body="axes: {method: {n_ctx: [2, 4]}}\nseeds: 2\n", level=lambda cell: 0.5)
    early, late = store.cells()
    for seed in (1, 2):
        for cell, peaks in ((early, (0.9, 0.1)), (late, (0.1, 0.6))):
            history = store.history(cell, seed)
            history[1]["val/acc_mean"], history[-1]["val/acc_mean"] = peaks
            store.put(cell, seed, make_result("done", history, split_hash=f"split{seed}"))
    rules = ("final", "best_val", "best_test", "mean_last5")
    found = {rule: there(choose(store.table().rows.values(), rule, store.study())).cell.label for rule in rules}
    assert found == {"final": "n_ctx=4", "best_val": "n_ctx=2", "best_test": "n_ctx=4", "mean_last5": "n_ctx=4"}


def test_a_field_that_a_search_tunes_is_no_setting(make_store: MakeStore) -> None:
    store = make_store(body="axes: {protocol: {epochs: [1, 2, 5]}}\nseeds: 1\n")
    trials = [replace(row, cell=replace(row.cell, role="trial")) for row in store.table().rows.values()]
    choice = there(choose(trials, "final", store.study().model_copy(update={"axes": {}})))
    assert choice.cell.label == "epochs=5"
    assert len(there(choose(trials, "final", store.study())).cells) == 3, "an axis is one"


SEARCHED = "axes: {method: {n_ctx: [2, 4, 8]}}\nseeds: 2\nsearch: {sampler: random, objectives: [%s]}\n"


@pytest.mark.parametrize(
    ("objective", "by", "label"),
    [
        ("val/acc_mean", "highest mean validation accuracy", "n_ctx=8"),
        ("val/ece", "lowest mean val/ece", "n_ctx=4"),
        ("val/acc_min", "highest mean val/acc_min", "n_ctx=2"),
        ("comm/total_bytes", "lowest mean comm/total_bytes", "n_ctx=2"),
        ("time/seconds", "lowest mean time/seconds", "n_ctx=2"),
    ],
)
def test_a_study_chooses_by_the_objective_of_its_search(
    make_store: MakeStore, objective: str, by: str, label: str
) -> None:
    store = make_store(body=SEARCHED % objective, name=objective.replace("/", "-"))
    amend(store, val__ece=lambda cell: abs(n_ctx(cell) - 4) / 10, val__acc_min=lambda cell: 1 / n_ctx(cell),
          comm__up_bytes=lambda cell: 1000.0 * n_ctx(cell), time__seconds=lambda cell: 1.0 * n_ctx(cell))  # fmt: skip
    for cell in store.cells():  # a result holds the totals of its last record
        for seed in (1, 2):
            run = there(store.result(cell, seed))
            store.put(cell, seed, replace(run, costs={**run.costs, "time/seconds": 1.0 * n_ctx(cell)}))
    found = best(store.table())
    assert (found.by, found.label) == (by, label)
    assert findings_of(store).best == found.cell


def test_of_several_objectives_no_cell_is_best_but_there_is_a_front(make_store: MakeStore) -> None:
    body = SEARCHED % "val/acc_mean, comm/total_bytes"
    store = make_store(body=body, level=lambda cell: 0.5 + 0.1 * (cell.number % 2))
    amend(store, comm__up_bytes=lambda cell: 1000.0 * n_ctx(cell))  # 8 tokens are no better than 2, and cost more
    front = choose_finished(store.table())
    assert [cell.label for cell in front.cells] == ["n_ctx=4", "n_ctx=2"]
    assert front.by == "2 of 3 trials are on the front of val/acc_mean and comm/total_bytes"
    assert [total for _, total in front.values] == [20_000, 18_000]
    with pytest.raises(ConfigError, match="comm/total_bytes: no cell is best") as refused:
        best(store.table())
    four, two = front.cells
    assert f"On the front: {four.id} (n_ctx=4), {two.id} (n_ctx=2). Choose one of them" in str(refused.value)


@pytest.mark.parametrize("values", ["0, 0.5, 0.9", "0.9, 0.5, 0", "0.5, 0.9"])
def test_of_equal_cells_that_with_the_smaller_value_is_chosen(make_store: MakeStore, values: str) -> None:
    found = best(make_store(body=MOMENTUM.replace("0, 0.5", values), level=lambda cell: 0.5).table())
    assert found.cell.run.optim.momentum == min(map(float, values.split(",")))


def test_trials_outside_of_the_space_are_not_chosen(make_store: MakeStore) -> None:
    store = make_store(body=MOMENTUM.replace("0, 0.5", "0, 0.5, 0.9"))
    for most, label in ((0.9, "momentum=0.9"), (0.5, "momentum=0.5"), (0.0, "momentum=0")):
        trials = [replace(row, cell=replace(row.cell, role="trial", inside=row.cell.run.optim.momentum <= most))
                  for row in store.table().rows.values()]  # fmt: skip
        found = there(choose(trials, "final", store.study()))
        assert found.label == label
        assert ("outside search.space" in found.by) == (most < 0.9)


def test_best_reads_validation_only(make_store: MakeStore) -> None:
    store = make_store()
    before = best(store.table())
    assert before.cell.label == "n_ctx=8"
    assert before.tested == (1, 2, 3)
    # Reversing all test figures changes what is reported, not what is chosen.
    for cell in store.cells():
        for seed in (1, 2, 3):
            result = store.result(cell, seed)
            assert result is not None
            rules = {n: {**r, "test/acc_mean": 1 - r["test/acc_mean"]} for n, r in result.rules.items()}
            store.put(cell, seed, replace(result, rules=rules))
    again = best(store.table())
    assert again.cell.id == before.cell.id
    assert again.test == pytest.approx(1 - before.test)
    with pytest.raises(ConfigError, match="reads test metrics"):
        best(store.table(), "best_test")


def test_an_exported_cell_is_a_study_of_the_same_configuration(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {method: [promptfl, fedprox], optim.lr: [0.1]}"
    run_study(compose(body, "protocol.rounds=1"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    for cell in store.cells():
        folder = tmp_path / f"export-{cell.id}"
        names = {path.name for path in export(store, cell, folder)}
        assert names == {
            f"tiny-{cell.id}.yaml",
            "expected.csv",
            "prompts-seed1.safetensors",
            "prompts-seed2.safetensors",
            "run.yaml",
        }
        (again,) = expand(config.compose_study(str(folder / f"tiny-{cell.id}.yaml")))
        assert again.id == cell.id
        expected = pd.read_csv(folder / "expected.csv")
        assert set(expected["cell"]) == {cell.id}
        final = [there(store.result(cell, seed)) for seed in (1, 2)]
        accuracies = [result.rules["final"]["test/acc_mean"] for result in final]
        assert expected["test/acc_mean"].tolist() == pytest.approx(accuracies)
    with pytest.raises(ConfigError, match="empty folder"):
        export(store, store.cells()[0], tmp_path)


def test_prompts_of_another_seed_are_not_exported(
    compose: Compose, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_study(compose("axes: {optim.lr: [0.1]}", "protocol.rounds=1"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    (cell,) = store.cells()
    own, other = (store.seed_folder(cell, seed) / "prompts.safetensors" for seed in (1, 2))
    shutil.copyfile(other, own)
    names = {path.name for path in export(store, cell, tmp_path / "best")}
    assert {name for name in names if name.startswith("prompts")} == {"prompts-seed2.safetensors"}
    assert set(pd.read_csv(tmp_path / "best" / "expected.csv")["seed"]) == {2}
    assert caplog.messages == [
        f"{own} is damaged: it belongs to cell {cell.id}, seed=2. Run the study again to recreate the file."
    ]
