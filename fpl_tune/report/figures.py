"""Curves and maps of a report, along axes and rounds: one function each, from facts to a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fpl_tune.report.canvas import COLOURS, DASHES, INK, MARKERS, blank, legend, percent_axis
from fpl_tune.report.facts import Facts
from fpl_tune.report.words import axis_name, numeric, percent, quantity, short
from fpl_tune.study.cells import Cell, shown


def _positions(values: Sequence[Any]) -> tuple[np.ndarray, bool]:
    """Places of an axis' values: themselves, or 0, 1, ... where they are no numbers."""
    return (np.asarray(values, float), True) if numeric(values) else (np.arange(len(values), dtype=float), False)


def _place(ax: Axes, axis: str, values: Sequence[Any], places: np.ndarray, is_number: bool) -> None:
    ax.set_xlabel(axis_name(axis))
    if is_number and places.min() > 0 and places.max() / places.min() >= 50:
        ax.set_xscale("log")
    if not is_number or len(values) <= 4:
        slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(values) > 8 else {}
        ax.set_xticks(places, [shown(v) for v in values], **slanted)


_ASIDE = 0.08  # of the step between names, from one group to the next
_MANY = 8  # names that stand side by side

# -- the axes' curves ----------------------------------------------------------------------------------------


def axis_curve(facts: Facts, axis: str) -> Figure:
    """The metric along one axis, mean over seeds with its standard deviation, references as lines with bands.

    Numbers are joined by lines, names are not; more than eight names are rows, the best on top. Other axes: a colour
    for each of their combinations; of more than eight, eight evenly spread, and the best one's.
    """
    figure, (ax,) = blank()
    table = facts.table.loc[[cell.id for cell in facts.own]].dropna(subset=["mean"])
    values = _ordered(table[axis])
    places, is_number = _positions(values)
    where = dict(zip(map(shown, values), places, strict=True))
    others = [a for a in facts.axes if a != axis]
    groups = list(table.groupby([table[a].map(shown) for a in others], sort=False)) if others else [((), table)]
    colours, kept = _colours(groups, others), _some(groups, facts)
    if not is_number and len(values) > _MANY:
        return _name_rows(facts, axis, others, kept)
    for i, (_, rows) in enumerate(kept):
        rows = rows.assign(_x=[where.get(shown(v), np.nan) for v in rows[axis]]).sort_values("_x")
        name = _named(rows, others)
        if not is_number:  # side by side
            rows["_x"] += _ASIDE * (i - (len(kept) - 1) / 2)
        draw = _band if is_number else _bars
        draw(ax, rows["_x"], rows["mean"], rows["std"], colours[i], label=name, marker=MARKERS[i])
        best = rows[rows.index.isin(facts.chosen)]
        if len(best):
            named = facts.chosen[0] in best.index  # once in the legend
            ax.plot(best["_x"], best["mean"], "o", label="best by validation" if named else None, **_RING)
    _references(ax, facts, axis, where, len(groups))
    _place(ax, axis, values, places, is_number)
    ax.set_ylabel(quantity(facts.metric))
    percent_axis(ax, facts.metric)
    legend(ax, **({"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(kept) > 4 else {}))
    return figure


_Groups = Sequence[tuple[Any, pd.DataFrame]]
_RING: dict[str, Any] = {"mfc": "none", "mec": INK, "ms": 13, "mew": 1.2}


def _named(rows: pd.DataFrame, others: Sequence[str]) -> str | None:
    """Where a group lies on the other axes."""
    return ", ".join(f"{short(a)}={shown(rows[a].iloc[0])}" for a in others) or None


def _name_rows(facts: Facts, axis: str, others: Sequence[str], groups: _Groups) -> Figure:
    every = pd.concat([rows for _, rows in groups])
    means = every.assign(_name=every[axis].map(shown)).pivot_table(index="_name", values="mean")
    order = means.sort_values("mean").index.tolist()
    figure, (ax,) = blank(7.2, 1.4 + 0.24 * len(order))
    for i, (_, rows) in enumerate(groups):
        y = np.array([order.index(shown(v)) for v in rows[axis]]) - 1.5 * _ASIDE * (i - (len(groups) - 1) / 2)
        style = {"color": COLOURS[i], "marker": MARKERS[i], "ls": "none", "ms": 5, "lw": 1.4, "capsize": 2}
        ax.errorbar(rows["mean"], y, xerr=rows["std"].fillna(0.0), label=_named(rows, others), **style)
        best = rows.index.isin(facts.chosen)
        if best.any():
            named = facts.chosen[0] in rows.index  # once in the legend
            ax.plot(rows["mean"][best], y[best], "o", label="best by validation" if named else None, **_RING)
    for i, name in enumerate(dict.fromkeys(map(facts.family, facts.references))):
        ids = [cell.id for cell in facts.references if facts.family(cell) == name]
        colour = COLOURS[(len(groups) + i) % len(COLOURS)]
        ax.axvline(facts.table.loc[ids, "mean"].mean(), color=colour, dashes=DASHES[i % len(DASHES)], label=name)
    ax.set_yticks(range(len(order)), order)
    ax.set_ylim(-0.7, len(order) - 0.3)
    ax.set_xlabel(quantity(facts.metric))
    percent_axis(ax, facts.metric, "x")
    legend(ax, loc="lower right")
    return figure


def _some(groups: _Groups, facts: Facts) -> _Groups:
    """At most eight groups, evenly spread, that of the best cell among them."""
    chosen = set(np.linspace(0, len(groups) - 1, min(len(groups), len(COLOURS))).round().astype(int))
    best = next((i for i, (_, rows) in enumerate(groups) if rows.index.isin(facts.chosen).any()), None)
    if best is not None and best not in chosen:
        chosen = chosen - {min(chosen, key=lambda i: abs(i - best))} | {best}
    return [groups[i] for i in sorted(chosen)]


def _colours(groups: _Groups, others: Sequence[str]) -> Sequence[Any]:
    """Colours of lines: a ramp from light to dark where the lines are steps of one number."""
    if len(others) == 1 and len(groups) > 2 and numeric([rows[others[0]].iloc[0] for _, rows in groups]):
        return colormaps["viridis_r"](np.linspace(0.12, 1.0, min(len(groups), len(COLOURS)))).tolist()
    return COLOURS


def _references(ax: Axes, facts: Facts, axis: str, where: Mapping[str, float], first: int) -> None:
    """Each reference as a line: level, or a curve where it has a value at every place of the axis."""
    for i, name in enumerate(dict.fromkeys(map(facts.family, facts.references))):
        ids = [cell.id for cell in facts.references if facts.family(cell) == name]
        rows = facts.table.loc[ids].dropna(subset=["mean"])
        colour, dashes = COLOURS[(first + i) % len(COLOURS)], DASHES[i % len(DASHES)]
        if len(rows) > 1 and rows[axis].map(shown).nunique() == len(rows):
            rows = rows.assign(_x=[where.get(shown(v), np.nan) for v in rows[axis]]).sort_values("_x")
            _band(ax, rows["_x"], rows["mean"], rows["std"], colour, label=name, dashes=dashes)
        elif len(rows):
            mean, spread = rows["mean"].mean(), rows["std"].mean()
            ax.axhline(mean, color=colour, dashes=dashes, lw=1.6, label=name)
            ax.axhspan(mean - spread, mean + spread, color=colour, alpha=0.12, lw=0)


def slices(facts: Facts, axis: str) -> Figure:
    """Every cell's metric by one axis, the best by validation ringed: for studies that vary much at once.

    Trials are coloured by the part of the axes that they were searched in.
    """
    figure, (ax,) = blank(4.8, 3.2)
    table = facts.table.loc[[cell.id for cell in facts.own]].dropna(subset=["mean", axis])
    values = _ordered(table[axis])
    places, is_number = _positions(values)
    where = dict(zip(map(shown, values), places, strict=True))
    parts = {cell.id: facts.part(cell) for cell in facts.own}
    names = list(dict.fromkeys(parts.values()))
    few = facts.searched and len(names) <= len(COLOURS) and axis not in facts.gridded
    for i, name in enumerate(names if few else [""]):
        rows = table[[parts[key] == name for key in table.index]] if few else table
        style = {"s": 22, "color": COLOURS[i], "marker": MARKERS[i], "alpha": 0.7, "lw": 0}
        if len(rows):
            ax.scatter([where[shown(v)] for v in rows[axis]], rows["mean"], label=name or None, **style)
    best = table[table.index.isin(facts.chosen)]
    ax.plot([where[shown(v)] for v in best[axis]], best["mean"], "o", mfc="none", mec=INK, ms=13)
    _place(ax, axis, values, places, is_number)
    ax.set_ylabel(quantity(facts.metric, over=""))
    percent_axis(ax, facts.metric)
    legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    return figure


def dependence(found: pd.DataFrame, axis: str) -> Figure:
    """Mean validation accuracy by the values of a field with a band over seeds; see `analysis.partial_dependence`."""
    figure, (ax,) = blank(4.8, 3.2)
    values = found["place"].tolist()
    places, is_number = _positions(values)
    if is_number:
        ax.fill_between(places, found["low"], found["high"], color=COLOURS[0], alpha=0.18, lw=0)
        ax.plot(places, found["mean"], "o-", color=COLOURS[0], lw=1.8, ms=5)
    else:
        ax.errorbar(places, found["mean"], found["high"] - found["mean"], fmt="o", color=COLOURS[0], lw=1.4, capsize=2)
    _place(ax, axis, values, places, is_number)
    ax.set_ylabel("validation accuracy (%)")
    percent_axis(ax, "val/acc_mean")
    return figure


def _bars(ax: Axes, x: Any, mean: pd.Series, spread: pd.Series, colour: str, **kwargs: Any) -> None:
    ax.errorbar(x, mean, spread.fillna(0.0), color=colour, ls="none", lw=1.4, ms=5, capsize=2, **kwargs)


def _band(ax: Axes, x: Any, mean: pd.Series, spread: pd.Series, colour: str, **kwargs: Any) -> None:
    spread = spread.fillna(0.0)
    ax.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)
    ax.plot(x, mean, color=colour, lw=1.8, ms=5, **kwargs)


def learning_curves(facts: Facts, cells: Sequence[Cell], metric: str) -> Figure:
    """A metric of some cells by round, mean over seeds with the standard deviation as a band."""
    return _by_round({facts.name(cell): facts.curve(cell, metric) for cell in cells}, metric)


def part_curves(facts: Facts, cell: Cell, metrics: Sequence[str]) -> Figure:
    """Metrics of one kind (`reader/domain1/acc_mean`, ...) of one cell by round, drawn as learning curves."""
    group, *_, last = metrics[0].split("/")
    return _by_round({name.split("/")[-2]: facts.curve(cell, name) for name in metrics}, f"{group}/{last}")


def _by_round(curves: Mapping[str, pd.DataFrame], metric: str) -> Figure:
    figure, (ax,) = blank(4.8, 3.9)
    for i, (name, curve) in enumerate(curves.items()):
        if curve.empty:
            continue
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        if len(curve) == 1:  # nothing to learn: the same figure in every round
            ax.axhline(curve.to_numpy().mean(), color=colour, dashes=DASHES[0], lw=1.4, label=name)
            continue
        style = {"label": name, "marker": marker, "markevery": max(1, len(curve) // 8)}
        _band(ax, curve.index, curve.mean(axis=1), curve.std(axis=1, ddof=1), colour, **style)
    ax.set_xlabel("communication round")
    ax.set_ylabel(quantity(metric, over=""))  # all of it is longer than the axis
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    percent_axis(ax, metric)
    longest = max(map(len, curves), default=0)
    columns = 4 if longest < 12 else 2 if longest < 28 else 1
    legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns)
    return figure


def heat_map(facts: Facts, rows: str, columns: str, cells: Sequence[Cell]) -> Figure:
    """The metric of some cells over two axes; where others vary too, the mean over them. One scale for all cells.

    An axis of more values than a page is wide for lies upright.
    """
    every = facts.table.loc[[cell.id for cell in facts.own], "mean"]
    table = facts.table.loc[[cell.id for cell in cells]].dropna(subset=["mean"])
    keys = {a: [shown(v) for v in _ordered(table[a])] for a in (rows, columns)}
    if len(keys[columns]) > max(len(keys[rows]), 12):
        rows, columns = columns, rows
    grid = table.assign(_r=table[rows].map(shown), _c=table[columns].map(shown))
    grid = grid.pivot_table(index="_r", columns="_c", values="mean", aggfunc="mean")
    grid = grid.reindex(index=keys[rows], columns=keys[columns])
    figure, (ax,) = blank(max(4.5, 0.7 * grid.shape[1] + 2.2), max(3.0, 0.42 * grid.shape[0] + 1.4))
    ax.grid(False)
    values = grid.to_numpy(float)
    low, high = (every.min(), every.max()) if len(cells) < len(facts.own) else (np.nanmin(values), np.nanmax(values))
    ax.imshow(values, cmap="cividis", aspect="auto", origin="lower", vmin=low, vmax=high)
    middle = (low + high) / 2
    for r, c in np.argwhere(~np.isnan(values)) if values.size <= 400 else []:
        text = f"{100 * values[r, c]:.1f}" if percent(facts.metric) else f"{values[r, c]:.3g}"
        ink = "white" if values[r, c] < middle else "black"
        ax.text(c, r, text, ha="center", va="center", fontsize=8, color=ink)
    ax.set_xticks(range(grid.shape[1]), grid.columns)
    ax.set_yticks(range(grid.shape[0]), grid.index)
    if not numeric(_ordered(table[rows])):  # names are read from the top
        ax.invert_yaxis()
    ax.set_xlabel(axis_name(columns))
    ax.set_ylabel(axis_name(rows))
    ax.set_title(quantity(facts.metric), fontsize=10, color=INK)
    return figure


def _ordered(values: pd.Series) -> list[Any]:
    unique = [v for v in dict.fromkeys(values) if v is not None and v == v]
    return sorted(unique) if numeric(unique) else unique


def cell_curve(history: Mapping[int, Sequence[Mapping[str, Any]]], title: str) -> Figure:
    """One cell's validation and test accuracy by round, a thin line per seed and their mean."""
    figure, (ax,) = blank(6.0, 3.4)
    for colour, metric in zip(COLOURS, ("val/acc_mean", "test/acc_mean"), strict=False):
        lines = {
            seed: {r["round"]: r[metric] for r in records if r.get(metric) is not None}
            for seed, records in history.items()
        }
        curve = pd.DataFrame(lines).sort_index()
        for seed in curve:
            ax.plot(curve.index, curve[seed], color=colour, lw=0.7, alpha=0.5)
        ax.plot(curve.index, curve.mean(axis=1), color=colour, lw=2, marker=".", label=quantity(metric))
    ax.set_title(title, fontsize=10, color=INK)
    ax.set_xlabel("communication round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    percent_axis(ax, "test/acc_mean")
    legend(ax)
    return figure
