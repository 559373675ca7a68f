"""Charts of a report that are no curves: costs, clients, shares, partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fpl_tune.analysis import Ranks
from fpl_tune.report.canvas import COLOURS, DASHES, INK, MARKERS, blank, legend, percent_axis
from fpl_tune.report.facts import Facts
from fpl_tune.report.words import percent, quantity
from fpl_tune.study.partition import Shares


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
    names = {cell.id: facts.name(cell) for cell in facts.cells}
    front = pareto_front(mega.tolist(), table["mean"].tolist())
    ax.step(mega.iloc[front], table["mean"].iloc[front], where="post", color=INK, lw=1.0, label="front")
    for place in front[:6]:
        row = table.iloc[place]
        right = row["bytes"] > table["bytes"].max() / 2
        ax.annotate(names[table.index[place]], (row["bytes"] / 1e6, row["mean"]), xytext=(-6 if right else 4, 5),
                    textcoords="offset points", fontsize=8, color=INK, ha="right" if right else "left")  # fmt: skip
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
        {
            facts.name(cell): np.concatenate([facts.clients(cell, s) for s in facts.seeds(cell)] or [[]])
            for cell in cells
        },
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
    if n <= 40:
        ax.set_yticks(range(n), [str(1 + client) for client in range(n)])
    ax.set_xlabel("class")
    ax.set_ylabel("client")
    ax.set_ylim(n - 0.5, -0.5)
    if len(names) > 1:
        legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5), title=None, markerscale=0.8)
    return figure


def bars(
    names: Sequence[str],
    values: Sequence[float],
    title: str,
    *,
    spread: Sequence[float] | None = None,
    equal: float = 0.0,
) -> Figure:
    """Horizontal bars with their values, the first on top; a line where all are `equal`, whiskers of `spread`."""
    figure, (ax,) = blank(7.2, 0.9 + 0.34 * len(names))
    ax.barh(range(len(names)), values, color=COLOURS[0], height=0.62)
    ax.errorbar(values, range(len(names)), xerr=spread, fmt="none", ecolor=INK, elinewidth=1)
    for row, value in enumerate(values):
        reach = value + (spread[row] if spread is not None else 0.0)
        ax.annotate(f"{value:.1f}", (reach, row), xytext=(5, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color=INK)  # fmt: skip
    if equal:
        ax.axvline(equal, color=INK, lw=1, dashes=DASHES[0], label=f"equal shares, {equal:.3g}")
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.6 / figure.get_figheight()))
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.grid(False, axis="y")
    ax.set_xlabel(title)
    return figure


def critical_difference(found: Ranks) -> Figure:
    """Mean ranks of cells, the best on top; bars join the cells whose ranks are not told apart (Demsar 2006)."""
    ranks = {str(name): float(rank) for name, rank in found.ranks.items()}
    names = list(ranks)
    figure, (ax,) = blank(7.2, 1.4 + 0.3 * len(names))
    ax.plot(list(ranks.values()), range(len(names)), "o", ms=6, color=COLOURS[0])
    for i, group in enumerate(found.groups):
        x = len(names) + 0.25 + 0.35 * i
        ends = [ranks[group[0]], ranks[group[-1]]]
        ax.plot(ends, [x, x], lw=4, color=COLOURS[1], solid_capstyle="butt")
        for name, end in zip((group[0], group[-1]), ends, strict=True):
            ax.vlines(end, names.index(name), x, color=INK, lw=0.6, alpha=0.5)
    ax.plot([1, 1 + found.critical_difference], [-0.8, -0.8], "|-", color=INK, lw=1.2)
    ax.annotate(f"critical difference {found.critical_difference:.2f}", (1, -0.8), xytext=(0, 5),
                textcoords="offset points", fontsize=8.5, color=INK)  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) + 0.35 * len(found.groups), -1.6)
    ax.grid(False, axis="y")
    ax.set_xlabel(f"mean rank over {found.datasets} data sets (1 is the best)")
    return figure


def profiles(found: pd.DataFrame, metric: str) -> Figure:
    """Share of runs above each threshold, one line a cell, with bootstrap bands; see `analysis.performance_profile`."""
    figure, (ax,) = blank()
    for i, (name, rows) in enumerate(found.groupby("cell", sort=False)):
        colour = COLOURS[i % len(COLOURS)]
        ax.fill_between(rows["threshold"], rows["low"], rows["high"], color=colour, alpha=0.12, lw=0, step="post")
        ax.step(rows["threshold"], rows["share"], where="post", color=colour, lw=1.6, label=str(name))
    percent_axis(ax, metric, "x")
    percent_axis(ax, "test/acc_mean")
    ax.set_xlabel(f"{quantity(metric, over='')}, threshold")
    ax.set_ylabel("runs (data set, seed) above it (%)")
    legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
