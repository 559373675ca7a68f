"""The source of methods and plug-ins: of a module, and of the modules of its own project that it imports."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_ROOMS = ("fpl_tune.methods.", "fpl_tune.wrappers.")
"""Own project of the package's methods; the release names the rest of the package."""
_INSTALLED = {"site-packages", "dist-packages"}


@cache  # a class or function keeps the code that it was made of, whatever becomes of its file
def source_of(thing: Any) -> str:
    """The syntax of a class's or function's module, and of all modules of its own project that it needs.

    The project of a module is its top-level package, and the modules and packages beside it unless they are installed.
    Imports inside of functions count; data files and modules that are imported by a computed name do not.

    Args:
        thing: a class or function; of `functools.partial`, what it calls.

    Returns:
        The syntax trees as text, without comments, docstrings and layout.
    """
    module = inspect.getmodule(getattr(thing, "func", thing))
    if module is None or not getattr(module, "__file__", None):
        return syntax(inspect.getsource(thing))
    file, parts = Path(inspect.getfile(module)).resolve(), module.__name__.split(".")
    root = file.parents[len(parts) if file.name == "__init__.py" else len(parts) - 1]
    found: dict[Path, str] = {}
    left = [file]
    while left:
        here = left.pop()
        if here not in found:
            text = here.read_text(encoding="utf-8")
            found[here] = syntax(text)
            left += _imported(text, here.relative_to(root).parts[:-1], root, module.__name__)
    return "\n".join(found[path] for path in sorted(found))


def syntax(source: str) -> str:
    """The syntax tree of a module as text, without docstrings, comments and layout: the same under every Python."""
    tree = ast.parse(source)
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:]
        if not getattr(part, "type_params", True):  # a field from Python 3.12 on
            del part.type_params  # type: ignore[attr-defined]
    return ast.dump(tree, **_WHOLE)


_WHOLE: dict[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # before, empty fields always show


def _imported(source: str, package: tuple[str, ...], root: Path, of: str) -> Iterator[Path]:
    """The files of its own project that a module imports, packages on the way included.

    Args:
        source: of the module.
        package: that it lies in.
        root: the folder that the project's packages and modules lie in.
        of: name of the module whose project it is.
    """
    for part in ast.walk(ast.parse(source)):
        if isinstance(part, ast.Import):
            names = [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            base = package[: len(package) + 1 - part.level] if part.level else ()
            names = [".".join([*base, *filter(None, [part.module]), alias.name]) for alias in part.names]
        else:
            continue
        for name in names:
            inside = name.split(".")
            for n in range(1, len(inside) + 1):  # importing a module runs the packages that it lies in
                if _is_own(".".join(inside[:n]), root, of):
                    place = root.joinpath(*inside[:n])
                    yield from (file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())


def _is_own(name: str, root: Path, of: str) -> bool:
    """True if a module is part of the project of the module `of`, which lies below `root`."""
    if of.startswith("fpl_tune."):
        return name.startswith(_ROOMS)
    top = name.partition(".")[0]
    return top == of.partition(".")[0] or (top != "fpl_tune" and not _INSTALLED & set(root.parts))
