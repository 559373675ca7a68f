"""The canvas of a report's figures: matplotlib's object interface, no pyplot, no global state.

Colours are told apart by colour-blind readers and on light and dark ground; line styles and markers differ too.
Axes and text are drawn in two colours that `svg` turns into the page's own (`--ink`, `--rule`).
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from fpl_tune.report.words import percent

COLOURS = ("#1f77b4", "#d1582a", "#1a936f", "#b5649b", "#b58900", "#4f9fcf", "#8c6d4f", "#7a7a7a")
INK, RULE = "#20242b", "#d4d7dc"
MARKERS = "osD^vPX*"
DASHES = ((4, 2), (1.5, 1.5), (6, 2, 1.5, 2), (8, 3))


def blank(width: float = 7.2, height: float = 4.0, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure (inches) with axes beside each other, light rules, no box."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, 1 + i) for i in range(columns)]
    for ax in axes:
        ax.grid(True, color=RULE, linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(INK)
        ax.tick_params(colors=INK, labelsize=9)
        for label in (ax.xaxis.label, ax.yaxis.label, ax.title):
            label.set_color(INK)
            label.set_fontsize(10)
    return figure, axes


def _literal(figure: Figure) -> None:
    """Keeps dollar signs of labels from being read as formulas; ticks of log axes are formulas of matplotlib."""
    for text in figure.findobj(Text):
        if "$" in text.get_text() and "mathdefault" not in text.get_text():
            text.set_parse_math(False)


def svg(figure: Figure, name: str) -> str:
    """The figure as an inline SVG element that follows the page's theme; ids are unique to `name`."""
    _literal(figure)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "var(--ink)").replace(RULE, "var(--rule)")
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # nothing refers to groups
    return text.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def width(figure: Figure) -> float:
    """Of the figure on a page, in rem: its text is then about as large as the page's."""
    return round(7.2 * figure.get_figwidth(), 1)


def files(figure: Figure, path: Path) -> None:
    """Writes `<path>.png` for slides and `<path>.pdf` for papers, on white ground."""
    _literal(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_name(f"{path.name}.png"), format="png", dpi=150, facecolor="white")
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(path.with_name(f"{path.name}.pdf"), format="pdf", metadata={"CreationDate": None})


def legend(ax: Axes, **kwargs: Any) -> None:
    """A legend without a frame, where there is something to name."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, **kwargs)


def percent_axis(ax: Axes, metric: str, axis: str = "y") -> None:
    """Ticks of a share in percent."""
    if percent(metric):
        getattr(ax, f"{axis}axis").set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g}"))
