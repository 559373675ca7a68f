"""The ablation path of a search: from the published or default point to the best trial, one field at a time.

Fields change in the order of their importance for the objective (`analysis.importance` over the finished trials): a
path of k fields needs at most k - 1 runs (Fawcett & Hoos, 2016, re-order it after every step, which takes k² / 2 runs).
A field that only one of the two points has changes with the field that its condition names. If the method rejects the
change of a field, it changes with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.config import Study
from fpl_tune.core.errors import ConfigError
from fpl_tune.findings import limits
from fpl_tune.findings.choice import choose, front_of, objectives_of, selecting_rule
from fpl_tune.study.cells import Cell, label
from fpl_tune.study.standing import CellState, Row

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch
    from fpl_tune.search.space import Space


@dataclass(frozen=True)
class Step:
    """A cell of a path."""

    fields: tuple[str, ...]
    """Dotted fields that change in this step; empty for the published point."""
    cell: Cell


def ablation_paths(spec: Study, searches: Sequence[CellSearch], rows: Mapping[str, Row]) -> list[list[Step]]:
    """Builds the paths to a study's best cells: one path, or one per setting if no cell is the best in all of them.

    Args:
        spec: the study.
        searches: its searches.
        rows: its cells with their results, by id. Unfinished trials are left out.

    Returns:
        Paths of at least two steps: the published point that the objective chooses, cells with the role `ablation` or
        equal trials, and the best cell.

    Raises:
        ConfigError: the study has no search, no published point, no finished trial, or several objectives; or the
            published point is the best cell.
    """
    if spec.search.sampler is None:
        raise ConfigError(
            "ablate=best starts from the first point of a search, but there is none. Remove ablate, or set a "
            "sampler such as search.sampler=auto."
        )
    rule = selecting_rule(spec.report.rule)
    cells = [row.cell for row in rows.values()]
    if (choice := choose((row for row in rows.values() if row.cell.role == "trial"), rule, spec)) is None:
        raise ConfigError(
            limits.nothing(rows.values(), rule, spec)
            or f"ablate=best needs a finished search. Run fpl-tune study {spec.name} without it first."
        )
    if choice.front:
        raise ConfigError(front_of(choice, "Remove ablate, which needs one objective; export a cell with --cell"))
    (objective,) = objectives_of(spec)
    number = 1 + max(cell.number for cell in cells if cell.role != "ablation")
    finished = {cell.id: cell for cell in cells if cell.candidate and rows[cell.id].state is CellState.DONE}
    paths: list[list[Step]] = []
    for best in choice.cells:
        search = next(search for search in searches if search.holds(best))
        mine = [cell for cell in cells if search.holds(cell)]
        start = choose((rows[cell.id] for cell in mine if cell.published), rule, spec, limited=False)
        if start is None:
            raise ConfigError(f"ablate=best needs a finished published or default point in the search of {best.label}.")
        if start.cell.id != best.id:
            shares = _importance([rows[cell.id] for cell in mine], rule, objective, search.space)
            paths.append(_path(search, start.cell, best, shares, finished, number))
            number += len(paths[-1])
    if not paths:
        raise ConfigError(f"ablate=best finds nothing to change: the first point of {spec.name} is its best cell.")
    return paths


def ablation_cells(spec: Study, searches: Sequence[CellSearch], rows: Mapping[str, Row]) -> list[Cell]:
    """The cells that `ablate` adds to a study; see `ablation_paths`."""
    steps = (step.cell for path in ablation_paths(spec, searches, rows) for step in path)
    return list({cell.id: cell for cell in steps if cell.role == "ablation"}.values())


def _importance(trials: Sequence[Row], rule: str, objective: str, space: Space) -> dict[str, float]:
    """Share of the objective's variance that each field explains by itself; 0 if it cannot be estimated."""
    import pandas as pd

    from fpl_tune import analysis

    fields = [param.name for param in space.params]
    rows = [{"value": row.over_seeds(objective, rule)["mean"], **row.cell.varied} for row in trials]
    result = analysis.importance(pd.DataFrame(rows, columns=["value", *fields]), fields)
    return result.set_index("field")["share"].fillna(0.0).to_dict()


def _units(start: Mapping[str, Any], end: Mapping[str, Any], space: Space) -> dict[str, list[str]]:
    """Fields that differ, by the field with which they change: themselves, or one that their condition names."""
    leads: dict[str, str] = {}
    for param in space.params:  # conditions precede the fields that depend on them
        name = param.name
        if (name in start) != (name in end):
            leads[name] = next((leads[field] for field in param.when if field in leads), name)
        elif start.get(name) != end.get(name):
            leads[name] = name
    return {lead: [name for name in leads if leads[name] == lead] for lead in leads.values()}


def _path(
    search: CellSearch, start: Cell, best: Cell, shares: Mapping[str, float], finished: Mapping[str, Cell], number: int
) -> list[Step]:
    """Steps from one trial to another."""
    units = _units(start.varied, best.varied, search.space)
    steps, changed, new = [Step((), start)], set[str](), list[str]()
    for lead in sorted(units, key=lambda name: -max(shares.get(field, 0.0) for field in units[name])):
        changed.update(units[lead])
        new += units[lead]
        sources = {name: best.varied if name in changed else start.varied for name in [*best.varied, *start.varied]}
        varied = {name: source[name] for name, source in sources.items() if name in source}
        try:
            run = search.at(varied)
        except ConfigError:
            continue  # the method rejects the combination: the next field changes with this one
        key = config.identity(run)
        cell = finished.get(key) or Cell(key, number + len(steps), label(varied), "ablation", varied, run)
        steps.append(Step(tuple(new), cell))
        new = []
    if steps[-1].cell.id != best.id:
        steps[-1] = replace(steps[-1], cell=best)
    return steps
