"""Sections on what was searched: the best of each search, pairs of fields, which fields matter, the ablation path."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune import analysis, methods
from fpl_tune.analysis.explain import constant
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted, figure, numeric, plus_minus, quantity, short, signed
from fpl_tune.report import charts, figures
from fpl_tune.report.blocks import Section, Table, plain_table
from fpl_tune.report.facts import Facts
from fpl_tune.report.significance import compared, judged, values
from fpl_tune.search.ablation import Step, ablation_paths
from fpl_tune.search.gains import gains
from fpl_tune.study.cells import Cell, label, shown
from fpl_tune.study.results import VAL
from fpl_tune.study.selection import choose

MODEL_FROM = 30
"""Trials from which on Optuna's models of the whole space are fitted."""


def winners(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """So tuned, how do the parts of the axes compare?"""
    parts: dict[str, list[Cell]] = {}
    for cell in facts.listed:
        if cell.role == "trial" and facts.table.loc[cell.id, "status"] == "done":
            parts.setdefault(facts.part(cell), []).append(cell)
    if len(parts) < 2:
        return None
    rows = []
    gained = {gain.best.id: gain for gain in gains(facts.store, facts.rule, facts.metric)}
    for part, cells in parts.items():
        choice = choose(facts.frame, cells, facts.spec, facts.rule)
        if choice is None:
            continue
        cell = choice.cell
        row = facts.table.loc[cell.id]
        test = signed(tests.loc[cell.id, "difference"], facts.metric) if cell.id in tests.index else "–"
        searched = label({name: value for name, value in cell.varied.items() if name not in facts.gridded})
        mean = plus_minus(row["mean"], row["std"], facts.metric)
        gain = gained.get(cell.id)
        over = signed(gain.gain, facts.metric) if gain and gain.published else "–"
        rows.append([part, figure(row["val"], VAL), mean, test, over, str(len(cells)), searched])
    text = (
        f"The best trial of each part of the axes by validation accuracy; {facts.basis}. The published point is the "
        "best one by validation of those that the search tried first."
    )
    header = ["", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std",
              f"Δ vs {facts.reference}", "Δ vs published", "trials", "found"]  # fmt: skip
    return Section("winners", "Best of each search", [text], tables=[plain_table(header, rows)])


def pairs(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """How do two axes act together?"""
    if len(facts.axes) < 2:
        return None
    taken = {axis: [v for v in dict.fromkeys(map(shown, facts.table[axis].dropna()))] for axis in facts.axes}
    fitting = [axis for axis in facts.axes if 1 < len(taken[axis]) <= 40]
    fitting.sort(key=lambda axis: not numeric(facts.table[axis]))
    numbers = next((pair for pair in itertools.combinations(fitting, 2) if _together(facts, *pair)), None)
    if numbers is None:
        return None
    rows, columns = sorted(numbers, key=lambda axis: len(taken[axis]))
    split = next((axis for axis in facts.axes if axis not in numbers and 1 < len(taken[axis]) <= 4), None)
    over = len(facts.axes) - 2 - (split is not None)
    caption = f"Mean over seeds{' and over the other axes' if over else ''}; {facts.basis}."
    section = Section("pairs", f"Validation accuracy by {short(rows)} and {short(columns)}")
    for i, value in enumerate(taken[split] if split else [""]):
        cells = [c for c in facts.own if split is None or facts.place(c).get(split) == value]
        if len(facts.table.loc[[c.id for c in cells], ["mean", rows, columns]].dropna()):
            drawn = figures.heat_map(facts, rows, columns, cells)
            name = "heat_map" if i == 0 else f"heat_map_{i + 1}"
            section.charts[name] = drawn, f"{short(split)}={value}. {caption}" if split else caption
    return section


def _together(facts: Facts, a: str, b: str) -> bool:
    """Whether cells fill most of the grid of two axes: a search draws values of its own, or no such pair at all."""
    both = facts.table.loc[[cell.id for cell in facts.own], [a, b, "mean"]].dropna()
    one, other, filled = both[a].nunique(), both[b].nunique(), len(both.drop_duplicates([a, b]))
    return min(one, other) > 1 and 2 * max(one, other) <= len(both) and 2 * filled > one * other


def matters(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which hyper-parameters matter, alone and together?"""
    found = importance(facts)
    if len(found) < 2:
        return None
    known, unknown = found.dropna(subset=["share"]), found[found["share"].isna()]
    if known.empty and found["method"].nunique() > 1:
        return None  # a comparison of methods, not of fields
    text = (
        "Share of the variance of the validation accuracy over cells that a field explains alone, in the cells in "
        "which it exists: exact in complete grids, else estimated (ω²)."
    )
    section = Section("importance", "What matters")
    if len(known):
        spreads = dict(zip(known["method"], known["spread"], strict=True))
        varies = ", ".join(f"{figure(spread, 'val/acc_mean')} ({name})" for name, spread in spreads.items())
        section.texts.append(f"{text} The standard deviation over cells, in points: {varies}.")
        top = known.head(20)
        bars = [{"name": f"{m}: {short(f)}", "value": 100 * share}
                for m, f, share in zip(top["method"], top["field"], top["share"], strict=True)]  # fmt: skip
        of = counted(top["cells"].max(), "cell")
        of = of if top["cells"].min() == top["cells"].max() else f"{top['cells'].min()} to {of}"
        caption = f"Each field over the {of} in which it exists; validation accuracy, {facts.basis}."
        drawn = charts.bars(bars, "share of variance explained (%)")
        section.charts["importance"] = drawn, caption
    said = {note: [short(str(f)) for f in rows["field"]] for note, rows in unknown.groupby("note", sort=False)}
    section.texts += [f"Nothing is said of {', '.join(dict.fromkeys(names))}: {note}." for note, names in said.items()]
    if "fanova" in found and len(modelled := found.dropna(subset=["fanova"])):
        rows = [[f"{r['method']}: {short(r['field'])}", f"{100 * r['fanova']:.1f}", f"{100 * r['ped_anova']:.1f}"]
                for r in modelled.to_dict("records")]  # fmt: skip
        section.tables.append(plain_table(["field", "fANOVA (%)", "PED-ANOVA (%)"], rows))
    for i, ((method, field), curve) in enumerate(dependences(facts, found).items(), 1):
        caption = (
            f"{method}: mean over all else that was tried, {counted(int(curve['cells'].sum()), 'trial')}; "
            "the band is a 95 % interval over seeds."
        )
        section.charts[f"dependence_{i}"] = figures.dependence(curve, field, facts), caption
    return section


def ablation(facts: Facts, tests: pd.DataFrame) -> Section | None:
    """Which of the changes from the published point to the best cell make the difference?"""
    if not facts.ablated:
        return None
    section = Section("ablation", "From the published point to the best cell")
    command = f"fpl-tune study {facts.spec.name} ablate=best"
    try:
        paths = ablation_paths(facts.spec, facts.store.node(), facts.store)
    except ConfigError as problem:
        section.texts.append(str(problem))
        return section
    section.texts.append(
        "One field changes in each row, in the order of the share of variance that it explains alone on validation; "
        "every row is a run of its own. Differences are to the row above, paired by seed, with 95 % intervals; "
        f"verdicts after Holm's correction over the rows; {facts.basis}."
    )
    missing = 0
    for path in paths:
        missing += sum(not facts.seeds(step.cell) for step in path)
        section.tables.append(_table(facts, path))
    if missing:
        section.texts.append(f"{counted(missing, 'step')} without results: {command}")
    return section


def _table(facts: Facts, path: list[Step]) -> Table:
    """A row per step, and the whole path in the last one."""
    cells = [step.cell for step in path]
    frame = values(facts, cells)
    present = set(frame["cell"])
    steps = [(before.id, cell.id) for before, cell in itertools.pairwise(cells) if {before.id, cell.id} <= present]
    tests = compared(facts, frame, {cell: before for before, cell in steps}).to_dict("index")
    rows = []
    for i, step in enumerate(path):
        then, now = cells[i - 1].varied if i else {}, step.cell.varied
        change = ", ".join(f"{short(name)}: {_value(then, name)} → {_value(now, name)}" for name in step.fields)
        reached = [figure(facts.spread(step.cell, VAL)[0], VAL),
                   plus_minus(*facts.spread(step.cell, facts.metric), facts.metric)]  # fmt: skip
        gap = judged(facts, tests[step.cell.id]) if step.cell.id in tests else ["", "", ""]
        rows.append([str(i), change or "published point", *reached, *gap])
    if {cells[0].id, cells[-1].id} <= present and len(path) > 2:
        (whole,) = compared(facts, frame, {cells[-1].id: cells[0].id}).to_dict("records")
        rows.append(["", "all of them", "", "", *judged(facts, whole)])
    header = ["step", "change", "validation accuracy (%)", f"{quantity(facts.metric, over='')} ± std",
              "difference", "95 % interval", "verdict"]  # fmt: skip
    return plain_table(header, rows)


def _value(varied: dict[str, object], name: str) -> str:
    return shown(varied[name]) if name in varied else "unset"


def cells_of(facts: Facts) -> dict[str, tuple[pd.DataFrame, list[str]]]:
    """Per method, a row per finished cell (columns `value` and the fields that vary) and these fields."""
    found: dict[str, tuple[pd.DataFrame, list[str]]] = {}
    own = [cell for cell in facts.own if not np.isnan(facts.table.loc[cell.id, "val"])]
    for method in dict.fromkeys(map(_method, own)):
        cells = [cell for cell in own if _method(cell) == method]
        fields = list(dict.fromkeys(name for cell in cells for name in cell.varied if name != "method"))
        rows = [
            {"cell": c.id, "value": facts.table.loc[c.id, "val"], **{f: facts.scalar(c, f) for f in fields}}
            for c in cells
        ]
        found[method] = pd.DataFrame(rows), fields
    return found


def importance(facts: Facts) -> pd.DataFrame:
    """Explains the validation accuracy by single fields; see `analysis.one_way`.

    Returns:
        Its rows with a column `method`. Where at least `MODEL_FROM` trials have all fields, also Optuna's `fanova` and
        `ped_anova`.
    """
    parts = []
    for method, (cells, fields) in cells_of(facts).items():
        one = analysis.one_way(cells, fields, noise=_noise(facts, cells)).assign(method=method)
        drawn = facts.searched and len(cells) >= MODEL_FROM and not cells[fields].isna().to_numpy().any()
        if drawn and not constant(cells["value"].tolist()):
            from fpl_tune.search.importance import optuna_importance  # imports scikit-learn

            one = one.merge(optuna_importance(cells, fields), on="field", how="left")
        parts.append(one)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def dependences(facts: Facts, found: pd.DataFrame, most: int = 4) -> dict[tuple[str, str], pd.DataFrame]:
    """Partial dependence of the validation accuracy on the fields that explain most of it, in searches.

    Args:
        facts: the study.
        found: what `importance` returned.
        most: number of fields.

    Returns:
        Method and field -> `analysis.partial_dependence`; methods with fewer than `MODEL_FROM` trials are left out.
    """
    parts = {m: part for m, part in cells_of(facts).items() if facts.searched and len(part[0]) >= MODEL_FROM}
    curves: dict[tuple[str, str], pd.DataFrame] = {}
    known = found.loc[found["method"].isin(list(parts)) & found["share"].notna()]
    for row in known.sort_values("share", ascending=False, kind="stable").head(most).to_dict("records"):
        method, field = str(row["method"]), str(row["field"])
        rows = facts.validation().merge(parts[method][0][["cell", field]], on="cell")
        curves[method, field] = analysis.partial_dependence(rows, field)
    return curves


def _noise(facts: Facts, cells: pd.DataFrame) -> float:
    """Mean squared standard error of the cells' validation accuracies; 0 where one seed ran."""
    frame = facts.validation()
    errors = analysis.scores(frame.loc[frame["cell"].isin(cells["cell"])])["error"]
    return float((errors**2).mean()) if errors.notna().any() else 0.0


def _method(cell: Cell) -> str:
    """The method as the study names it: `fedprox`, though that is a wrapper around another one."""
    named = cell.varied.get("method")
    return shown(named) if named is not None else _written(methods.as_dict(cell.run.method))


def _written(node: Mapping[str, Any]) -> str:
    inner = node.get("inner")
    return f"{node['name']}({_written(inner)})" if isinstance(inner, Mapping) else str(node["name"])
