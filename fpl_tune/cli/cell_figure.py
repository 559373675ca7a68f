"""The figure of a cell's MLflow run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpl_tune.study.cells import Cell
    from fpl_tune.trial import Record


def cell_figure(cell: Cell, history: Mapping[int, Sequence[Record]]) -> bytes:
    """A cell's learning curve as PNG."""
    from io import BytesIO

    from fpl_tune.report import figures

    image = BytesIO()
    figures.cell_curve(history, cell.label).savefig(image, format="png", dpi=110)
    return image.getvalue()
