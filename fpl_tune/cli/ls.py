"""`fpl-tune ls`: methods, data sets, studies and towers."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer

from fpl_tune.cli.common import Format, FormatOption, app


class Kind(str, Enum):
    """What `ls` lists."""

    methods = "methods"
    data = "data"
    studies = "studies"
    towers = "towers"
    results = "results"  # deprecated: `fpl-tune status`


@app.command(epilog="Example: fpl-tune ls methods", rich_help_panel="Set up")
def ls(
    kind: Annotated[Kind, typer.Argument(help="What to list.", metavar="methods|data|studies|towers")],
    root: Annotated[str | None, typer.Option(help="With data: a data.root; lists what is in it.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List methods, data sets (with the files they expect), studies, or CLIP towers."""
    from fpl_tune.cli import output

    if kind is Kind.results:
        from fpl_tune.cli.deprecated import deprecated
        from fpl_tune.cli.status import list_results

        deprecated("ls results", "status")
        list_results(format)
    elif kind is Kind.data:
        list_data(root, format)
    elif kind is Kind.methods:
        rows = _methods()
        output.emit([_narrow(row) for row in rows] if format is Format.table else rows, format)
    else:
        output.emit(_studies() if kind is Kind.studies else _towers(), format)


def list_data(root: str | None, format: Format) -> None:
    """Prints all data sets and where their files are expected; with a root, which of them are there."""
    from fpl_tune.cli import output
    from fpl_tune.data import check

    rows = check.catalogue(root)
    if format is Format.table:
        last = "files" if root is None else "there"
        described = "description and default partition"
        title = "expected below data.root" if root is None else "below data.root"
        rows = [
            {"data set": row["name"], described: f"{row['what']}\n{row['partition']}", title: row[last]} for row in rows
        ]
    output.emit(rows, format)


def _methods() -> list[dict[str, str]]:
    """The methods as their source describes them: nothing is imported, so that the list appears at once."""
    from fpl_tune import plugins
    from fpl_tune.cli.complete import headline, method_fields, method_files
    from fpl_tune.paths import shipped

    rows = []
    for name, path in method_files().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        text = ast.get_docstring(tree) or ""
        url = re.search(r"https?://\S+?(?=[.,;)]*(?:\s|$))", text)
        options = (field.removeprefix("method.") for field in method_fields(name))
        rows.append(
            {
                "method": name,
                "what": text.splitlines()[0].rstrip("."),
                "needs": "depends on its options" if path.parent.name == "wrappers" else _needs(tree),
                "options": ", ".join(options),
                "paper": url.group(0) if url else "",
            }
        )
    known = {row["method"] for row in rows}
    for path in sorted(shipped("conf", "method").glob("*.yaml")):
        if path.stem not in known:
            parts = ", ".join(re.findall(r"name: (\w+)", path.read_text(encoding="utf-8")))
            rows.append({"method": path.stem, "what": headline(path), "needs": "", "options": parts, "paper": ""})
    for name in plugins.names("methods"):
        rows.append({"method": name, "what": "plug-in", "needs": "", "options": "", "paper": ""})
    return rows


def _needs(tree: ast.Module) -> str:
    """What the images of a method's file are: its `needs`, which a property computes from other fields."""
    found = "pooled"
    for node in (node for kind in tree.body if isinstance(kind, ast.ClassDef) for node in kind.body):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "needs" and node.value is not None:
            found = str(ast.literal_eval(node.value))
        elif isinstance(node, ast.FunctionDef) and node.name == "needs":
            found = "depends on its options"
    return found


def _narrow(row: Mapping[str, str]) -> dict[str, str]:
    """A method in three columns for the terminal."""
    needs = "" if row["needs"] in ("pooled", "") else f"needs: {row['needs']}"
    what = "\n".join(filter(None, [row["what"], row["paper"].removeprefix("https://")]))
    return {"method": row["method"], "what": what, "options": "\n".join(filter(None, [row["options"], needs]))}


def _studies() -> list[dict[str, str]]:
    from fpl_tune.cli.complete import headline
    from fpl_tune.paths import list_studies

    return [{"study": name, "what": headline(path)} for name, path in list_studies().items()]


def _towers() -> list[dict[str, Any]]:
    import yaml

    from fpl_tune.cli.complete import headline
    from fpl_tune.paths import shipped

    rows = []
    for path in sorted(shipped("conf", "clip").glob("*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        towers = {"towers": node["name"], "weights": node["pretrained"] or "shipped"}
        rows.append({"clip": path.stem, **towers, "what": headline(path)})
    return rows
