"""The choice of the best cell: by validation, among cells of the same data, partition and protocol; its export."""

from pathlib import Path

import pandas as pd
import pytest

from fpl_tune import config, methods
from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.report.facts import Facts
from fpl_tune.study.cells import Cell, expand
from fpl_tune.study.export import export
from fpl_tune.study.selection import best, choose, common_seeds
from fpl_tune.study.status import Status, cell_status
from fpl_tune.study.store import Store

from ..conftest import Compose, MakeStore, there

TWO_SETS = "axes: {data.domains: [[clipart], [sketch]], method: {n_ctx: [2, 4]}}\nseeds: 2\n"


def n_ctx(cell: Cell) -> int:
    return methods.as_dict(cell.run.method)["n_ctx"]


def level(cell: Cell) -> float:
    """Clipart is easy. There, 2 tokens are a little better; on sketch, 4 are much better."""
    few = n_ctx(cell) == 2
    return (0.92 if few else 0.9) if cell.run.data.domains == ["clipart"] else (0.3 if few else 0.5)


def test_over_two_data_sets_the_mean_over_sets_chooses_not_the_easiest_set(make_store: MakeStore) -> None:
    store = make_store(body=TWO_SETS, level=level)
    found = best(store)
    assert {n_ctx(cell) for cell in found.cells} == {4}
    assert [cell.run.data.domains for cell in found.cells] == [["clipart"], ["sketch"]]
    val = store.summary(metric="val/acc_mean").set_index("cell")["mean"]
    test = store.summary().set_index("cell")["mean"]
    ids = [cell.id for cell in found.cells]
    assert found.val == pytest.approx(val[ids].mean())
    assert found.test == pytest.approx(test[ids].mean())
    assert "over 2 settings" in found.by
    facts = Facts(store)
    assert facts.chosen == ids


def test_a_configuration_that_lacks_a_data_set_is_not_chosen(make_store: MakeStore) -> None:
    body = TWO_SETS.replace("[2, 4]", "[2, 4, 8]")
    kept = make_store(
        body=body,
        level=lambda cell: 0.99 if n_ctx(cell) == 8 else level(cell),
        fill=lambda cell, seed: n_ctx(cell) != 8 or cell.run.data.domains == ["clipart"],
    )
    assert {n_ctx(cell) for cell in best(kept).cells} == {4}


def test_settings_without_a_common_configuration_have_a_best_cell_each(make_store: MakeStore) -> None:
    store = make_store(body=TWO_SETS.replace("[2, 4]", "[2, 4, 8, 16]"), level=lambda cell: 0.05 * n_ctx(cell))
    cells = [cell for cell in store.cells() if (n_ctx(cell) > 4) == (cell.run.data.domains == ["sketch"])]
    choice = there(choose(store.rows(), cells, store.study()))
    assert [n_ctx(cell) for cell in choice.cells] == [4, 16]
    assert "in each of 2 settings" in choice.by


MOMENTUM = "axes: {optim: {momentum: [0, 0.5]}}\nseeds: 3\n"


def _better_on_seed_4(make_store: MakeStore) -> Store:
    """momentum=0.5 is better on seeds 1 to 3; momentum=0 alone was run on seed 4 too, as the page advises."""
    store = make_store(body=MOMENTUM, level=lambda cell: 0.7 + 0.05 * cell.number)
    cell = store.cells()[0]
    result = there(store.result(cell, 3))
    rules = {name: {**rule, "val/acc_mean": 0.99} for name, rule in result["rules"].items()}
    store.put(cell, 4, store.history(cell, 3), {**result, "rules": rules})
    return make_store(["seeds=4", "axes.optim.momentum=[0]"], body=MOMENTUM, fill=lambda cell, seed: False)


def test_more_seeds_of_one_cell_do_not_change_the_winner(make_store: MakeStore) -> None:
    store = _better_on_seed_4(make_store)
    assert store.summary()["status"].tolist() == ["done", "partial"]
    assert store.summary()["n"].tolist() == [4, 3]
    found = best(store)
    assert (found.label, found.seeds, found.uneven, found.tested) == ("momentum=0.5", (1, 2, 3), True, 3)
    assert found.by.endswith(", compared on seeds 1, 2, 3, which all cells have")
    assert store.frame().drop_duplicates("cell")["seeds"].tolist() == [4, 3]
    even = best(make_store(body=MOMENTUM, name="even"))
    assert (even.by, even.uneven) == ("highest mean validation accuracy", False)


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
    store.put(cell, 2, [], {**result, "status": "diverged", "rules": {}})
    assert best(store).label == "momentum=0"


@pytest.mark.parametrize("axis", ["protocol: {rounds: [1, 2]}", "data: {shots: [2, 4]}", "partition: {alpha: [1, 2]}"])
def test_nothing_is_chosen_where_no_two_cells_compare(make_store: MakeStore, axis: str) -> None:
    store = make_store(body=f"axes: {{{axis}}}\nseeds: 1\n")
    with pytest.raises(ConfigError, match="no two finished cells of toy share them"):
        best(store)
    assert Facts(store).best is None


def test_a_field_that_a_search_tunes_is_no_setting(make_store: MakeStore) -> None:
    store = make_store(body="axes: {protocol: {epochs: [1, 2, 5]}}\nseeds: 1\n")
    trials = [Cell(c.id, c.number, c.label, "trial", c.varied, c.run) for c in store.cells()]
    choice = there(choose(store.rows(), trials, store.study().model_copy(update={"axes": {}})))
    assert choice.cell.label == "epochs=5"
    assert choose(store.rows(), trials, store.study()) is None, "an axis is one"


def test_the_status_of_a_cell_is_the_worst_of_its_seeds() -> None:
    done, failed = Status.DONE, Status.FAILED
    assert cell_status([], 2) is Status.PENDING
    assert cell_status([done], 2) is Status.PARTIAL
    assert cell_status([done, done], 2) is done
    assert cell_status([done, Status.PARTIAL, Status.PRUNED], 3) is Status.PRUNED
    assert cell_status([failed, Status.DIVERGED], 2) is failed
    with pytest.raises(ValueError, match="no such"):
        Status("no such")


def test_best_reads_validation_only(make_store: MakeStore) -> None:
    store = make_store()
    chosen = best(store)
    assert chosen.cell.label == "n_ctx=8"
    assert chosen.tested == 3
    # Reversing all test figures changes what is reported, not what is chosen.
    for cell in store.cells():
        for seed in (1, 2, 3):
            result = store.result(cell, seed)
            assert result is not None
            rules = {n: {**r, "test/acc_mean": 1 - r["test/acc_mean"]} for n, r in result["rules"].items()}
            store.put(cell, seed, store.history(cell, seed), {**result, "rules": rules})
    again = best(store)
    assert again.cell.id == chosen.cell.id
    assert again.test == pytest.approx(1 - chosen.test)
    with pytest.raises(ConfigError, match="reads test metrics"):
        best(store, "best_test")


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
        final = [store.result(cell, seed) or {} for seed in (1, 2)]
        accuracies = [result["rules"]["final"]["test/acc_mean"] for result in final]
        assert expected.loc[expected["rule"] == "final", "test/acc_mean"].tolist() == pytest.approx(accuracies)
    with pytest.raises(ConfigError, match="empty folder"):
        export(store, store.cells()[0], tmp_path)
