"""The rooms of the package and who may import whom. Nothing else may."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fpl_tune"

ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "method": {"core"},
    "methods": {"core", "method"},
    "wrappers": {"core", "method"},
    "analysis": {"core"},  # works on any table
    "data": {"core"},
    "clip": {"core", "data", "method"},  # the compact CLIP is trained on the embedded world
    "config": {"clip", "core", "data", "method", "methods"},
    "simulation": {"clip", "config", "core", "data", "method", "methods"},
    "study": {"analysis", "config", "core", "data", "clip", "method", "methods", "simulation"},
    "search": {"analysis", "config", "core", "data", "method", "methods", "simulation", "study"},
    "execute": {"clip", "config", "core", "data", "method", "methods", "search", "simulation", "study"},
    "track": {"config", "core", "execute", "methods", "simulation", "study"},
    "report": {"analysis", "config", "core", "data", "method", "methods", "search", "simulation", "study"},
    "testing": {"clip", "config", "core", "data", "execute", "method", "methods", "simulation", "study", "track"},
    "api": {"clip", "config", "core", "execute", "search", "simulation", "study"},
}
"""Room -> rooms it may import. `cli`, `__main__` and the package itself may import all."""

FREE = {"cli", "__main__", "__init__"}

LIBRARIES = {
    "ray": {"execute"},
    "mlflow": {"track"},
    "optuna": {"search"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "typer": {"cli"},
    "open_clip": {"clip", "testing"},
}
"""Library -> the only rooms that may import it."""


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            names.update(f"{module}.{alias.name}" if module == "fpl_tune" else module for alias in node.names)
    return names


FILES = sorted(PACKAGE.rglob("*.py"))


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        room, file = _room(path), path.relative_to(PACKAGE)
        for name in _imports(path):
            top, *rest = name.split(".")
            own = top == "fpl_tune" and rest and room not in FREE and not rest[0].startswith("__")
            if own and rest[0] not in {room} | ALLOWED[room]:
                wrong.append(f"{file}: {room} may not import {rest[0]}")
            if top in LIBRARIES and room not in LIBRARIES[top]:
                wrong.append(f"{file}: only {LIBRARIES[top]} may import {top}")
    assert not wrong


def test_the_rooms_have_no_circle() -> None:
    remaining = {room: set(others) for room, others in ALLOWED.items()}
    while remaining:
        free = {room for room, others in remaining.items() if not others & remaining.keys()}
        assert free, f"these rooms import each other: {sorted(remaining)}"
        remaining = {room: others for room, others in remaining.items() if room not in free}


def test_a_method_imports_no_other_method() -> None:
    others = {f"fpl_tune.methods.{p.stem}" for p in (PACKAGE / "methods").glob("[!_]*.py")}  # _x.py: shared helpers
    imported = {p.name: others & _imports(p) for p in (PACKAGE / "methods").glob("*.py")}
    assert not {name: found for name, found in imported.items() if found}


def test_the_table_names_every_room() -> None:
    assert {_room(path) for path in FILES} - FREE <= ALLOWED.keys()


def test_no_method_is_named_outside_its_file() -> None:
    """No branch on a method's name: the engine and all that surrounds it know methods by the interface only."""
    names = {p.stem for p in (PACKAGE / "methods").glob("[!_]*.py")}
    for path in FILES:
        if _room(path) in {"methods", "wrappers"}:
            continue
        compared = {
            side.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Compare)
            for side in [node.left, *node.comparators]
            if isinstance(side, ast.Constant) and isinstance(side.value, str)
        }
        assert not compared & names, f"{path.name} compares with a method's name: {compared & names}"
