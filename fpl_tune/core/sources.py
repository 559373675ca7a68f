"""The source of methods and plug-ins: that of a module, and of the modules of its own project that it imports."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_ROOMS = ("fpl_tune.methods.", "fpl_tune.wrappers.")
"""The project of the package's own methods; the rest of the package is identified by its version."""
_INSTALLED = {"site-packages", "dist-packages"}


@cache  # a class or function keeps its code even if its file changes
def source_of(thing: Any) -> str:
    """The syntax of the module of a class or function, and of all modules of the same project that it imports.

    The project of a module is its top-level package, together with the modules and packages in the same folder unless
    they are installed. Imports inside functions count; data files and modules that are imported by a computed name do
    not.

    Args:
        thing: a class or function. For a `functools.partial`, its function is used.

    Returns:
        The syntax trees as text, without comments, docstrings and layout.
    """
    _, texts = _project(thing)
    return "\n".join(syntax(texts[path]) for path in sorted(texts)) or syntax(inspect.getsource(thing))


def own_files(thing: Any) -> dict[Path, Path]:
    """The files of `source_of` by their place in the project; none of the package and of what is installed."""
    root, texts = _project(thing)
    if _INSTALLED & set(root.parts) or str(getattr(thing, "func", thing).__module__).partition(".")[0] == "fpl_tune":
        return {}
    return {path.relative_to(root): path for path in texts}


def _project(thing: Any) -> tuple[Path, dict[Path, str]]:
    """The folder of the project of a class or function, and the texts of its files; none if it has no file."""
    module = inspect.getmodule(getattr(thing, "func", thing))
    if module is None or not getattr(module, "__file__", None):
        return Path(), {}
    file, parts = Path(inspect.getfile(module)).resolve(), module.__name__.split(".")
    root = file.parents[len(parts) if file.name == "__init__.py" else len(parts) - 1]
    texts: dict[Path, str] = {}
    pending = [file]
    while pending:
        here = pending.pop()
        if here not in texts:
            texts[here] = here.read_text(encoding="utf-8")
            pending += _imported(texts[here], here.relative_to(root).parts[:-1], root, module.__name__)
    return root, texts


def syntax(source: str) -> str:
    """The syntax tree of a module as a string, without docstrings, comments and layout; the same in every Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        if not getattr(node, "type_params", True):  # a field from Python 3.12 on
            del node.type_params  # type: ignore[attr-defined]
    return ast.dump(tree, **_WHOLE)


_WHOLE: dict[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # before, empty fields always show


def _imported(source: str, package: tuple[str, ...], root: Path, of: str) -> Iterator[Path]:
    """Yields the files of the same project that a module imports, including the packages that contain them.

    Args:
        source: source of the module.
        package: the module's package.
        root: the folder of the project's packages and modules.
        of: name of the module whose project it is.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            names = [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            inside = name.split(".")
            for n in range(1, len(inside) + 1):  # importing a module also runs its packages
                if _is_own(".".join(inside[:n]), root, of):
                    path = root.joinpath(*inside[:n])
                    yield from (file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file())


def _is_own(name: str, root: Path, of: str) -> bool:
    """True if a module is part of the project of the module `of`, which lies below `root`."""
    if of.startswith("fpl_tune."):
        return name.startswith(_ROOMS)
    top = name.partition(".")[0]
    return top == of.partition(".")[0] or (top != "fpl_tune" and not _INSTALLED & set(root.parts))
