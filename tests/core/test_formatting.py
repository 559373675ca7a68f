"""Amounts in words, and that every place where people read them uses these words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fpl_tune.core.formatting import counted, duration, size

PACKAGE = Path(__file__).resolve().parents[2] / "fpl_tune"


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(n, "cell") for n in (0, 1, 2, 1000)] == ["0 cells", "1 cell", "2 cells", "1,000 cells"]
    assert (counted(1, "class", "classes"), counted(2.0, "class", "classes")) == ("1 class", "2 classes")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.9, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (math.nan, "–"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (81920, "81.9 kB"), (2.5e9, "2.5 GB")])
def test_size(count: float, text: str) -> None:
    assert size(count) == text
