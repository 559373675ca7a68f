"""What the tests of searches share: drawn results of trials, and searches that are driven to their end."""

from collections.abc import Callable
from typing import Any

import pytest

from fpl_tune.config import Study
from fpl_tune.study.cells import Cell

from ..conftest import Asked


def drawn_results(value: float, *, rounds: int = 2, rises: bool = False, up: int = 10) -> Any:
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


@pytest.fixture
def results() -> Callable[..., Any]:
    return drawn_results


def score(cell: Cell) -> float:
    """The validation accuracy of a cell, best at a rate of 0.05."""
    return 1 - (cell.run.optim.lr - 0.05) ** 2


def driven(made: Study, *, most: int | None = None, scored: Callable[[Cell], float] = score) -> list[dict[str, Any]]:
    """What a search suggests that is driven to its end, or for `most` trials, one by one."""
    asked, found = Asked(made), list[dict[str, Any]]()
    while (most is None or len(found) < most) and (cell := asked.request()) is not None:
        asked.note(cell, drawn_results(scored(cell)))
        assert cell.suggestion is not None
        found.append(cell.suggestion.params)
    return found
