"""The rooms of the package and who may import whom. Nothing else may."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fpl_tune"

EVERYBODY = {"formatting", "errors", "plugins", "seeds", "spec"}
SIMULATION = {
    "batches",
    "bounds",
    "checkpoint",
    "clip",
    "config",
    "data",
    "device",
    "divergence",
    "engine",
    "evaluate",
    "files",
    "graphs",
    "learned",
    "redact",
    "method",
    "methods",
    "optim",
    "paths",
    "task",
    "trial",
    "worlds",
}
"""One federated simulation and what it stands on."""
ALLOWED: dict[str, set[str]] = {
    "analysis": set(),  # works on any table
    "formatting": set(),
    "errors": set(),
    "spec": set(),
    "paths": set(),
    "files": set(),
    "plugins": set(),
    "redact": set(),
    "device": set(),
    "conf": set(),
    "contract": {"clip", "data"},
    "worlds": {"batches", "config", "task"},
    "bounds": {"config", "method", "task"},
    "checkpoint": {"files"},
    "method": {"inside", "tensors"},
    "inside": set(),
    "tensors": {"method"},  # its types alone
    "seeds": set(),
    "methods": {"method"},
    "wrappers": {"method"},
    "data": {"files"},
    "clip": {"data", "device", "method"},  # the compact CLIP is trained on the embedded world
    "optim": {"method"},
    "task": {"clip", "data", "device", "method"},
    "batches": {"method", "optim", "task"},
    "graphs": {"batches", "device", "method", "optim", "task"},
    "engine": {"batches", "graphs", "method", "optim", "task"},
    "evaluate": {"method", "task"},
    "divergence": {"batches", "method", "optim", "task"},
    "testing": {"batches", "clip", "data", "engine", "evaluate", "graphs", "method", "methods", "optim", "task"},
    "config": {"data", "files", "evaluate", "method", "methods", "optim", "paths", "redact", "task"},
    "trial": {
        "batches",
        "bounds",
        "checkpoint",
        "clip",
        "config",
        "device",
        "divergence",
        "engine",
        "evaluate",
        "files",
        "graphs",
        "learned",
        "method",
        "methods",
        "optim",
        "task",
        "worlds",
    },
    "learned": {"files", "method", "task"},
    "serve": SIMULATION,
    "study": SIMULATION | {"analysis"},
    "search": SIMULATION | {"analysis", "study"},
    "execute": SIMULATION | {"study", "search"},
    "plan": SIMULATION | {"study", "search", "execute"},
    "track": SIMULATION | {"study", "execute"},
    "report": SIMULATION | {"analysis", "study", "search"},
    "bench": SIMULATION | {"study", "execute", "testing", "track"},
    "api": SIMULATION | {"study", "search", "execute", "plan"},
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
            if own and rest[0] not in {room} | EVERYBODY | ALLOWED[room]:
                wrong.append(f"{file}: {room} may not import {rest[0]}")
            if top in LIBRARIES and room not in LIBRARIES[top]:
                wrong.append(f"{file}: only {LIBRARIES[top]} may import {top}")
    assert not wrong


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
