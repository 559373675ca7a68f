"""Which small wrong edits of a room's code do its tests catch?

    python tests/shared/mutation.py data --seed 7 --count 30

A room is a package or a module of `fpl_tune/`; its tests are those of the first tier in `tests/<room>/`. They run once
with coverage by test. Then lines of the room are drawn by seed, and one edit on each; the tests that reach the line run
on a copy of the repository in which it stands. An edit is caught if a test fails or takes too long. Those that no test
catches are printed, and the share that was caught.

Tests run in forks of this process, which has imported the libraries but nothing of the package: seconds an edit.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARIES = (
    "torch ray.tune mlflow.tracking optuna.samplers hydra omegaconf hypothesis scipy.stats pandas pydantic typer rich "
    "jinja2 sqlalchemy safetensors.torch PIL.Image dp_accounting vl_convert"
)
"""What the package and its tests import, and takes long to."""
_CONTRACT = "methods/test_contract.py"
MIRRORS = {
    "api": ["test_api.py"],
    "method": ["test_method.py", _CONTRACT],
    "report": ["report", "test_api.py", "search/test_ablation.py", "findings/test_claims.py"],
    "search": ["search", "findings/test_claims.py"],
    "findings": ["findings", "report/test_tuned.py"],
    "study": ["study", "findings", "core/test_metrics.py"],
    "wrappers": ["wrappers", _CONTRACT],
}
"""Tests of rooms for which tests/<room> is not all."""
PAGES = "test_readme.py::test_the_pages_of_the_docstrings_are_current"
"""Fields and defaults stand in the reference, which is generated: it runs last for what a module does on import."""
SECONDS = 20
"""A test may take this long on top of five times as long as without an edit."""


class Edit(NamedTuple):
    """A piece of a file, in bytes, and what takes its place.

    Attributes:
        path: of the file, in the repository.
        line: of the piece's first character.
        start: byte where the piece begins.
        stop: byte behind its last.
        new: text that takes its place.
        scopes: lines (first, last) of the statement, and of the definitions around it from the inside out.
    """

    path: str
    line: int
    start: int
    stop: int
    new: str
    scopes: tuple[tuple[int, int], ...]

    def applied(self, source: bytes) -> bytes:
        """The file with the edit in it."""
        return source[: self.start] + self.new.encode() + source[self.stop :]

    def diff(self, source: bytes) -> str:
        """Both forms of the lines that differ."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.stop)
        old, new = source[first:last], source[first : self.start] + self.new.encode() + source[self.stop : last]
        marked = [f"{sign} {line}" for sign, text in (("-", old), ("+", new)) for line in text.decode().splitlines()]
        return "\n".join([f"{self.path}:{self.line}", *marked])


_OPERATORS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and"},
    **{"is": "is not", "is not": "is", "in": "not in", "not in": "in"},
    **{"+": "-", "-": "+", "*": "/", "/": "*", "//": "/", "%": "+", "**": "*", "&": "|", "|": "&"},
}
_FUNCTIONS = {
    **{"min": "max", "max": "min", "amin": "amax", "amax": "amin", "argmin": "argmax", "argmax": "argmin"},
    **{"mean": "sum", "sum": "mean", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"},
    **{"startswith": "endswith", "endswith": "startswith"},
}
_SILENT = ("log", "logger", "logging", "warnings", "print", "TypeVar", "cast")
"""Calls that say something, or nothing at run time."""


class _Edits(ast.NodeVisitor):
    """Collects the edits of a file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.edits = path, source, list[Edit]()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._scopes: tuple[tuple[int, int], ...] = ()
        self._statement: ast.stmt | None = None

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self._starts[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, stop = self._span(node)
        return self.source[start:stop].decode()

    def _put(self, start: int, stop: int, new: str) -> None:
        line = self.source.count(b"\n", 0, start) + 1
        self.edits.append(Edit(self.path, line, start, stop, new, self._scopes))

    def _swap(self, node: ast.expr | ast.stmt, new: str) -> None:
        self._put(*self._span(node), new)

    def _between(self, left: ast.expr, right: ast.expr) -> None:
        """Swaps the operator that stands between two operands, with brackets and spaces around it."""
        start, stop = self._span(left)[1], self._span(right)[0]
        between = self.source[start:stop].decode()
        operator = between.strip(" ()\n").removesuffix("=" if isinstance(self._statement, ast.AugAssign) else "")
        if operator in _OPERATORS:
            self._put(start, stop, between.replace(operator, _OPERATORS[operator]))

    def visit(self, node: ast.AST) -> None:
        before = self._scopes, self._statement
        if isinstance(node, ast.stmt):
            last, body = node.end_lineno or node.lineno, getattr(node, "body", None)
            if isinstance(body, list) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                last = max(node.lineno, body[0].lineno - 1)
            self._scopes, self._statement = ((node.lineno, last), *self._scopes), node
            self._dropped(node)
        super().visit(node)
        self._scopes, self._statement = before

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def _dropped(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Call()) if not _silent(node.value):
                self._swap(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
                if self._scopes[1:]:
                    self._swap(node, "pass")
            case ast.Break():
                self._swap(node, "continue")
            case ast.Continue():
                self._swap(node, "break")
                self._swap(node, "pass")
            case ast.Return(value=ast.expr() as value) if self._text(value) != "None":
                self._swap(value, "None")
            case _:
                pass

    def _skip(self, node: ast.AST) -> None: ...

    visit_Import = visit_ImportFrom = visit_Raise = visit_Assert = visit_JoinedStr = _skip

    def _branch(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._negated(node.test)
            self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _branch

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negated(test)
            self._swap(test, "True")
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        self._swap(test, f"(not ({self._text(test)}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in itertools.pairwise([node.left, *node.comparators]):
            self._between(left, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in itertools.pairwise(node.values):
            self._between(left, right)
        for value in node.values:
            self._swap(value, str(isinstance(node.op, ast.And)))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._swap(node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        types = isinstance(node.op, ast.BitOr) and not self._scopes[1:]
        texts = _is_text(node.left) or _is_text(node.right)
        if not types and not texts:
            self._between(node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._between(node.target, node.value)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._swap(node, str(not node.value))
        elif isinstance(node.value, int):
            self._swap(node, str(node.value + 1 if node.value < 10 else 2 * node.value))
            self._swap(node, str(node.value - 1) if node.value else "(-1)")
        elif isinstance(node.value, float):
            self._swap(node, f"{2 * node.value or 1.0}")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper):
                if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                    self._swap(bound, f"({self._text(bound)} + 1)")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # an assertion
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _silent(node) or (isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")):
            return
        for keyword in node.keywords:
            if keyword.arg not in (None, "strict", "encoding") and len(node.args) + len(node.keywords) > 1:
                start, stop = self._span(keyword)
                before = self.source[:start].rstrip()
                if before.endswith(b","):
                    self._put(len(before) - 1, stop, "")
                elif self.source[stop : stop + 1] == b",":
                    self._put(start, stop + 1, "")
        match node.func:
            case ast.Name(id="sorted"):
                reverse = next((it for it in node.keywords if it.arg == "reverse"), None)
                stop = self._span(node)[1] - 1
                if reverse is None and not self.source[:stop].rstrip().endswith((b",", b")")):
                    self._put(stop, stop, ", reverse=True")
            case ast.Name(id="range") if not isinstance(node.args[-1], ast.Constant):
                self._swap(node.args[-1], f"{self._text(node.args[-1])} - 1")
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _FUNCTIONS:
                stop = self._span(node.func)[1]
                self._put(stop - len(name), stop, _FUNCTIONS[name])
            case _:
                pass
        self.generic_visit(node)


def _silent(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0].strip("_") in _SILENT


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def edits_of(path: str, source: bytes) -> list[Edit]:
    """All edits of a file that compile, none twice.

    Operators, numbers and conditions change; statements, keyword arguments and results go. Messages, annotations,
    imports and assertions stay.
    """
    visitor = _Edits(path, source)
    visitor.visit(ast.parse(source))
    return [edit for edit in dict.fromkeys(visitor.edits) if _compiles(edit.applied(source))]


def _compiles(source: bytes) -> bool:
    with contextlib.suppress(SyntaxError):
        ast.parse(source)
        return True
    return False


def sample(edits: Sequence[Edit], count: int, seed: int | str) -> list[Edit]:
    """Draws lines, each as often as the others, and one edit on each."""
    drawn, lines = random.Random(seed), defaultdict[tuple[str, int], list[Edit]](list)
    for edit in edits:
        lines[edit.path, edit.line].append(edit)
    return [drawn.choice(lines[line]) for line in drawn.sample(sorted(lines), min(count, len(lines)))]


class Reach(NamedTuple):
    """Which tests reach which lines, and how long each takes."""

    lines: Mapping[str, Mapping[int, Collection[str]]]
    seconds: Mapping[str, float]

    def tests(self, edit: Edit) -> list[str]:
        """The tests to run on an edit, short files first: those that reach its statement.

        What a module does while it is imported no test reaches alone: then those that reach the definition around it,
        or, of a constant of the module, all. A line that only one test of a file reaches may be in a fixture or a cache
        that the others share: then all of that file's tests.
        """
        lines = self.lines.get(edit.path, {})
        reached, pages = set[str](), list[str]()
        for first, last in edit.scopes:
            reached = {test for line, tests in lines.items() if first <= line <= last for test in tests}
            if reached:
                break
            pages = [test for test in self.seconds if test.endswith(PAGES)]
        files = defaultdict[str, list[str]](list)
        for test in reached or self.seconds.keys() - pages:
            files[test.partition("::")[0]].append(test)
        for file, tests in files.items():
            if len(tests) == 1:
                files[file] = [test for test in self.seconds if test.partition("::")[0] == file]
        total = {file: sum(self.seconds[test] for test in tests) for file, tests in files.items()}
        return [test for file in sorted(files, key=total.__getitem__) for test in files[file]] + pages


class _Chosen:
    """A plug-in of pytest: runs the named tests, in their order by file, and notes how they end.

    Args:
        tests: their names; None: all of the first tier.
        seconds: how long each takes.
    """

    def __init__(self, tests: Sequence[str] | None, seconds: Mapping[str, float]) -> None:
        self.tests, self.limits = tests, seconds
        self.seconds, self.failed = defaultdict[str, float](float), list[str]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.tests is not None:
            order = {test: number for number, test in enumerate(self.tests)}
            items[:] = sorted((it for it in items if it.nodeid in order), key=lambda item: order[item.nodeid])
            for item in items:
                item.add_marker(pytest.mark.timeout(SECONDS + 5 * self.limits[item.nodeid]), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def _fork(copy: Path, words: Sequence[str], chosen: _Chosen) -> int:
    """Runs pytest in a fork that finds the package in `copy`. Returns the fork's process id."""
    if pid := os.fork():
        return pid
    code = 3
    try:
        os.setsid()
        os.chdir(copy)
        own = {str(REPOSITORY), str(Path(__file__).parent)}
        sys.path[:] = [str(copy), *(path for path in sys.path if path not in own)]
        os.environ["PYTHONPATH"] = str(copy)
        with open(copy / "output", "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        base = ["-q", "--assert=plain", "-p", "no:cacheprovider", "--basetemp", str(copy / "temporary")]
        code = pytest.main([*base, *words], plugins=[chosen])
        (copy / "ended.json").write_text(json.dumps({"failed": chosen.failed, "seconds": chosen.seconds}))
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def measure(copy: Path, paths: Sequence[str]) -> Reach:
    """Runs the tests of a room once, with coverage by test. Tests that fail as it is are left out."""
    words = [*paths, "-m", "not system", "--cov", "--cov-context=test", "--cov-report="]
    os.waitpid(_fork(copy, words, _Chosen(None, {})), 0)
    ended = json.loads((copy / "ended.json").read_text()) if (copy / "ended.json").exists() else {}
    if not ended.get("seconds"):
        raise SystemExit((copy / "output").read_text())
    for test in ended["failed"]:
        print(f"fails without an edit: {test}")
    data = coverage.CoverageData(str(copy / ".coverage"))
    data.read()
    seconds = {test: took for test, took in ended["seconds"].items() if test not in ended["failed"]}
    lines = {
        str(Path(file).relative_to(copy)): {
            line: {test for test in (context.rpartition("|")[0] for context in contexts) if test in seconds}
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    return Reach(lines, seconds)


def copied(folder: Path) -> Path:
    """A copy of what git knows, and of new files."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    return folder


class _Running(NamedTuple):
    """An edit under way."""

    edit: Edit
    copy: Path
    until: float


def caught(edits: Sequence[Edit], copies: Sequence[Path], reach: Reach) -> Iterator[tuple[Edit, str]]:
    """Tries edits, as many in parallel as there are copies. Yields each with the test that caught it, or ""."""
    free, running, waiting = list(copies), dict[int, _Running](), list(reversed(edits))
    while waiting or running:
        while waiting and free:
            edit, copy = waiting.pop(), free.pop()
            tests = reach.tests(edit)
            path = copy / edit.path
            path.write_bytes(edit.applied(path.read_bytes()))
            (copy / "ended.json").unlink(missing_ok=True)
            files = [*dict.fromkeys(test.partition("::")[0] for test in tests)]
            until = time.monotonic() + 60 + 10 * sum(reach.seconds[test] for test in tests)
            pid = _fork(copy, ["-x", *files], _Chosen(tests, reach.seconds))
            running[pid] = _Running(edit, copy, until)
        time.sleep(0.02)
        for pid, (edit, copy, until) in [*running.items()]:
            late = time.monotonic() > until
            if late:
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # what its tests have started
                shutil.copy2(REPOSITORY / edit.path, copy / edit.path)
                code = os.waitstatus_to_exitcode(status)
                failed = [] if late or code != 1 else json.loads((copy / "ended.json").read_text())["failed"]
                how = "time" if late else "" if code == 0 else failed[0] if failed else "an import"
                del running[pid]
                free.append(copy)
                yield edit, how


def try_room(room: str, count: int, seed: int, jobs: int, folder: Path, *, loud: bool = False) -> tuple[int, int]:
    """Draws and tries a room's edits, and prints those that survive. Returns numbers: caught, tried."""
    source = REPOSITORY / "fpl_tune" / room
    files = sorted(source.rglob("*.py")) if source.is_dir() else [source.with_suffix(".py")]
    sources = {str(path.relative_to(REPOSITORY)): path.read_bytes() for path in files}
    drawn = sample([edit for path, text in sources.items() for edit in edits_of(path, text)], count, f"{seed} {room}")
    first = copied(folder / "0")
    began = time.monotonic()
    paths = [f"tests/{path}" for path in (*MIRRORS.get(room, [room]), PAGES)]
    reach = measure(first, [path for path in paths if (first / path.partition("::")[0]).exists()])
    print(f"{room}: {len(reach.seconds)} tests in {time.monotonic() - began:.0f} s", flush=True)
    copies = [first]
    for number in range(1, jobs):
        copies.append(Path(shutil.copytree(first, folder / str(number), ignore=shutil.ignore_patterns("temporary"))))
    began, killed = time.monotonic(), 0
    for edit, how in caught(drawn, copies, reach):
        killed += bool(how)
        if loud or not how:
            said = f"caught by {how}" if how else f"survives {len(reach.tests(edit))} tests"
            print(f"{edit.diff(sources[edit.path])}\n  {said}\n", flush=True)
    seconds = time.monotonic() - began
    print(f"{room}: {killed} of {len(drawn)} caught ({killed / len(drawn):.0%}), {seconds:.0f} s", flush=True)
    return killed, len(drawn)


def main() -> None:
    """Tries edits of the rooms that the command names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", help="packages or modules of fpl_tune; none: all")
    parser.add_argument("--seed", type=int, default=0, help="of the lines that are drawn")
    parser.add_argument("--count", type=int, default=30, help="lines a room")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="edits that are tried in parallel")
    parser.add_argument("--loud", action="store_true", help="print the edits that are caught, too")
    chosen = parser.parse_args()
    found = {path.stem for path in (REPOSITORY / "fpl_tune").iterdir() if not path.stem.startswith(("_", "."))}
    tested = [room for room in sorted(found) if room in MIRRORS or (REPOSITORY / "tests" / room).is_dir()]
    for library in LIBRARIES.split():
        importlib.import_module(library)
    results = dict[str, tuple[int, int]]()
    for room in chosen.rooms or tested:
        folder = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()  # no TemporaryDirectory: forks would remove it
        try:
            results[room] = try_room(room, chosen.count, chosen.seed, chosen.jobs, folder, loud=chosen.loud)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for room, (killed, tried) in results.items():
        print(f"{room:12}{killed:4} of {tried}{killed / tried:6.0%}")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets in the same order in all runs
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
