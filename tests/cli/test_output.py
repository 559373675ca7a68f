"""How figures are printed, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

from fpl_tune.cli import output


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (12.34, "12.3 s"), (185, "3 min 05 s"), (3720, "1 h 02 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (81920, "81.9 kB"), (2.5e9, "2.5 GB")])
def test_size(count: float, text: str) -> None:
    assert output.size(count) == text


def test_percent() -> None:
    assert output.percent(0.8734, 0.0042) == "87.3 ± 0.4"
    assert output.percent(0.8734, math.nan) == "87.3"
    assert output.percent(math.nan) == "–"


ROWS = [{"cell": "lam=0", "mean": 0.5, "n": np.int64(3)}, {"cell": "a,b", "mean": math.nan, "n": None}]


def test_json_is_valid_and_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, "json")
    assert json.loads(capsys.readouterr().out) == [
        {"cell": "lam=0", "mean": 0.5, "n": 3},
        {"cell": "a,b", "mean": None, "n": None},
    ]


def test_csv_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [r["cell"] for r in rows] == ["lam=0", "a,b"]
    assert [r["mean"] for r in rows] == ["0.5", ""]


def test_table_without_terminal_is_plain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output.emit(ROWS, "table", title="Title", best=0)
    text = capsys.readouterr().out
    assert "\x1b[" not in text
    assert "Title" in text
    assert "lam=0" in text
