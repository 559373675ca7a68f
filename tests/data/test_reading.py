from __future__ import annotations

import threading

import pytest

from fpl_tune.data import reading
from fpl_tune.data.reading import read_in_threads
from fpl_tune.errors import EnvironmentProblem


def test_results_come_in_the_order_of_the_rows() -> None:
    found = list(read_in_threads(lambda row: row**2, [f"{i}.png" for i in range(10)], 4))
    assert found == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]


def test_an_image_whose_storage_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 0.2)
    answered = threading.Event()

    def work(row: int) -> int:
        if row == 2:
            answered.wait(60)
        return row

    try:
        with pytest.raises(EnvironmentProblem, match=r"^c\.png was not read within 0\.2 s: its storage"):
            list(read_in_threads(work, ["a.png", "b.png", "c.png"], 128))
    finally:
        answered.set()
