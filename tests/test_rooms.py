"""The rooms of the package and who may import whom; nothing else may. Libraries are used by their public API alone."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

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
    "study": {"clip", "config", "core", "data", "method", "methods", "simulation"},
    "findings": {"analysis", "config", "core", "data", "methods", "simulation", "study"},
    "search": {"analysis", "config", "core", "findings", "method", "methods", "simulation", "study"},
    "execute": {"clip", "config", "core", "data", "findings", "method", "methods", "search", "simulation", "study"},
    "track": {"core", "execute", "simulation", "study"},
    "report": {"analysis", "core", "findings", "search", "study"},
    "bench": {"clip", "config", "core", "data", "methods", "simulation"},
    "parity": {"clip", "config", "core", "data", "method", "simulation"},
    "testing": {"clip", "config", "core", "data", "method", "simulation"},
    "api": {"clip", "config", "core", "execute", "findings", "report", "search", "simulation", "study"},
}
"""Room -> rooms it may import. `cli`, `__main__` and the package itself may import all."""

FREE = {"cli", "__main__", "__init__"}

LIBRARIES = {
    "ray": {"execute"},
    "mlflow": {"track"},
    "optuna": {"report", "search"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "typer": {"cli"},
    "open_clip": {"clip", "parity", "testing"},
}
"""Library -> the only rooms that may import it."""


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _is_module(package: str, name: str) -> bool:
    """Whether `from package import name` imports a module of ours."""
    place = PACKAGE.parent.joinpath(*package.split("."), name)
    return place.is_dir() or place.with_suffix(".py").is_file()


def _imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            names.update(f"{module}.{alias.name}" if _is_module(module, alias.name) else module for alias in node.names)
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


def test_imports_form_no_circle() -> None:
    """Neither those of rooms nor those of modules, at run time and for types, wherever in a file they stand."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    imported = {name.removesuffix(".__init__"): _imports(path) for name, path in modules.items()}
    for graph in (ALLOWED, imported):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


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


PUBLIC = {
    "ray", "optuna", "mlflow", "hydra", "omegaconf", "pydantic", "rich", "typer", "pandas", "torch", "torchvision",
    "open_clip", "timm", "transformers", "tokenizers", "numpy", "scipy", "PIL", "psutil", "sqlalchemy", "filelock",
    "jinja2", "safetensors", "vl_convert", "huggingface_hub", "dp_accounting", "yaml",
}  # fmt: skip
PRIVATE = {"torch.ops.aten._softmax_backward_data", "from torch._subclasses import FakeTensorMode"}
"""The uses that CONTRIBUTING.md names."""


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
                if alias.name.split(".")[0] in PUBLIC:
                    imported.add((alias.asname or alias.name).split(".")[0])
                    if any(_private(part) for part in alias.name.split(".")):
                        yield f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PUBLIC:
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
                yield ast.unparse(node)
            if node.attr.count("__") and not node.attr.endswith("__"):
                yield ast.unparse(node)  # a name-mangled field
    for line in source.splitlines():
        if imported and "reportPrivate" in line:
            yield line.strip()


def _private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def test_no_private_api_of_a_library() -> None:
    uses = [(use, path.name) for path in FILES for use in private_uses(path.read_text(encoding="utf-8"))]
    assert {use for use, _ in uses} == PRIVATE, uses
