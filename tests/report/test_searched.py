"""Reports of searched studies: trials named, ordered, coloured; the best of each search."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fpl_tune.report import figures, searches, tables
from fpl_tune.report.facts import LONG, Facts
from fpl_tune.report.significance import against_reference
from fpl_tune.search.search import Search
from fpl_tune.study.results import make_result

BODY = """
axes: {method: [promptfl, fedprox]}
references: [{method: zeroshot}]
seeds: 2
search: {sampler: random, trials: 6, space: {protocol.epochs: [1, 2], protocol.participation: [0.5, 1.0]}}
"""


def records(seed, level):
    """Three rounds on eight clients that rise to `level`."""
    clients = (level + 0.01 * np.random.default_rng([seed, int(1e6 * level)]).standard_normal(8)).tolist()
    figures_of = {"val/acc_mean": level, "test/acc_mean": float(np.mean(clients)), "clients/test": clients}
    costs = {"comm/up_bytes": 10, "comm/down_bytes": 20}
    return [{"seed": seed, "round": r, "time/seconds": 0.5 * r, **figures_of, **costs} for r in (1, 2, 3)]


@pytest.fixture
def searched(make_store):
    """A search over two methods, whose trials are better the larger their lr; promptfl has no μ."""
    store = make_store(body=BODY, name="search", fill=lambda cell, seed: False)
    search = Search.plan(store.spec(), store.node())
    assert search is not None
    search.open(store.folder)
    cells = [*search.references, *(made for some in iter(search.request, []) for made in some)]
    store.begin(store.node(), cells)
    for cell in cells:
        for seed in (1, 2):
            history = records(seed, 0.5 + cell.run.optim.lr)
            store.put(cell, seed, history, make_result("done", history, split_hash=f"split{seed}"))
    return Facts(store)


def test_tables_of_searches_go_from_the_best_down_and_name_trials_shortly(searched):
    table = tables.main(searched, against_reference(searched))
    names, body = table.header, [row.cells for row in table.rows]
    val = [cells[names.index("validation accuracy (%)")].text for cells in body[:-1]]
    assert val == sorted(val, reverse=True)
    labels = [cells[0].text for cells in body]
    assert labels[-1] == "zeroshot"
    assert all(len(label) <= LONG for label in labels)
    assert len(set(labels)) == len(labels)
    assert names.index("verdict") < names.index("epochs"), "accuracy first, then parameters"
    assert not {"status", "seeds"} & set(names), "the same for all cells"


def test_the_best_of_each_search_is_chosen_by_validation(searched):
    section = searches.winners(searched, against_reference(searched))
    assert section is not None
    table = section.tables[0]
    for row in table.rows:
        method, val, _, _, _, trials, found = (cell.text for cell in row.cells)
        mine = [cell for cell in searched.own if searched.part(cell) == method]
        best = max(mine, key=lambda cell: searched.table.loc[cell.id, "val"])
        assert trials == str(len(mine))
        assert val == f"{100 * searched.table.loc[best.id, 'val']:.2f}"
        assert f"lr={best.run.optim.lr:.6g}" in found
        assert method not in found
    assert {row.cells[0].text for row in table.rows} == {"promptfl", "fedprox"}


def test_points_of_a_search_are_coloured_by_where_it_was_searched(searched):
    spec = figures.slices(searched, "optim.lr")
    point = spec["layer"][0]["encoding"]
    assert point["color"]["field"] == "series"
    assert point["x"]["scale"] == {"type": "log"}, "lr is searched on a log scale"
    assert point["y"]["field"] == "validation", "a choice reads validation"
    rows = {row["number"]: row for row in searched.rows}
    for cell in searched.own:
        assert rows[searched.keys[cell.id]]["series"] == searched.part(cell)
        assert rows[searched.keys[cell.id]]["optim_lr"] == cell.run.optim.lr
        assert (
            rows[searched.keys[cell.id]]["method_mu"] is None or np.isnan(rows[searched.keys[cell.id]]["method_mu"])
        ) == ("method.mu" not in cell.varied)


def test_published_trials_are_marked(searched):
    rows = tables.main(searched, against_reference(searched)).rows
    marked = {row.number for row in rows if row.cells[0].text.endswith("(published)")}
    assert marked == {searched.keys[cell.id] for cell in searched.own if cell.id in searched.published} != set()


def test_history_is_the_best_so_far_of_each_part(searched):
    best: dict[str, float] = {}
    line = figures.history(searched)["layer"][1]["data"]["values"]
    trials = sorted(searched.own, key=lambda cell: cell.number)
    for row, cell in zip(line, trials, strict=True):
        best[searched.part(cell)] = max(best.get(searched.part(cell), 0), searched.table.loc[cell.id, "val"])
        assert (row["trial"], row["validation"]) == (cell.number, best[searched.part(cell)])


def test_lines_of_parallel_coordinates_meet_an_axis_where_the_value_lies(searched):
    rows = figures.parallel(searched)["data"]["values"]
    rates = {searched.keys[cell.id]: math.log(cell.run.optim.lr) for cell in searched.own}
    low, high = min(rates.values()), max(rates.values())
    places = {row["number"]: row["place"] for row in rows if row["axis"] == "lr"}
    assert places == pytest.approx({number: (rate - low) / (high - low) for number, rate in rates.items()})


def test_pairs_that_no_cell_has_are_not_drawn(searched):
    section = searches.pairs(searched, against_reference(searched))
    assert section is not None
    drawn_anew = {"mu", "lr"}  # in every trial
    assert not drawn_anew & set(section.title.split(" and "))
    assert all(row["validation"] > 0 for spec, _ in section.charts.values() for row in spec["data"]["values"])


def test_partial_dependence_is_the_mean_over_all_else_and_needs_enough_trials(searched, monkeypatch):
    found = searches.importance(searched).assign(share=0.5)
    assert searches.dependences(searched, found) == {}
    monkeypatch.setattr(searches, "MODEL_FROM", 6)
    curves = searches.dependences(searched, found, most=20)
    cells = [c for c in searched.own if c.varied["method"] == "promptfl" and searched.table.loc[c.id, "n"]]
    for epochs, mean in zip(*(curves["promptfl", "protocol.epochs"][n] for n in ("place", "mean")), strict=True):
        mine = [searched.table.loc[c.id, "val"] for c in cells if c.varied["protocol.epochs"] == epochs]
        assert mean == pytest.approx(np.mean(mine))
    curve = curves["promptfl", "protocol.epochs"]
    drawn = figures.dependence(curve, "protocol.epochs", searched)["data"]["values"]
    assert [[row["x"], row["mean"]] for row in drawn] == curve[["place", "mean"]].to_numpy().tolist()
    monkeypatch.setattr(searches, "importance", lambda facts: found)
    section = searches.matters(searched, against_reference(searched))
    assert section is not None
    assert [name for name in section.charts if name != "importance"] == [f"dependence_{i}" for i in (1, 2, 3, 4)]
