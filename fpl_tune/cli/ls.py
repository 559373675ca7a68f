"""`fpl-tune ls`: methods, data sets, studies and towers."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

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
    table = format == "table"
    if kind == "data":
        rows = _data(table)
    elif kind == "methods":
        rows = [_narrow(row) for row in _methods()] if table else _methods()
    elif kind == "studies":
        rows = [{"study": name, "what": headline(path)} for name, path in list_studies().items()]
    else:
        rows = [_tower(path) for path in sorted(shipped("conf", "clip").glob("*.yaml"))]
    output.emit(rows, format)


def _data(table: bool) -> list[dict[str, Any]]:
    """All data sets and where their files are expected."""
    from fpl_tune.data.sources import catalogue

    rows = catalogue()
    if not table:
        return rows
    described = "description and default partition"
    return [
        {
            "data set": row["name"],
            described: f"{row['what']}\n{row['partition']}",
            "expected below data.root": row["files"],
        }
        for row in rows
    ]


def _methods() -> list[dict[str, Any]]:
    """The methods as their source describes them: nothing is imported, so that the list appears at once."""
    rows: dict[str, dict[str, Any]] = {}
    for name, path in method_files().items():
        text = path.read_text(encoding="utf-8")
        doc = text.split('"""')[1]
        needs = re.search(r'^    (?:needs.* = "(\w+)"|def needs\(self\))', text, re.MULTILINE)
        url = re.search(r"https?://\S+?(?=[.,;)]*(?:\s|$))", doc)
        varies = path.parent.name == "wrappers" or (needs and not needs[1])
        rows[name] = {
            "method": name,
            "what": headline(path),
            "needs": "depends on its options" if varies else needs[1] if needs else "pooled",
            "options": ", ".join(_options(text)),
            "paper": url[0] if url else "",
        }
    others = {path.stem: path for path in sorted(shipped("conf", "method").glob("*.yaml")) if path.stem not in rows}
    for name, path in others.items():
        parts = ", ".join(re.findall(r"name: (\w+)", path.read_text(encoding="utf-8")))
        rows[name] = {"method": name, "what": headline(path), "needs": "", "options": parts, "paper": ""}
    brought = [
        {"method": n, "what": "plug-in", "needs": "", "options": "", "paper": ""} for n in plugins.names("methods")
    ]
    return [*rows.values(), *brought]


def _narrow(row: dict[str, str]) -> dict[str, str]:
    """A method in three columns for the terminal."""
    needs = "" if row["needs"] in ("pooled", "") else f"needs: {row['needs']}"
    what = "\n".join(filter(None, [row["what"], row["paper"].removeprefix("https://")]))
    return {"method": row["method"], "what": what, "options": "\n".join(filter(None, [row["options"], needs]))}


def _tower(path: Path) -> dict[str, Any]:
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        "clip": path.stem,
        "towers": node["name"],
        "weights": node["pretrained"] or "shipped",
        "what": headline(path),
    }


def headline(path: Path) -> str:
    """The first line of a file's docstring or comment."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(('"""', "# ")) and not line.startswith("# @package"):
            return line.strip('"# ').rstrip(".")
    return ""


def _options(source: str) -> list[str]:
    """Fields of the dataclasses in a method's source, without what a wrapper wraps."""
    kinds = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.decorator_list]
    fields = [field for kind in kinds for field in kind.body if isinstance(field, ast.AnnAssign)]
    names = [ast.unparse(field.target) for field in fields if "ClassVar" not in ast.unparse(field.annotation)]
    return [name for name in names if name != "inner"]
