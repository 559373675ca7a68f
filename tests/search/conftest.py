"""What the tests of searches share: drawn results of trials, and searches that are opened and driven."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.search.search import Search
from fpl_tune.study.cells import Cell
from fpl_tune.study.trial import State, Trial, legs_of


def drawn_results(value: float, *, rounds: int = 3, rises: bool = False, up: int = 10) -> Any:
    """Histories of two seeds of a cell: validation accuracy value ± 0.01, which may rise to it by rounds.

    The test figures are noise, and the two clients lie 0.02 apart.
    """
    found = {}
    for seed in (1, 2):
        val = value + 0.01 * (-1) ** seed
        history = [
            {"seed": seed, "round": r, "val/acc_mean": val * r / rounds if rises else val}
            | {"test/acc_mean": (37 * r * seed) % 10 / 10, "clients/val": [val, val + 0.02]}
            | {"comm/up_bytes": up * r, "comm/down_bytes": up * r, "time/seconds": 1.0 * r}
            for r in range(1, rounds + 1)
        ]
        found[seed] = history
    return found


def note(search: Search, cell: Cell, histories: Any, state: str = "done") -> None:
    """What the scheduler tells a search of a cell whose trial is in a state."""
    legs, rounds = legs_of([1, 2], 3, [1, 2]), len(histories[1])
    values = {rounds: 0.0} if state == "waiting" else {}
    leg = rounds - 1 if state == "waiting" else 0
    search.note(cell, Trial(State(state), legs, leg, values, (1, 2) if state == "done" else ()), histories)


@pytest.fixture
def results() -> Callable[..., Any]:
    return drawn_results


def opened_search(made: Any, folder: Path, **given: Any) -> tuple[Search, list[Cell]]:
    search = Search.plan(made, **given)
    assert search is not None
    return search, search.open(folder)


@pytest.fixture
def opened() -> Callable[..., tuple[Search, list[Cell]]]:
    """opened(made, folder): the planned search, and the cells that its journal holds."""
    return opened_search


def score(cell: Cell) -> float:
    """The validation accuracy of a cell, best at a rate of 0.05."""
    return 1 - (cell.run.optim.lr - 0.05) ** 2


@pytest.fixture
def params() -> Callable[..., list[dict[str, Any]]]:
    """params(made, folder): what a search suggests that is driven to its end, or for `most` trials, one by one."""

    def drive(
        made: Any, folder: Path, *, most: int | None = None, scored: Callable[[Cell], float] = score
    ) -> list[dict[str, Any]]:
        search, _ = opened_search(made, folder)
        for number, cell in enumerate(iter(search.request, None), 1):
            note(search, cell, drawn_results(scored(cell)))
            if number == most:
                break
        return [trial.params for trial in search.parts[0].trials()]

    return drive
