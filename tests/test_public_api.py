"""Libraries are used by their public API alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fpl_tune"
LIBRARIES = {"ray", "optuna", "mlflow", "hydra", "omegaconf", "pydantic", "rich", "typer", "pandas"}


def private_uses(source: str) -> Iterator[str]:
    """Private modules, names and attributes of libraries that a file uses.

    Attributes of modules and of names imported from them are seen. Those of other objects are reported by pyright, so
    a suppressed report counts as a use.
    """
    tree = ast.parse(source)
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in LIBRARIES:
                    imported.add((alias.asname or alias.name).split(".")[0])
                    if any(_private(part) for part in alias.name.split(".")):
                        yield f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            for alias in node.names:
                imported.add(alias.asname or alias.name)
                if any(_private(part) for part in f"{node.module}.{alias.name}".split(".")):
                    yield f"from {node.module} import {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute | ast.Call):
                root = root.func if isinstance(root, ast.Call) else root.value
            if isinstance(root, ast.Name) and root.id in imported:
                yield f"line {node.lineno}: {ast.unparse(node)}"
            if node.attr.count("__") and not node.attr.endswith("__"):
                yield f"line {node.lineno}: {ast.unparse(node)}"  # a name-mangled field
    for number, line in enumerate(source.splitlines(), 1):
        if imported and "reportPrivate" in line:
            yield f"line {number}: {line.strip()}"


def _private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def test_no_private_api_of_a_library() -> None:
    found = {str(path): list(private_uses(path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py")}
    assert not {path: uses for path, uses in found.items() if uses}
