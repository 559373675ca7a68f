"""How numbers, fields and times are written."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fpl_tune.core import formatting as f

SHARE, COUNT, BYTES = "test/acc_mean", "train/loss", "comm/total_bytes"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda: f.listed("seed", [1]), "seed 1"),
        (lambda: f.listed("seed", [1, 2]), "seeds 1, 2"),
        (lambda: f.listed("seed", []), "seeds "),
        (lambda: f.counted(0, "cell"), "0 cells"),
        (lambda: f.counted(1, "cell"), "1 cell"),
        (lambda: f.counted(1000, "cell"), "1,000 cells"),
        (lambda: f.counted(1, "class", "classes"), "1 class"),
        (lambda: f.counted(2.0, "class", "classes"), "2 classes"),
        (lambda: f.some(""), ""),
        (lambda: f.some("abcdefgh"), "a, b, c, d, e, f, g, h"),
        (lambda: f.some("abcdefghi"), "a, b, c, d, e, f, g, h and 1 more"),
        (lambda: f.some(range(1234), 3), "0, 1, 2 and 1,231 more"),
        (lambda: f.some(["a, lr=0.1", "b", "c"], 2), "a, lr=0.1; b and 1 more"),
        (lambda: f.size(0), "0 bytes"),
        (lambda: f.size(999), "999 bytes"),
        (lambda: f.size(81920), "81.9 kB"),
        (lambda: f.size(2.5e9), "2.5 GB"),
        (lambda: f.duration(math.nan), "–"),
        (lambda: f.duration(0.04), "0.0 s"),
        (lambda: f.duration(59.9), "59.9 s"),
        (lambda: f.duration(59.97), "1 min 00 s"),
        (lambda: f.duration(3599.9), "1 h 00 min"),
        (lambda: f.duration(3720), "1 h 02 min"),
        (lambda: f.duration(60.0), "1 min 00 s"),
        (lambda: f.duration(59 * 60 + 59), "59 min 59 s"),
        (lambda: f.duration(3600), "1 h 00 min"),
        (lambda: f.time_left(0.2), "about 1 s left"),
        (lambda: f.time_left(59.4), "about 59 s left"),
        (lambda: f.time_left(60), "about 1 min 00 s left"),
        (lambda: f.left(None), "starting"),
        (lambda: f.left(30.0), "about 30 s left"),
        (lambda: f.left(30.0, ending=True, again=" (again)"), "ending after the round (again)"),
        (lambda: f.quantity(SHARE), "test accuracy (%, mean over clients)"),
        (lambda: f.quantity(SHARE, ""), "test accuracy (%)"),
        (lambda: f.words(SHARE), "test accuracy"),
        (lambda: f.quantity(BYTES), "communication (MB)"),
        (lambda: f.quantity("time/test_seconds"), "time of testing (s)"),
        (lambda: f.unit_after(BYTES), " MB"),
        (lambda: f.unit_after(COUNT), ""),
        (lambda: f.unit_of_gap(SHARE), " points"),
        (lambda: f.unit_of_gap("time/seconds"), " s"),
        (lambda: f.scaled(0.25, SHARE), 25.0),
        (lambda: f.scaled(250_000.0, "cost/learned"), 0.25),
        (lambda: f.quantity("test/acc_min"), "test accuracy, min (%)"),
        (lambda: f.quantity(COUNT), "train loss"),
        (lambda: f.upper("two words"), "Two words"),
        (lambda: f.upper(""), ""),
        (lambda: f.short("method.lam"), "lam"),
        (lambda: f.short("method"), "method"),
        (lambda: f.axis_name("lam"), "λ (lam)"),
        (lambda: f.axis_name("n_ctx"), "n_ctx"),
        (lambda: f.symbol("mu"), "μ"),
        (lambda: f.symbol("method.mu"), "method.mu"),
        (lambda: f.points(1.234), "1.23"),
        (lambda: f.points(1.234, 0.5, 1), "1.2 ± 0.5"),
        (lambda: f.points(math.nan, 0.5), "–"),
        (lambda: f.figure(0.12345, SHARE), "12.35"),
        (lambda: f.figure(0.12345, SHARE, 1), "12.3"),
        (lambda: f.figure(1234.5678, COUNT), "1235"),
        (lambda: f.figure(409_600.4, COUNT), "409,600"),
        (lambda: f.figure(409_600.0, BYTES), "0.4096"),
        (lambda: f.signed(-1_500_000.0, BYTES), "-1.5"),
        (lambda: f.figure(None, SHARE), "–"),
        (lambda: f.figure(math.nan, SHARE), "–"),
        (lambda: f.plus_minus(0.5, 0.01, SHARE), "50.00 ± 1.00"),
        (lambda: f.plus_minus(0.5, None, SHARE, 1), "50.0"),
        (lambda: f.plus_minus(0.5, math.nan, SHARE), "50.00"),
        (lambda: f.signed(0.0123, SHARE), "+1.23"),
        (lambda: f.signed(-0.0123, SHARE), "-1.23"),
        (lambda: f.signed(-0.00001, SHARE), "+0.00"),
        (lambda: f.signed(-0.0004, SHARE, 1), "+0.0"),
        (lambda: f.signed(-0.0, COUNT), "+0"),
        (lambda: f.signed(12_345, COUNT), "+12,345"),
        (lambda: f.signed(math.nan, SHARE), "–"),
        (lambda: f.interval({"low": -0.01, "high": 0.02}, SHARE), "-1.00 to +2.00"),
        (lambda: f.interval({"low": -0.01, "high": 0.02}, SHARE, 1), "-1.0 to +2.0"),
        (lambda: f.interval({"low": math.nan, "high": math.nan}, SHARE), "–"),
        (lambda: f.gap(0.0123, SHARE), "+1.23 points"),
        (lambda: f.gap(-1_500_000.0, BYTES), "-1.5 MB"),
        (lambda: f.with_unit(0.9761, SHARE, 0.0011, 1), "97.6 ± 0.1 %"),
        (lambda: f.with_unit(12_345, COUNT), "12,345"),
        (lambda: f.megabytes(1_234_567), "1.23"),
        (lambda: f.megabytes(999.4e6), "999"),
        (lambda: f.megabytes(12_345.6e6), "12346"),
        (lambda: f.megabytes(math.nan), "–"),
    ],
)  # fmt: skip
def test_numbers_and_names_as_people_read_them(written: Callable[[], str], text: str) -> None:
    assert written() == text


def test_fields_have_their_short_names_unless_two_are_alike() -> None:
    assert f.titles(["method.lam", "optim.lr"]) == {"method.lam": "lam", "optim.lr": "lr"}
    assert f.titles(["method.lr", "optim.lr"]) == {"method.lr": "method.lr", "optim.lr": "optim.lr"}
    assert f.titles(["method.seed"], taken=["seed"]) == {"method.seed": "method.seed"}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.float32(0.5), 0.5),
        (torch.tensor(3), 3),
        ({1: (math.inf, "a")}, {"1": [None, "a"]}),
        ([True, None, 2], [True, None, 2]),
        (1j, "1j"),
    ],
)
def test_data_as_json_holds_it(value: Any, data: Any) -> None:
    assert f.plain(value) == data


def test_an_axis_is_numeric_where_all_of_its_values_are_numbers() -> None:
    assert f.numeric([1, 2.5, None, math.nan])
    assert not any(map(f.numeric, ([], [None], [1, "2"], [1, True])))
