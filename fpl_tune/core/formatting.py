"""Formatting of counts, durations and sizes in the terminal, in messages and in reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import filesize

from fpl_tune.core.metrics import metric as row


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1 cell`, `2 cells`, `1,000 cells`; `plural` where it is not the noun with an s."""
    return f"{number:,.0f} {noun if number == 1 else plural or f'{noun}s'}"


def listed(noun: str, items: Iterable[object]) -> str:
    """`seed 1`, `seeds 1, 2`."""
    texts = [str(item) for item in items]
    return f"{noun if len(texts) == 1 else f'{noun}s'} {', '.join(texts)}"


def some(items: Sequence[object], most: int = 8) -> str:
    """`a, b, c`; with more than `most` items, the first ones and the number of the others: `a, b and 12 more`.

    Items of which one has a comma itself are separated by semicolons.
    """
    texts = [str(item) for item in items[:most]]
    shown = ("; " if any(", " in text for text in texts) else ", ").join(texts)
    return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown


def joined(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


def percent(metric: str) -> bool:
    """True if a metric is a share that people read in percent."""
    return row(metric).unit == "%"


_UNITS = {"%": ("%", 100.0), "B": ("MB", 1e-6), "M": ("M", 1e-6), "FLOP": ("GFLOP", 1e-9), "s": ("s", 1.0)}


def unit(metric: str) -> str:
    """The unit that a metric is printed in: `%`, `MB`, `M`, `GFLOP` or `s`; empty for a plain number."""
    return _UNITS.get(row(metric).unit, ("", 1.0))[0]


def unit_after(metric: str) -> str:
    """The unit as it follows a value, after a space; empty for a plain number."""
    return f" {unit(metric)}" if unit(metric) else ""


def unit_of_gap(metric: str) -> str:
    """The unit of a metric's differences, after a space: ` points` for shares."""
    return " points" if percent(metric) else unit_after(metric)


def scaled(value: float, metric: str) -> float:
    """A value of a metric in the unit that it is printed in."""
    return _UNITS.get(row(metric).unit, ("", 1.0))[1] * value


def duration(seconds: float) -> str:
    """`12.3 s`, `4 min 05 s`, `2 h 03 min`; `–` if it is not known (NaN)."""
    if math.isnan(seconds):
        return "–"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(seconds: float) -> str:
    """`about 44 s left`, in whole seconds, as an estimate is not more precise."""
    whole = max(round(seconds), 1)
    return f"about {f'{whole} s' if whole < 60 else duration(whole)} left"


def left(seconds: float | None, *, ending: bool = False, again: str = "") -> str:
    """The time left of a running study in words; None if there is no estimate yet."""
    if ending:
        return f"ending after the round{again}"
    return "starting" if seconds is None else time_left(seconds)


def size(count: float) -> str:
    """A number of bytes such as `1.3 MB`, in powers of 1000."""
    return filesize.decimal(round(count))


_SYMBOLS = {"lam": "λ", "mu": "μ", "tau": "τ", "gamma": "γ", "alpha": "α"}


def quantity(metric: str, over: str = ", mean over clients") -> str:
    """A metric with its unit: "test accuracy (%, mean over clients)" for `test/acc_mean`."""
    over = over if metric.endswith("/acc_mean") else ""
    return f"{row(metric).title} ({unit(metric)}{over})" if unit(metric) else row(metric).title


def words(metric: str) -> str:
    """A metric without its unit: "test accuracy" for `test/acc_mean`."""
    return row(metric).title


def plain(value: Any) -> Any:
    """Values for JSON: NaN and infinity become None, scalars of NumPy and PyTorch Python's, other objects strings."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def upper(text: str) -> str:
    """A string with a capital first letter."""
    return text[:1].upper() + text[1:]


def short(dotted: str) -> str:
    """The last part of a field's name: `method.lam` is `lam`."""
    return dotted.rpartition(".")[2]


def titles(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Short names of fields for labels, tables and charts: the last part of the dotted name unless it is ambiguous.

    Args:
        names: dotted names of the fields.
        taken: names of other things, which no field may have.

    Returns:
        The short names by dotted name.
    """
    names = [*names]
    last = [*map(short, names), *taken]
    return {name: short(name) if last.count(short(name)) == 1 else name for name in names}


def axis_name(title: str) -> str:
    """A field, given by its title, as the title of an axis: its usual symbol, if it has one, and its name."""
    return f"{_SYMBOLS[title]} ({title})" if title in _SYMBOLS else title


def symbol(title: str) -> str:
    """A field, given by its title, in a sentence: its usual symbol, if it has one, else its name."""
    return _SYMBOLS.get(title, title)


def points(value: float, spread: float = math.nan, digits: int = 2) -> str:
    """A value with `digits` digits and, if known, its spread, as papers print them."""
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if math.isnan(spread) else f"{value:.{digits}f} ± {spread:.{digits}f}"


def figure(value: float | None, metric: str, digits: int = 2) -> str:
    """A value of a metric without its unit: percent, or at least four significant digits; `–` for none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.{digits}f}" if percent(metric) else _four_digits(scaled(value, metric))


def plus_minus(mean: float | None, spread: float | None, metric: str, digits: int = 2) -> str:
    """`97.61 ± 0.11`; without a spread the mean alone."""
    if spread is None or math.isnan(spread):
        return figure(mean, metric, digits)
    return f"{figure(mean, metric, digits)} ± {figure(spread, metric, digits)}"


def with_unit(mean: float | None, metric: str, spread: float = math.nan, digits: int = 2) -> str:
    """`97.61 ± 0.11 %`: a value, its spread if there is one, and its unit."""
    return f"{plus_minus(mean, spread, metric, digits)}{unit_after(metric)}"


def signed(value: float, metric: str, digits: int = 2) -> str:
    """A difference with its sign; differences that are printed as 0 have a +."""
    if math.isnan(value):
        return "–"
    if percent(metric):
        return f"{round(100 * value, digits) + 0.0:+.{digits}f}"
    return _four_digits(scaled(value, metric) + 0.0, "+")


def gap(difference: float, metric: str, digits: int = 2) -> str:
    """`+1.20 points`: a difference with its sign and unit."""
    return f"{signed(difference, metric, digits)}{unit_of_gap(metric)}"


def _four_digits(value: float, sign: str = "") -> str:
    """`0.1235`, `12.35`, `409,600`: a number with four significant digits, or without decimals from 10,000."""
    return format(value, f"{sign},.0f" if 9999.5 <= abs(value) < 1e15 else f"{sign}.4g")


def interval(row: Mapping[str, Any], metric: str, digits: int = 2) -> str:
    """`+0.12 to +0.80`: the interval `low` to `high` of a difference; `–` where there is none."""
    low, high = float(row["low"]), float(row["high"])
    return "–" if math.isnan(low) else f"{signed(low, metric, digits)} to {signed(high, metric, digits)}"


FEW_IMAGES = 50
"""Number of images below which accuracies move in steps of more than 2 points."""


def few_images(what: str, images: float) -> str:
    """`The test set has only 20 images a seed, so accuracies move in steps of 5 points and cells may tie.`; empty for
    none and for enough."""
    if not 0 < images < FEW_IMAGES:
        return ""
    steps = f"accuracies move in steps of {100 / images:.2g} points and cells may tie"
    return f"{what} has only {counted(images, 'image')} a seed, so {steps}."


def megabytes(count: float) -> str:
    """Bytes in MB (10^6) with three significant digits, or without decimals from 1,000 MB."""
    return "–" if math.isnan(count) else f"{count / 1e6:{'.3g' if count < 9.995e8 else '.0f'}}"


def numeric(values: Iterable[Any]) -> bool:
    """True if all values (None and NaN aside) are numbers, so that they can form a numeric axis."""
    present = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    return bool(present) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in present)
