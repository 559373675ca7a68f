"""Variance components, data sets, selection, overtuning and explanations."""

# The stubs of pandas and scipy do not know the types of selected rows and of test results.
# pyright: reportArgumentType=false

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fpl_tune import analysis
from fpl_tune.analysis import selection
from fpl_tune.analysis.variance import CONFOUNDED


def long(values, **names):
    """A frame of an array, one column per axis."""
    places = np.indices(values.shape).reshape(values.ndim, -1)
    return pd.DataFrame({**{name: [labels[i] for i in place] for (name, labels), place in
                            zip(names.items(), places, strict=True)}, "value": values.ravel()})  # fmt: skip


def simulated(rng, cells=12, seeds=24, clients=10, partitions=None):
    groups = np.arange(seeds) if partitions is None else np.repeat(np.arange(partitions), seeds // partitions)
    values = rng.normal(0, 0.04, (cells, 1, 1)) + rng.normal(0, 0.02, (1, seeds, 1))
    values = values + rng.normal(0, 0.01, (cells, seeds, 1)) + rng.normal(0, 0.015, (cells, seeds, clients))
    client = rng.normal(0, 0.06, (len(set(groups)), clients))
    part = rng.normal(0, 0.03, len(set(groups)))
    values = values + client[groups][None] + (part[groups][None, :, None] if partitions else 0)
    frame = long(values, cell=[f"c{i}" for i in range(cells)], seed=range(seeds), client=range(clients))
    return frame.assign(split=[f"p{groups[s]}" for s in frame["seed"]])


def test_components_are_those_that_were_simulated():
    rng = np.random.default_rng(0)
    found = pd.concat([analysis.variance_split(simulated(rng))["sd"] for _ in range(30)], axis=1)
    means = (found**2).mean(axis=1) ** 0.5
    expected = {"hyper-parameters": 0.04, CONFOUNDED: 0.02, "hyper-parameters x seed": 0.01, "client": 0.06,
                "residual": 0.015}  # fmt: skip
    assert means.to_dict() == pytest.approx(expected, rel=0.08)


def test_partitions_that_several_seeds_share_are_a_component():
    rng = np.random.default_rng(1)
    found = pd.concat([analysis.variance_split(simulated(rng, partitions=8))["sd"] for _ in range(40)], axis=1)
    means = (found**2).mean(axis=1) ** 0.5
    assert means["partition"] == pytest.approx(0.03, rel=0.2)
    assert means["seed"] == pytest.approx(0.02, rel=0.1)
    one = analysis.variance_split(simulated(rng, partitions=1))
    assert "one partition" in one.attrs["note"]
    assert one["share"].sum() == pytest.approx(1)


def test_a_split_says_what_it_leaves_out():
    frame = simulated(np.random.default_rng(2), cells=4, seeds=6)
    short = frame[~((frame["cell"] == "c0") & (frame["seed"] == 3))]
    assert "1 of 4 cells left out" in analysis.variance_split(short).attrs["note"]
    alone = frame[frame["client"] == 0]
    found = analysis.variance_split(alone)
    assert math.isnan(found.loc["client", "sd"])
    assert "1 client" in found.attrs["note"]
    assert "too little to split" in analysis.variance_split(frame[frame["seed"] == 0]).attrs["note"]
    assert len(analysis.variance_split(frame[frame["cell"] == "c0"])) == 0


SETS = ["s1", "s2", "s3", "s4", "s5", "s6"]


def on_sets(levels, rng, seeds=3, noise=0.001):
    values = np.array(list(levels.values()))[:, :, None] + rng.normal(0, noise, (len(levels), len(SETS), seeds))
    return long(values, cell=list(levels), dataset=SETS, seed=range(seeds))


def test_mean_ranks_and_critical_difference():
    base = np.linspace(0.3, 0.9, 6)
    frame = on_sets({"best": base + 0.1, "middle": base + 0.05, "worst": base}, np.random.default_rng(0))
    found = analysis.mean_ranks(frame)
    assert found.ranks.to_dict() == {"best": 1, "middle": 2, "worst": 3}
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 6)), abs=0.002)  # Demsar, Table 5
    assert found.p == pytest.approx(stats.friedmanchisquare([3] * 6, [2] * 6, [1] * 6).pvalue)
    assert found.groups == [["best", "middle"], ["middle", "worst"]]
    lost = analysis.mean_ranks(frame[~((frame["cell"] == "worst") & (frame["dataset"] == "s1"))])
    assert "left out: worst" in lost.note
    assert math.isnan(analysis.mean_ranks(frame[frame["dataset"] == "s1"]).p)


def cells_of(**values):
    rows = [{"cell": c, "seed": s, "value": v} for c, vs in values.items() for s, v in enumerate(vs)]
    return pd.DataFrame(rows)


def test_rules_of_selection():
    stable = {f"s{i}": 0.70 + 0.001 * i + np.array([0.001, 0, -0.001, 0.0005]) * (-1) ** i for i in range(6)}
    frame = cells_of(**stable, wild=np.array([0.9, 0.6, 0.85, 0.5]))
    assert analysis.select(frame, "mean") == "wild"
    assert analysis.select(frame, "lower_bound") == "s5"
    calm = cells_of(cheap=[0.70, 0.72, 0.71], dear=[0.72, 0.71, 0.70], bad=[0.5, 0.52, 0.51])
    assert analysis.select(calm, preferred=["bad", "dear"]) == "dear"
    assert analysis.select(calm) == "cheap"
    single = cells_of(a=[0.5], b=[0.6])
    assert [analysis.select(single, rule) for rule in analysis.RULES] == ["b"] * 2
    with pytest.raises(ValueError, match="one of mean"):
        analysis.select(calm, "median")
    with pytest.raises(ValueError, match="No cell"):
        analysis.select(cells_of(a=[math.nan]))


def test_errors_of_cells_are_moderated_and_free_of_shared_seeds():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (200, 3))
    values = noise + rng.normal(0, 1, 3)
    errors = analysis.scores(long(values, cell=[str(i) for i in range(200)], seed=range(3)))["error"]
    assert errors.mean() == pytest.approx(0.01 / math.sqrt(3), rel=0.05)
    own = noise.std(axis=1, ddof=1)
    assert errors.std() / errors.mean() < 0.5 * own.std() / own.mean()
    prior, typical = selection._prior(0.5 * stats.chi2.rvs(4, size=4000, random_state=1) / 4, np.full(4000, 4.0))
    assert prior > 50
    assert typical == pytest.approx(0.5, rel=0.05)


def test_overtuning_is_what_the_validation_winner_loses():
    val = cells_of(a=[0.9, 0.8, 0.85], b=[0.7, 0.7, 0.7], c=[0.1, 0.1, 0.1])
    test = cells_of(a=[0.6, 0.6, 0.6], b=[0.7, 0.7, 0.7], c=[0.2, 0.2, 0.2])
    found = analysis.overtuning(val, test)
    assert (found.winner, found.best, found.cells, found.seeds) == ("a", "b", 3, 3)
    assert found.loss == pytest.approx(0.1)
    assert found.corrected == pytest.approx(0.6)
    one = analysis.overtuning(val[val["seed"] == 0], test)
    assert math.isnan(one.corrected)
    assert one.note == "1 seed: no correction"
    short = analysis.overtuning(val, test[~((test["cell"] == "a") & (test["seed"] == 1))])
    assert short.winner == "b"
    assert "1 of 3 cells left out" in short.note
    with pytest.raises(ValueError, match="No cell"):
        analysis.overtuning(val, test.assign(cell="x" + test["cell"]))


def test_the_corrected_value_is_free_of_selection_s_optimism():
    rng = np.random.default_rng(0)
    claimed, corrected = [], []
    for _ in range(300):
        shared = rng.normal(0.7, 0.02, (15, 4))
        frames = [long(shared, cell=[str(i) for i in range(15)], seed=range(4)) for _ in range(2)]
        found = analysis.overtuning(*frames)
        claimed.append(found.test)
        corrected.append(found.corrected)
    assert np.mean(claimed) > 0.71
    assert np.mean(corrected) == pytest.approx(0.7, abs=0.003)


GRID = pd.DataFrame(
    [{"a": a, "b": b, "c": c, "value": a + 2 * b + a * b} for a in (-1, 0, 1) for b in (-1, 1) for c in (0, 1)]
)


def test_shares_of_a_grid_are_exact():
    total = 2 / 3 + 4 + 2 / 3
    noisy = analysis.one_way(GRID, list("abc"), noise=0.5).set_index("field")
    assert noisy["share"].sum() < 1
    assert noisy.loc["c", "note"] == "its share is not told from noise"
    found = analysis.one_way(GRID, list("abc")).set_index("field")
    assert found["share"].to_dict() == pytest.approx({"a": 2 / 3 / total, "b": 4 / total, "c": 0.0})
    assert set(found["kind"]) == {"exact"}


def test_nothing_is_explained_where_nothing_varies_or_too_few_ran():
    flat = analysis.one_way(GRID.assign(value=0.1 + 0.2 + 1e-17), list("abc"))
    assert flat["share"].isna().all()
    assert set(flat["note"]) == {"the metric does not vary"}
    almost = GRID.assign(value=0.3 + 1e-16 * np.arange(len(GRID)))
    assert analysis.one_way(almost, ["a", "b", "c"])["share"].isna().all()
    rng = np.random.default_rng(0)
    drawn = pd.DataFrame({"x": rng.random(6), "value": rng.random(6)})
    (row,) = analysis.one_way(drawn, ["x"]).assign(x=0).to_dict("records")
    assert "at least 10" in row["note"]
    drawn["y"] = rng.random(6)
    assert set(analysis.one_way(drawn, ["x", "y"])["note"]) == {"6 cells are too few, at least 10 are needed"}
    assert math.isnan(analysis.omega_squared([0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.3, 0.1 + 0.2]))


def test_partial_dependence_is_the_mean_by_seed():
    rows = [{"cell": f"{x}{y}", "seed": s, "x": x, "y": y, "value": 0.1 * x + 0.01 * s + y}
            for x in (1, 2, 3) for y in (0, 1) for s in (1, 2, 3)]  # fmt: skip
    found = analysis.partial_dependence(pd.DataFrame(rows), "x")
    assert found["place"].tolist() == [1, 2, 3]
    assert found["mean"].tolist() == pytest.approx([0.62, 0.72, 0.82])
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    assert (found["high"] - found["mean"]).tolist() == pytest.approx([half] * 3)
    one = analysis.partial_dependence(pd.DataFrame(rows)[lambda f: f["seed"] == 1], "x")
    assert one["low"].isna().all()


def test_omega_squared_by_hand():
    """Two groups (1, 3) and (5, 7): between 16, within 4 with 2 degrees of freedom, total 20."""
    assert analysis.omega_squared(["a", "a", "b", "b"], [1, 3, 5, 7]) == pytest.approx((16 - 1 * 2) / (20 + 2))
    assert math.isnan(analysis.omega_squared(["a", "a"], [1, 2]))
    assert math.isnan(analysis.omega_squared(["a", "b"], [1, 2]))
    assert math.isnan(analysis.omega_squared(["a", "a", "b"], [1, 1, 1]))
