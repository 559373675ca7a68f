"""Confirmation of a search: its best and its published points as cells of another study, on other seeds.

The best of many trials is the best partly by chance: on the seeds that selected it, its accuracy is too high.
"""

from __future__ import annotations

from pathlib import Path

from fpl_tune.config import Study
from fpl_tune.core.errors import ConfigError
from fpl_tune.search.gains import gains
from fpl_tune.study.cells import Cell, axes_of, expand, label
from fpl_tune.study.store import Store


def cells_of(spec: Study, root: Path) -> list[Cell]:
    """Cells of a study: those of its axes, or with `confirm` the points of another study's searches.

    Args:
        spec: the study.
        root: the folder of all studies.

    Returns:
        With `confirm`: for each search the published point and the found one, those with the highest validation
        accuracy, and the references.

    Raises:
        ConfigError: the study is wrong, the other one has no finished trial, or they share seeds.
    """
    cells = expand(spec)
    if spec.confirm is None:
        return cells
    other = Store(root, spec.confirm)
    found = gains(Store.open(root, spec.confirm)) if other.exists else []
    if not found:
        raise ConfigError(
            f"confirm={spec.confirm} needs a study whose search has results. Run fpl-tune study {spec.confirm} first."
        )
    if shared := sorted({*spec.seed_list()} & {*other.spec().seed_list()}):
        raise ConfigError(f"Confirmation needs seeds that {spec.confirm} did not use, but both have {shared}.")
    axes = axes_of(other.spec().axes)
    points: dict[str, Cell] = {}
    for gain in found:
        for cell, name in ((gain.published, "published"), (gain.best, "found")):
            if cell is not None:
                varied = {axis: value for axis, value in cell.varied.items() if axis in axes} | {"label": name}
                made = Cell(cell.id, len(points), label(varied), "cell", varied, cell.run)
                points.setdefault(cell.id, made)
    return [*points.values(), *(cell for cell in cells if cell.role == "reference" and cell.id not in points)]
