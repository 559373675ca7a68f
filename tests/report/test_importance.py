"""Importance of searched fields: what decides is first, and too few trials give none."""

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fpl_tune.report.importance import LEAST, importance
from fpl_tune.search.space import Param, Space
from fpl_tune.study.cells import Cell

SPACE = Space(
    (
        Param("optim.lr", FloatDistribution(1e-4, 1.0, log=True)),
        Param("method.rank", IntDistribution(1, 16)),
        Param("method.kind", CategoricalDistribution(["a", "b"])),
        Param("method.extra", FloatDistribution(0.0, 1.0), {"method.kind": ["b"]}),
    ),
    (),
)


def drawn(number, value, seed=0):
    """Trials at random points of the space, and their values."""
    rng, cells, values = np.random.default_rng(seed), [], {}
    for i in range(number):
        varied = {"optim.lr": 10 ** rng.uniform(-4, 0), "method.rank": int(rng.integers(1, 17)),
                  "method.kind": str(rng.choice(["a", "b"]))}  # fmt: skip
        if varied["method.kind"] == "b":
            varied["method.extra"] = rng.random()
        cells.append(Cell(f"{i:016x}", i, str(i), "trial", varied, None))  # type: ignore[arg-type]
        values[cells[-1].id] = value(varied) + rng.normal(0, 0.001)
    return cells, values


@pytest.mark.parametrize("higher", [True, False])
def test_the_field_that_decides_is_first_and_told_from_chance(higher):
    sign = 1 if higher else -1
    optuna.logging.set_verbosity(optuna.logging.INFO)
    cells, values = drawn(60, lambda varied: -sign * abs(np.log10(varied["optim.lr"]) + 2))
    found = importance(cells, values, SPACE, higher=higher)
    assert found.index[0] == "optim.lr"
    assert found.loc["optim.lr", "ped_anova"] > found.loc["optim.lr", "chance"]
    assert found.loc["optim.lr", "fanova"] > 0.9
    assert found[["ped_anova", "fanova"]].sum().tolist() == pytest.approx([1, 1])
    assert optuna.logging.get_verbosity() == optuna.logging.INFO, "as before"
    assert "method.extra" not in found.index, "trials of the other kind do not have it"


def test_fields_of_noise_seldom_exceed_chance():
    told = 0
    for seed in range(8):
        found = importance(*drawn(40, lambda varied: 0.5, seed), SPACE)
        told += int((found["ped_anova"] > found["chance"]).sum())
    assert told <= 4  # of 24 fields; 1.2 are expected


@pytest.mark.parametrize("number", [0, 1, LEAST - 1])
def test_too_few_trials_say_nothing(number):
    assert importance(*drawn(number, lambda varied: varied["optim.lr"]), SPACE).empty


def test_values_that_do_not_vary_and_missing_ones_say_nothing():
    cells, values = drawn(40, lambda varied: 0.5)
    assert importance(cells, dict.fromkeys(values, 0.5), SPACE).empty
    assert importance(cells, {}, SPACE).empty
