"""How figures and names are written: in tables, axes and MLflow's notes alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fpl_tune.formatting import duration as duration
from fpl_tune.formatting import percent as percent

_SETS = {"val": "validation", "test": "test"}
_NAMED = {
    "train/parameters": "parameters that a client learns",
    "time/test_seconds": "time of testing (s)",
}


def quantity(metric: str, over: str = ", mean over clients") -> str:
    """A metric in words with its unit: `test/acc_mean` is "test accuracy (%, mean over clients)"."""
    if metric in _NAMED:
        return _NAMED[metric]
    room, _, name = metric.rpartition("/")
    where = " ".join(_SETS.get(part, part) for part in room.split("/") if part)
    if name == "acc_mean":
        return f"{where} accuracy (%{over})"
    words = name.replace("acc_", "accuracy, ").replace("_", " ")
    return f"{where} {words}{' (%)' if percent(metric) else ''}".strip()


def short(dotted: str) -> str:
    """A field without its group where that says enough: `method.lam` is `lam`, `optim.lr` is `lr`."""
    return dotted.rpartition(".")[2] if dotted.count(".") == 1 else dotted


_SYMBOLS = {"lam": "λ", "mu": "μ", "tau": "τ", "gamma": "γ", "alpha": "α"}


def axis_name(dotted: str) -> str:
    """A field as an axis is titled: its symbol where papers write one, and its name."""
    name = short(dotted)
    return f"{_SYMBOLS[name]} ({name})" if name in _SYMBOLS else name


def points(value: float, spread: float = math.nan, digits: int = 2) -> str:
    """A figure with so many digits and, if known, its spread, as papers print them."""
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if math.isnan(spread) else f"{value:.{digits}f} ± {spread:.{digits}f}"


def figure(value: float | None, metric: str, digits: int = 2) -> str:
    """A value of a metric: percent without its sign, or four significant digits; `–` for none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.{digits}f}" if percent(metric) else f"{value:.4g}"


def plus_minus(mean: float, spread: float | None, metric: str) -> str:
    """`97.61 ± 0.11`; without a spread the mean alone."""
    if spread is None or math.isnan(spread):
        return figure(mean, metric)
    return f"{figure(mean, metric)} ± {figure(spread, metric)}"


def signed(value: float, metric: str) -> str:
    """A difference with its sign."""
    return "–" if math.isnan(value) else f"{100 * value:+.2f}" if percent(metric) else f"{value:+.4g}"


def p_value(p: float | None) -> str:
    """`0.032`, `< 0.001`, or `–`."""
    return "–" if p is None or math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def megabytes(count: float) -> str:
    """Bytes in MB (10^6)."""
    return "–" if math.isnan(count) else f"{count / 1e6:.3g}"


def numeric(values: Iterable[Any]) -> bool:
    """Whether all values (None aside) are numbers, so that they make an axis of a plot."""
    present = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    return bool(present) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in present)
