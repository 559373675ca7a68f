"""A study's claims: the cells that each claim compares, and its verdict by the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fpl_tune import analysis
from fpl_tune.config import ClaimSpec, ReportSpec, StudySpec
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.formatting import counted, gap, interval, percent, scaled, with_unit
from fpl_tune.core.spec import join_name
from fpl_tune.study.cells import Cell, is_setting, shown
from fpl_tune.study.results import FAILURES
from fpl_tune.study.standing import CellState, Row
from fpl_tune.study.table import StudyTable


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    name: str
    source: str
    says: str
    status: analysis.ClaimStatus
    reason: str
    """One sentence: the values of both sides and the interval."""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0


def check(spec: StudySpec, cells: Sequence[Cell]) -> None:
    """Checks that the cells of a study can answer its claims.

    Raises:
        ConfigError: a claim names an axis or a value that no cell has, or compares no two cells.
    """
    for name, claim in spec.report.claims.items():
        contrasts(name, claim, cells)


def contrasts(name: str, claim: ClaimSpec, cells: Sequence[Cell]) -> list[analysis.Contrast]:
    """Finds the pairs of cells that a claim compares: both have the same values on axes that `versus` does not name.

    Raises:
        ConfigError: see `check`.
    """
    where = join_name("report.claims", name)
    common, ours, theirs = (
        _full(getattr(claim, field), cells, f"{where}.{field}") for field in ("at", "cells", "versus")
    )
    texts = {cell.id: {axis: shown(value) for axis, value in cell.varied.items()} for cell in cells}
    better, others = (
        [
            cell.id
            for cell in cells
            if all(texts[cell.id].get(axis) in values for axis, values in picks.items())
            # a claim that names settings alone is about the study's own cells
            and (cell.role != "reference" or "label" in picks or not is_setting({a: cell.varied[a] for a in picks}))
        ]
        for picks in ({**common, **ours}, {**common, **theirs})
    )
    pairs = [
        analysis.Contrast(a, b) for a in better for b in others if a != b
        and all(texts[a][axis] == texts[b][axis] for axis in texts[a].keys() & texts[b].keys() - theirs.keys())
    ]  # fmt: skip
    if not pairs:
        raise ConfigError(f"{where} compares no two cells. Check its cells, versus and at.")
    return pairs


def _full(picks: Mapping[str, Any], cells: Sequence[Cell], where: str) -> dict[str, set[str]]:
    """Dotted axis -> values, as texts in labels.

    Raises:
        ConfigError: no cell has the axis or the value.
    """
    values: dict[str, dict[str, None]] = {}
    for axis, value in (item for cell in cells for item in cell.varied.items()):
        values.setdefault(axis, {})[shown(value)] = None
    full = {}
    for name, value in picks.items():
        alike = [name] if name in values else [axis for axis in values if axis.rpartition(".")[2] == name]
        if len(alike) != 1:
            raise unknown(f"axis of {where}", name, values)
        known, picked = values[alike[0]], value if isinstance(value, list) else [value]
        wanted = {v if isinstance(v, str) and v in known else shown(v) for v in picked}
        for text in sorted(wanted - known.keys()):
            raise unknown(f"value of {where}.{name}", text, known)
        full[alike[0]] = wanted
    return full


def evaluate(table: StudyTable, report: ReportSpec, rule: str | None = None) -> list[Judged]:
    """Judges the claims of a study by its results, finished or not.

    Args:
        table: the study's results.
        report: its report, which holds the claims.
        rule: the reporting rule; None: the report's.

    Returns:
        The claims in the study's order. One whose cells the study does not run is undecided.
    """
    cells = [row.cell for row in table.rows.values()]
    names = {cell.id: cell.label for cell in cells}
    values = cache(lambda metric: table.values(metric, rule or report.rule))
    judged = []
    for name, claim in report.claims.items():
        metric, asked = claim.metric or report.metric, (name, claim.source, claim.says)
        frame = values(metric)
        try:
            compared = contrasts(name, claim, cells)
        except ConfigError as problem:
            judged.append(Judged(*asked, "undecided", f"The study as it ran does not answer it: {problem}"))
            continue
        ran = set(frame["cell"])
        if missing := [cell for contrast in compared for cell in contrast if cell not in ran]:
            judged.append(Judged(*asked, "undecided", _missing(table.rows[missing[0]])))
            continue
        unit = 100.0 if percent(metric) else 1.0
        within = None if claim.within is None else claim.within / unit
        result = analysis.judge(frame, compared, margin=claim.margin / unit, within=within)
        reason = _reason(claim, metric, result, names, len(compared))
        bounds = result.difference, result.low, result.high, result.seeds
        judged.append(Judged(*asked, result.status, reason, *bounds))
    return judged


def _missing(row: Row) -> str:
    """The reason why a cell has no result for a claim."""
    name = row.cell.label
    if row.state is CellState.PRUNED:
        return f"{name} was pruned."
    ends = [run.status for run in row.results.values() if run.status in FAILURES]
    return f"A seed of {name} has {ends[0]}." if ends else f"There is no result of {name}."


def _reason(claim: ClaimSpec, metric: str, result: analysis.ClaimResult, names: Mapping[str, str], pairs: int) -> str:
    """The values that decide a claim, as a sentence."""
    values = [f"{names[cell]} {with_unit(result.values[cell], metric, digits=1)}" for cell in result.contrast]
    text = " against ".join(values)
    if not result.seeds:
        return f"{text}: the cells share no seed."
    text += f": {gap(result.difference, metric, 1)}"
    if result.seeds > 1:
        text += f" (95 % interval {interval(vars(result), metric, 1)})"
    asked, unit = claim.margin if claim.within is None else claim.within, 100.0 if percent(metric) else 1.0
    limit = f"{scaled(asked / unit, metric):g}"
    needs = f"above {limit}" if claim.within is None else f"at most {limit} either way"
    text += f" over {counted(result.seeds, 'seed')}, claimed {needs}"
    if pairs > 1:
        text += f"; the {'clearest' if result.status == 'fails' else 'closest'} of {counted(pairs, 'comparison')}"
    if result.outlier:
        text += "; one seed is an outlier, and the interval also holds without it"
    return f"{text}; one seed allows no interval." if result.seeds == 1 else f"{text}."


def counts_sentence(judged: Sequence[Judged]) -> str:
    """`24 of 30 claims hold, 2 fail, 4 are undecided`."""
    holds, fails, undecided = (sum(j.status == status for j in judged) for status in ("holds", "fails", "undecided"))
    return (
        f"{holds} of {counted(len(judged), 'claim')} {'holds' if holds == 1 else 'hold'}, "
        f"{fails} {'fails' if fails == 1 else 'fail'}, {undecided} {'is' if undecided == 1 else 'are'} undecided"
    )
