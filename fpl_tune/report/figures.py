"""Figures of a report: one function each, from facts to a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fpl_tune.report.canvas import COLOURS, DASHES, INK, MARKERS, blank, legend, percent_axis
from fpl_tune.report.facts import Facts, numeric
from fpl_tune.report.words import axis_name, percent, quantity, short
from fpl_tune.study.cells import shown
from fpl_tune.study.partition import Shares


def _positions(values: Sequence[Any]) -> tuple[np.ndarray, bool]:
    """Places of an axis' values: themselves, or 0, 1, ... where they are no numbers."""
    return (np.asarray(values, float), True) if numeric(values) else (np.arange(len(values), dtype=float), False)


def _place(ax: Axes, axis: str, values: Sequence[Any], places: np.ndarray, is_number: bool) -> None:
    ax.set_xlabel(axis_name(axis))
    if is_number and places.min() > 0 and places.max() / places.min() >= 50:
        ax.set_xscale("log")
    if not is_number or len(values) <= 4:
        ax.set_xticks(places, [shown(v) for v in values], rotation=0 if len(values) < 9 else 45)


# -- the axes' curves ----------------------------------------------------------------------------------------


def axis_curve(facts: Facts, axis: str) -> Figure:
    """The metric along one axis, mean over seeds with its standard deviation as a band, references as lines.

    Other axes: one line for each of their combinations, eight at most.
    """
    figure, (ax,) = blank()
    table = facts.table.loc[[cell.id for cell in facts.own]].dropna(subset=["mean"])
    values = list(dict.fromkeys(v for v in table[axis] if v is not None and v == v))
    values = sorted(values) if numeric(values) else values
    places, is_number = _positions(values)
    where = dict(zip(map(shown, values), places, strict=True))
    others = [a for a in facts.axes if a != axis]
    groups = list(table.groupby([table[a].map(shown) for a in others], sort=False)) if others else [((), table)]
    for i, (_, rows) in enumerate(groups[: len(COLOURS)]):
        rows = rows.assign(_x=[where.get(shown(v), np.nan) for v in rows[axis]]).sort_values("_x")
        name = ", ".join(f"{short(a)}={shown(rows[a].iloc[0])}" for a in others) or None
        _band(ax, rows["_x"], rows["mean"], rows["std"], COLOURS[i], label=name, marker=MARKERS[i])
    if facts.best is not None and facts.best.id in table.index:
        row = table.loc[facts.best.id]
        ax.plot(
            [where[shown(row[axis])]], [row["mean"]], "o", mfc="none", mec=INK, ms=13, mew=1.2,
            label="best by validation",
        )  # fmt: skip
    _references(ax, facts, axis, where, len(groups))
    _place(ax, axis, values, places, is_number)
    ax.set_ylabel(quantity(facts.metric))
    percent_axis(ax, facts.metric)
    legend(ax)
    return figure


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
    """Every cell's metric by one axis, the best by validation ringed: for studies that vary much at once."""
    figure, (ax,) = blank(4.9, 3.2)
    table = facts.table.loc[[cell.id for cell in facts.own]].dropna(subset=["mean", axis])
    values = _ordered(table[axis])
    places, is_number = _positions(values)
    where = dict(zip(map(shown, values), places, strict=True))
    ax.scatter([where[shown(v)] for v in table[axis]], table["mean"], s=22, color=COLOURS[0], alpha=0.7, lw=0)
    if facts.best is not None and facts.best.id in table.index:
        row = table.loc[facts.best.id]
        ax.plot([where[shown(row[axis])]], [row["mean"]], "o", mfc="none", mec=INK, ms=13)
    _place(ax, axis, values, places, is_number)
    ax.set_ylabel(quantity(facts.metric, over=""))
    percent_axis(ax, facts.metric)
    return figure


def _band(ax: Axes, x: Any, mean: pd.Series, spread: pd.Series, colour: str, **kwargs: Any) -> None:
    spread = spread.fillna(0.0)
    ax.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)
    ax.plot(x, mean, color=colour, lw=1.8, ms=5, **kwargs)


def learning_curves(facts: Facts, cells: Sequence[Any]) -> Figure:
    """Validation and test accuracy by round, mean over seeds with the standard deviation as a band."""
    figure, axes = blank(9.6, 3.8, columns=2)
    for ax, metric in zip(axes, ("val/acc_mean", facts.metric), strict=True):
        for i, cell in enumerate(cells):
            curve = facts.curve(cell, metric)
            if curve.empty:
                continue
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            if len(curve) == 1:  # nothing to learn: the same figure in every round
                ax.axhline(curve.to_numpy().mean(), color=colour, dashes=DASHES[0], lw=1.4, label=cell.label)
                continue
            style = {"label": cell.label, "marker": marker, "markevery": max(1, len(curve) // 8)}
            _band(ax, curve.index, curve.mean(axis=1), curve.std(axis=1, ddof=1), colour, **style)
        ax.set_xlabel("communication round")
        ax.set_ylabel(quantity(metric))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        percent_axis(ax, metric)
    legend(axes[-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def heat_map(facts: Facts, rows: str, columns: str) -> Figure:
    """The metric over two axes; where others vary too, the mean over them."""
    table = facts.table.loc[[cell.id for cell in facts.own]].dropna(subset=["mean"])
    keys = {a: [shown(v) for v in _ordered(table[a])] for a in (rows, columns)}
    grid = table.assign(_r=table[rows].map(shown), _c=table[columns].map(shown))
    grid = grid.pivot_table(index="_r", columns="_c", values="mean", aggfunc="mean")
    grid = grid.reindex(index=keys[rows], columns=keys[columns])
    figure, (ax,) = blank(max(4.5, 0.7 * grid.shape[1] + 2.2), max(3.0, 0.42 * grid.shape[0] + 1.4))
    ax.grid(False)
    values = grid.to_numpy(float)
    ax.imshow(values, cmap="cividis", aspect="auto", origin="lower")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for r, c in np.argwhere(~np.isnan(values)) if values.size <= 400 else []:
        text = f"{100 * values[r, c]:.1f}" if percent(facts.metric) else f"{values[r, c]:.3g}"
        ink = "white" if values[r, c] < middle else "black"
        ax.text(c, r, text, ha="center", va="center", fontsize=8, color=ink)
    ax.set_xticks(range(grid.shape[1]), grid.columns)
    ax.set_yticks(range(grid.shape[0]), grid.index)
    ax.set_xlabel(axis_name(columns))
    ax.set_ylabel(axis_name(rows))
    ax.set_title(quantity(facts.metric), fontsize=10, color=INK)
    return figure


def _ordered(values: pd.Series) -> list[Any]:
    unique = [v for v in dict.fromkeys(values) if v is not None and v == v]
    return sorted(unique) if numeric(unique) else unique


# -- costs, clients, importance ------------------------------------------------------------------------------


def pareto_front(cost: Sequence[float], gain: Sequence[float]) -> list[int]:
    """Indices of the points that no other point equals or beats in both, from cheap to dear."""
    front: list[int] = []
    for i in sorted(range(len(cost)), key=lambda i: (cost[i], -gain[i])):
        if not front or gain[i] > gain[front[-1]]:
            front.append(i)
    return front


def pareto(facts: Facts) -> Figure:
    """Accuracy against bytes sent, with the front of the cells that nothing cheaper beats."""
    table = facts.table.dropna(subset=["mean", "bytes"])
    figure, (ax,) = blank()
    mega = table["bytes"] / 1e6
    own = (table["role"] != "reference").to_numpy()
    ax.errorbar(mega[own], table["mean"][own], yerr=np.nan_to_num(table["std"][own]), fmt="o", ms=5, lw=0.8,
                color=COLOURS[0], alpha=0.8, label="cells")  # fmt: skip
    for i, name in enumerate(dict.fromkeys(map(facts.family, facts.references))):
        ids = [cell.id for cell in facts.references if facts.family(cell) == name and cell.id in table.index]
        style = {"ms": 7, "color": COLOURS[1 + i % 7], "label": name}
        ax.plot(mega[ids], table["mean"][ids], MARKERS[1 + i % 7], **style)
    front = pareto_front(mega.tolist(), table["mean"].tolist())
    ax.step(mega.iloc[front], table["mean"].iloc[front], where="post", color=INK, lw=1.0, label="front")
    for place in front[:6]:
        row = table.iloc[place]
        ax.annotate(row["label"], (row["bytes"] / 1e6, row["mean"]), xytext=(4, 5), textcoords="offset points",
                    fontsize=8, color=INK)  # fmt: skip
    positive = mega[mega > 0]
    if len(positive) and positive.max() > 50 * positive.min():
        ax.set_xscale("symlog", linthresh=positive.min())
    ax.set_xlabel("sent and received in the whole run, MB per seed")
    ax.set_ylabel(quantity(facts.metric))
    percent_axis(ax, facts.metric)
    legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def client_boxes(facts: Facts, cells: Sequence[Any]) -> Figure | None:
    """Accuracies of clients (all seeds together), a box per cell; None where the store keeps none."""
    return boxes(
        {cell.label: np.concatenate([facts.clients(cell, s) for s in facts.seeds(cell)] or [[]]) for cell in cells},
        quantity(facts.metric, over=""),
        percent(facts.metric),
    )


def boxes(groups: Mapping[str, np.ndarray], title: str, in_percent: bool) -> Figure | None:
    """Boxes (quartiles, median, extremes) with their points, one group a row."""
    kept = {name: values[~np.isnan(values)] for name, values in groups.items() if np.isfinite(values).any()}
    if not kept:
        return None
    figure, (ax,) = blank(7.2, 0.9 + 0.36 * len(kept))
    scale = 100 if in_percent else 1
    for row, values in enumerate(kept.values()):
        colour = COLOURS[row % len(COLOURS)]
        low, first, middle, third, high = scale * np.percentile(values, [0, 25, 50, 75, 100])
        ax.hlines(row, low, high, color=colour, lw=1.2)
        ax.barh(row, third - first, left=first, height=0.6, color=colour, alpha=0.25, edgecolor=colour, lw=1.2)
        ax.vlines(middle, row - 0.3, row + 0.3, color=INK, lw=1.8)
        jitter = row + 0.22 * np.sin(np.arange(len(values)) * 2.4)
        ax.plot(scale * values, jitter, ".", ms=4, color=colour, alpha=0.55)
    ax.set_yticks(range(len(kept)), list(kept))
    ax.invert_yaxis()
    ax.set_xlabel(title)
    return figure


def partition(shares: Shares) -> Figure:
    """Who holds which classes: a disc for every client and class, its area the number of training images."""
    n, k = shares.counts.shape
    figure, (ax,) = blank(min(12.0, 2.2 + 0.24 * k), min(9.0, 1.2 + 0.26 * n))
    clients, classes = np.nonzero(shares.counts)
    held = shares.counts[clients, classes]
    names = list(dict.fromkeys(shares.domains))
    for i, name in enumerate(names):
        mine = np.array([shares.domains[c] == name for c in clients], bool)
        size = 90 * held[mine] / held.max() * min(1.0, 20 / max(n, k))
        ax.scatter(classes[mine], clients[mine], s=size, color=COLOURS[i % len(COLOURS)], lw=0, label=name)
    if k <= 40:
        ax.set_xticks(range(k), shares.classes, rotation=90)
    ax.set_xlabel("class")
    ax.set_ylabel("client")
    ax.set_ylim(n - 0.5, -0.5)
    if len(names) > 1:
        legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5), title=None, markerscale=0.8)
    return figure


def bars(names: Sequence[str], values: Sequence[float], title: str) -> Figure:
    """Horizontal bars, the first on top."""
    figure, (ax,) = blank(7.2, 0.9 + 0.34 * len(names))
    ax.barh(range(len(names)), values, color=COLOURS[0], height=0.62)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel(title)
    return figure


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
