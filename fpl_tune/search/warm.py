"""Warm start: the finished cells of another study in the same space as first trials of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState, create_trial

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.search.record import WARM
from fpl_tune.search.space import stored
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    from fpl_tune.search.suggest import CellSearch, Results


def warm_start(name: str, root: Path | None, parts: Sequence[CellSearch]) -> None:
    """Gives every part of a search the finished cells of a stored study that lie in its space.

    Args:
        name: the stored study's name.
        root: the folder of all studies.
        parts: of the search.

    Raises:
        ConfigError: the study does not exist, or none of its finished cells lies in the space of any part.
    """
    if root is None:
        raise ConfigError(f"search.warm_start={name} needs the folder of the studies, which is not known here.")
    store = Store.open(root, name)
    finished: list[tuple[Cell, Results]] = []
    for cell in (cell for cell in store.cells() if cell.candidate):
        found = {seed: (result, store.history(cell, seed)) for seed, result in store.seed_results(cell).items()}
        if found and all(result["status"] == Status.DONE for result, _ in found.values()):
            finished.append((cell, found))
    for part in parts:
        part.warm = [trial for cell, found in finished if (trial := _trial(part, cell, found, name)) is not None]
    if not any(part.warm for part in parts):
        fields = ", ".join(param.name for param in parts[0].space.params)
        raise ConfigError(
            f"search.warm_start={name} needs a study of the same method and space, but none of its "
            f"{len(finished)} finished cells lies in that of {fields}. Name another study, or widen the space."
        )


def _trial(part: CellSearch, cell: Cell, results: Results, name: str) -> FrozenTrial | None:
    """A cell as a trial of a part; None where its method is another, or a searched field lies outside."""
    node, params = config.as_dict(cell.run), part.space.params
    searched = any(param.name == "method" for param in params)
    if node["method"].get("name") != part.node["method"].get("name") and not searched:
        return None
    point = part.space.point_of(node, {n: v for n, v in part.varied.items() if n != "method"})
    verdict = part.verdict(cell, results)
    if point is None or verdict.state != TrialState.COMPLETE:
        return None
    return create_trial(
        values=verdict.values,
        params=stored(point),
        distributions={param.name: param.distribution for param in params if param.name in point},
        user_attrs={**verdict.user_attrs, "params": point, WARM: name},
    )
