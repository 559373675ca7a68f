"""What the documents name in `code` exists: words, modules, fields, options and files.

Guides that name other code beside ours, and pages that are written from the package, are left out.
"""

import ast
import builtins
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import document
import typer

from fpl_tune import methods
from fpl_tune.cli.common import app
from fpl_tune.core import plugins

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("fpl_tune", "tests", "benchmarks", "docs", "studies", "search_spaces")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
SOURCES = [path for path in FILES if path.suffix == ".py" and path != Path(__file__)]
SETTINGS = [path for path in FILES if path.suffix == ".yaml"]
PAGES = [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
LEFT_OUT = {"from_dassl.md", "from_tune.md", "parity.md", *document.PAGES}
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in PAGES if path.name not in LEFT_OUT}
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMED = {
    code: page
    for page, text in TEXTS.items()
    for code in re.findall(r"`([^`]+)`", BLOCK.sub("", text).replace("\n", " "))
}
"""Code in the text -> a page that names it."""
ELSEWHERE = set(
    """
DB DIR HyperBandScheduler ID Information MedianStoppingRule PORT System Volume activate my_study pre vX with_parameters
""".split()
)
"""Words that are neither the code's nor in an example: placeholders, other programs, Ray's classes."""


@cache
def _words() -> set[str]:
    """Words of the code, without comments and docstrings, of settings and of the examples; and names of files."""
    words = {*dir(builtins), *sys.stdlib_module_names} | {path.stem for path in FILES} | {*ROOT.name.split()}
    for path in SOURCES:
        words.update(re.findall(r"\w+", ast.unparse(_undocumented(path.read_text(encoding="utf-8")))))
    texts = [re.sub("#.*", "", path.read_text(encoding="utf-8")) for path in SETTINGS]
    texts += [block for text in TEXTS.values() for block in BLOCK.findall(text)]
    texts += [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml")]
    return words.union(*(re.findall(r"\w+", text) for text in texts))


def _undocumented(source: str) -> ast.Module:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = [*node.body[1:], ast.Pass()]
    return tree


def _wrong(pattern: str, known: Any) -> list[str]:
    """What is named so and not known, with its page."""
    return [f"{page}: {code}" for code, page in NAMED.items() if re.fullmatch(pattern, code) and not known(code)]


def test_every_word_of_code_is_one() -> None:
    def known(code: str) -> bool:
        words = re.findall(r"\b[^\W\d]\w*", code)
        known = _words() | ELSEWHERE
        return all(_begins(word) or {word, re.sub(r"^test_|_\d+$", "", word)} & known for word in words)

    assert not _wrong(r"(?![0-9a-f]{32,}).*", known)


def _begins(word: str) -> bool:
    """Whether it is the beginning of several words."""
    return word.endswith("_") and any(other.startswith(word) for other in _words())


def test_every_dotted_name_of_the_package_is_one() -> None:
    entry_points = {f"fpl_tune.{kind}" for kind in get_args(plugins.Kind)}

    def known(code: str) -> bool:
        name = code.partition("(")[0]
        if name in entry_points:
            return True
        module = name
        while True:
            try:
                value: Any = import_module(module)
                break
            except ModuleNotFoundError:
                module = module.rpartition(".")[0]
        for part in filter(None, name.removeprefix(module).split(".")):
            value = getattr(value, part, None)
        return value is not None

    assert not _wrong(r"fpl_tune(\.\w+)+(\(.*)?", known)


def test_every_field_is_one() -> None:
    """Of a study, of a method of the package, or of one in an example; a mapping's keys are the user's."""
    fields = {*document.fields_of("StudySpec")}
    examples = "".join(block for text in TEXTS.values() for block in BLOCK.findall(text))

    def known(code: str) -> bool:
        group, field = code.split(".")[:2]
        if group == "method":
            return bool(methods.owners(field)) or re.search(rf"^    {field}: ", examples, re.MULTILINE) is not None
        return bool({code, f"{group}.{field}"} & fields)

    groups = {name.partition(".")[0] for name in fields if "." in name} | {"method"}
    assert not _wrong(rf"({'|'.join(groups)})(\.(?!pt\b|html\b)\w+)+", known)


def test_every_option_is_one() -> None:
    pending, options = [typer.main.get_command(app)], set[str]()
    while pending:
        command: Any = pending.pop()
        pending += getattr(command, "commands", {}).values()
        options |= {name for parameter in command.params for name in parameter.opts}
    scripts = "".join(path.read_text(encoding="utf-8") for path in SOURCES if "fpl_tune" not in path.parts)
    assert not _wrong("--.*", lambda code: code.split()[0] in options or f'"{code.split()[0]}"' in scripts)


def test_every_file_is_one() -> None:
    """Of the repository, or what the reader writes: a module that is named as `module:Class`, a study of an example."""
    text = "\n".join(TEXTS.values())
    written = re.findall(r"\b(\w+):[A-Z]\w", text) + re.findall(r"^```yaml\n# (?:studies/)?(\w+)", text, re.MULTILINE)

    def known(code: str) -> bool:
        return Path(code).stem.removeprefix("test_") in written or any(ROOT.glob(re.sub("<[^>]+>", "*", code)))

    assert not _wrong(rf"({'|'.join(FOLDERS)}|\.github)/\S*", known)
    names = {path.name for path in FILES} | {f"{name}.py" for name in sys.stdlib_module_names}
    assert not _wrong(r"\w+\.py", lambda code: code in names or code.removesuffix(".py") in written)


def test_a_row_names_the_file_that_defines_what_it_names() -> None:
    for line in re.findall(r"^\|.*`fpl_tune/\S+\.py`.*\|$", "".join(TEXTS.values()), re.MULTILINE):
        (path,) = re.findall(r"`(fpl_tune/\S+\.py)`", line)
        text = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", line):
            assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), line
