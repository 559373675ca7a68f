"""How charts are drawn, whatever their width."""

import re
from itertools import pairwise

import pytest
import vl_convert

from fpl_tune.core.formatting import plain
from fpl_tune.report import charts, vega

SHIFT = {"start": 0.0, "middle": 0.5, "end": 1.0}


def labels_below(spec: charts.Spec, width: int) -> list[tuple[str, float, float]]:
    """The labels of the first axis that lies below a chart, each with its left and right end."""
    svg = vl_convert.vegalite_to_svg(plain({"width": width, **spec, "config": vega.CONFIG}))
    axis = next(part for part in svg.split("aria-label=")[1:] if part.startswith('"X-axis'))
    shown = r'<text text-anchor="(\w+)" transform="translate\(([\d.]+),[^>]*?opacity="1"[^>]*>([^<]+)<'
    found = []
    for anchor, x, text in re.findall(shown, axis)[:-1]:  # the last one is the title
        wide = sum(10 if sign == "%" else 6.5 for sign in text)  # of 12 pixels, at least
        left = float(x) - SHIFT[anchor] * wide
        found.append((text, left, left + wide))
    return found


@pytest.mark.parametrize("width", range(240, 360, 30))
def test_labels_below_a_chart_keep_apart(width: int) -> None:
    rows = [
        {"series": "cells", "lam": lam, "mean": mean, "low": mean - 0.01, "high": mean + 0.01, "best": False,
         "label": str(lam), "seeds": 3, "number": number}
        for number, (lam, mean) in enumerate([(1000.25, 0.62), (2000.5, 0.65), (9000, 0.73)])
    ]  # fmt: skip
    colour, shares = charts.colours({"cells": 0}), charts.measured("test/acc_mean")
    for along in (charts.number("lam", "λ"), charts.names("label", None)):
        labels = labels_below(charts.lines(rows, along, shares, colour), width)
        assert len(labels) >= 3
        assert all(right[1] - left[2] >= 4 for left, right in pairwise(labels)), labels
