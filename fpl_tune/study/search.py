"""Search inside the cells of the axes. The only file that imports optuna."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.study.cells import Cell


class Search:
    references: list[Cell]
    left: int

    @classmethod
    def plan(cls, spec: StudySpec, node: dict[str, Any], folder: Path) -> Search | None:
        return None

    def ask(self) -> list[Cell]:
        return []

    def tell(self, cell: Cell, results: dict[int, Any]) -> None: ...
