"""The source of a method: its module and those of its project that it imports, and nothing of layout."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from fpl_tune.core.sources import source_of, syntax
from fpl_tune.methods.kgcoop import KgCoOp
from fpl_tune.methods.promptfl import PromptFL

Project = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """project({file: source}, "module"): writes files into a folder of the path, and gives the source of `f` there."""
    folder, before = tmp_path / "work", set(sys.modules)
    monkeypatch.syspath_prepend(folder)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    def write(files: dict[str, str], module: str, below: str = "") -> str:
        for name, text in files.items():
            path = folder / below / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if below:
            monkeypatch.syspath_prepend(folder / below)
        forget()
        return source_of(import_module(module).f)

    yield write
    forget()


F = "\n\ndef f(): return 1\n"
IMPORTS = [
    ("import helper", "helper.py"),
    ("import helper as h", "helper.py"),
    ("from helper import x", "helper.py"),
    ("def g():\n    from helper import x", "helper.py"),
    ("if True:\n    import helper", "helper.py"),
    ("from package import part", "package/part.py"),
    ("from package import part", "package/__init__.py"),
    ("import package.part", "package/part.py"),
    ("import package.part", "package/__init__.py"),
    ("from package.part import x", "package/part.py"),
    ("from package.deep.leaf import x", "package/deep/leaf.py"),
    ("import middle", "helper.py"),
]
FILES = {
    "helper.py": "x = 1\n",
    "middle.py": "from helper import x\n",
    "package/__init__.py": "",
    "package/part.py": "x = 1\n",
    "package/deep/__init__.py": "",
    "package/deep/leaf.py": "x = 1\n",
    "unused.py": "x = 1\n",
}


@pytest.mark.parametrize(("line", "file"), IMPORTS)
def test_modules_that_a_module_imports_count(project: Project, line: str, file: str) -> None:
    before = project({**FILES, "mine.py": line + F}, "mine")
    assert project({file: f"{FILES[file]}y = 2\n"}, "mine") != before
    assert project({file: f"# a word\n{FILES[file]}"}, "mine") == before
    assert project({"unused.py": "x = 2\n"}, "mine") == before


@pytest.mark.parametrize(
    ("module", "line", "file"),
    [
        ("package.method", "from . import part", "package/part.py"),
        ("package.method", "from .part import x", "package/part.py"),
        ("package.deep.method", "from .. import part", "package/part.py"),
        ("package.deep.method", "from ..part import x", "package/part.py"),
        ("package.deep.method", "from . import leaf", "package/deep/leaf.py"),
        ("package.method", "from package.deep import leaf", "package/deep/leaf.py"),
        ("package.method", "import helper", "helper.py"),
    ],
)
@pytest.mark.parametrize("below", ["", "site-packages"])
def test_modules_of_a_package_count(project: Project, module: str, line: str, file: str, below: str) -> None:
    """Beside an installed package lie those of others."""
    path = f"{module.replace('.', '/')}.py"
    before = project({**FILES, path: line + F}, module, below)
    changed = project({file: f"{FILES[file]}y = 2\n"}, module, below) != before
    assert changed == (not below or file.startswith("package/"))


def test_modules_that_import_each_other(project: Project) -> None:
    files = {"mine.py": f"import other{F}", "other.py": "import mine\n"}
    assert project(files, "mine") != project({"other.py": "import mine\nx = 1\n"}, "mine")


def test_a_class_keeps_the_code_that_it_was_made_of(project: Project, tmp_path: Path) -> None:
    before = project({"mine.py": F}, "mine")
    (tmp_path / "work" / "mine.py").write_text("x = 1" + F)
    assert source_of(import_module("mine").f) == before
    assert source_of(partial(import_module("mine").f)) != before, "asked for the first time"


def test_methods_of_the_package_are_their_files_and_shared_helpers() -> None:
    own, derived = source_of(PromptFL), source_of(KgCoOp)
    assert "'merge'" not in syntax(Path(str(sys.modules[KgCoOp.__module__].__file__)).read_text(encoding="utf-8"))
    assert "name='merge'" in derived, "of the helper that it derives from"
    assert "'catalogue'" not in own, "the package itself is named by its release"


SOURCE = '''
"""A module."""


class Mine:
    """A class."""

    def f(self, x):
        """A function."""
        return [x]  # itself
'''
TREE = (
    "Module(body=[ClassDef(name='Mine', bases=[], keywords=[], body=[FunctionDef(name='f', args=arguments("
    "posonlyargs=[], args=[arg(arg='self'), arg(arg='x')], kwonlyargs=[], kw_defaults=[], defaults=[]), "
    "body=[Return(value=List(elts=[Name(id='x', ctx=Load())], ctx=Load()))], decorator_list=[])], decorator_list=[])], "
    "type_ignores=[])"
)


def test_a_source_is_its_syntax_under_every_python() -> None:
    """Python 3.12 has a field more, and 3.13 leaves empty ones out: results outlive such an update."""
    assert syntax(SOURCE) == TREE
    assert syntax("class Mine:\n  def f(self, x): return ([x])") == TREE
    assert syntax(SOURCE.replace("[x]", "[x, x]")) != TREE
