"""`fpl-tune ls`: methods, data sets, studies and towers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, app, method_files
from fpl_tune.core import plugins
from fpl_tune.core.paths import list_studies, shipped


@app.command(epilog="Example: fpl-tune ls methods", rich_help_panel="Set up")
def ls(
    kind: Annotated[
        Literal["methods", "data", "studies", "towers"],
        typer.Argument(help="What to list.", metavar="methods|data|studies|towers"),
    ],
    format: FormatOption = "table",
) -> None:
    """List methods, data sets (with the files they expect), studies, or CLIP towers."""
    if kind == "data":
        from fpl_tune.data.sources import catalogue

        rows: list[dict[str, Any]] = list(catalogue())
    elif kind == "methods":
        rows = _methods()
    elif kind == "studies":
        rows = [{"study": name, "what": headline(path)} for name, path in list_studies().items()]
    else:
        rows = [{"clip": path.stem, "what": headline(path)} for path in sorted(shipped("conf", "clip").glob("*.yaml"))]
    output.emit(rows, format)


def _methods() -> list[dict[str, Any]]:
    """The methods with the first line of their source; nothing is imported, so the list appears immediately."""
    composed = {path.stem: path for path in sorted(shipped("conf", "method").glob("*.yaml"))}
    rows = []
    for name, path in (composed | method_files()).items():
        url = re.search(r"https?://\S+?(?=[.,;)]*(?:\s|$))", path.read_text(encoding="utf-8"))
        rows.append({"method": name, "what": headline(path), "paper": url[0] if url else ""})
    return [*rows, *({"method": name, "what": "plug-in", "paper": ""} for name in plugins.names("methods"))]


def headline(path: Path) -> str:
    """The first line of a file's docstring or comment."""
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        if line.startswith(('"""', "# ")) and not line.startswith("# @package"):
            return line.strip('"# ').rstrip(".")
    return ""
