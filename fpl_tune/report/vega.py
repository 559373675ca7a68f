"""Rendering of charts by vl-convert: the library with which the page draws them, and SVG, PNG and PDF of them."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image

from fpl_tune.core.files import write_text
from fpl_tune.core.formatting import plain
from fpl_tune.core.paths import cache_root
from fpl_tune.report.charts import COLOURS, Spec

_TEXT = {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12}
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {**_TEXT, "titleFontWeight": "normal", "gridColor": "#8884", "domainColor": "currentColor",
             "tickColor": "currentColor", "labelLimit": 220, "labelOverlap": True},
    "axisXQuantitative": {"labelSeparation": 8},
    "legend": {**_TEXT, "title": None, "orient": "bottom", "columns": 3, "labelLimit": 260, "symbolType": "circle",
               "symbolOpacity": 1},
    "title": {"color": "currentColor", "fontSize": 12, "fontWeight": "normal", "anchor": "start"},
    "range": {"category": COLOURS, "ramp": {"scheme": "viridis"}, "heatmap": {"scheme": "cividis"}},
    "line": {"strokeWidth": 2}, "point": {"filled": True, "size": 45}, "rule": {"color": "currentColor"},
    "text": {"color": "currentColor"}, "rect": {"tooltip": True},
}  # fmt: skip
"""Colours of text and rules follow the page's theme; in pictures they are black."""
WIDTH = 620
"""Of a chart's files, in pixels, without labels."""
SCALE = 2
"""Pixels of a PNG for one of the page."""


def to_json(node: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(plain(node), separators=(",", ":")).replace("<", "\\u003c")


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as base64 of gzip, which a page unpacks: 0.4 MB instead of 0.9.

    vl-convert takes two seconds to bundle them, so that the text is kept in the cache.
    """
    kept = cache_root() / f"vega-{version('vl-convert-python')}.txt"
    with suppress(OSError):
        return kept.read_text("ascii")
    import vl_convert

    code = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue] - its stub has no default
    text = base64.b64encode(gzip.compress(code.encode(), mtime=0)).decode()
    with suppress(OSError):  # a cache that cannot be written
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, text)
    return text


def files(spec: Spec, cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes `<path>.svg`, `<path>.png` for slides and `<path>.pdf` for papers."""
    import vl_convert

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = whole(spec, cells)
    path.with_name(f"{path.name}.svg").write_text(vl_convert.vegalite_to_svg(drawn), encoding="utf-8")
    path.with_name(f"{path.name}.png").write_bytes(png(spec, cells))
    path.with_name(f"{path.name}.pdf").write_bytes(vl_convert.vegalite_to_pdf(drawn))


def png(spec: Spec, cells: Sequence[Mapping[str, Any]]) -> bytes:
    """A chart as PNG of `SCALE` pixels for each of the page's."""
    import vl_convert

    drawn = vl_convert.vegalite_to_png(whole(spec, cells), scale=SCALE)
    packed = io.BytesIO()  # a sixth of the size: the picture has no transparency, and vl-convert packs loosely
    Image.open(io.BytesIO(drawn)).convert("RGB").save(packed, "PNG", optimize=True)
    return packed.getvalue()


def whole(spec: Spec, cells: Sequence[Mapping[str, Any]], width: int = WIDTH) -> dict[str, Any]:
    """A specification with its data, width and colours, on white. Panels share the width."""
    sized = {"width": width, **spec}
    if "facet" in spec:
        sized = {**spec, "spec": {**spec["spec"], "width": width // spec["columns"] - 12}}
    return plain({**sized, "datasets": {"cells": list(cells)}, "config": CONFIG, "background": "white"})
