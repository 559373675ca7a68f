"""A small simulation: what the statistics claim is true as often as they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

TOOLS = Path(__file__).resolve().parents[3] / ".github" / "tools"
statistics = SimpleNamespace(**runpy.run_path(str(TOOLS / "bench_statistics.py")))


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
    now, before = ([row[f"{n} seeds"] for n in (3, 5)] for row in rows[2:4])
    assert all(a > 1.4 * b for a, b in zip(now, before, strict=True))


def test_fields_without_an_effect_get_no_share():
    rows = by_what(statistics.importances(60, (5,)))
    assert max(rows["a share in a grid of noise"]) <= 0.05 + 0.084  # three standard errors of 60 studies
    assert max(rows["a share of a field drawn along"]) <= 0.05 + 0.084
    assert max(rows["shares above 100 %"]) == 0
