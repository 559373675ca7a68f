"""The tool that tries wrong edits: what it edits, which tests it runs on an edit, and what it prints."""

import subprocess
import sys
from pathlib import Path

import mutation
import pytest
from mutation import Edit, Reach, edits_of, sample


def edited(source: str) -> set[str]:
    """The forms that a function's only line takes."""
    text = f"def f(x: int = 1) -> int:\n    {source}\n"
    return {
        edit.applied(text.encode()).decode().splitlines()[1].strip()
        for edit in edits_of("f.py", text.encode())
        if edit.line == 2
    }


@pytest.mark.parametrize(
    ("source", "forms"),
    [
        ("return x < 3", {"return x <= 3", "return x < 4", "return x < 2", "return None"}),
        ("return (x) + y  # a + b", {"return (x) - y  # a + b", "return None  # a + b"}),
        ("return a and b", {"return a or b", "return True and b", "return a and True", "return None"}),
        ("return 2.5", {"return 5.0", "return None"}),
        ("return not x", {"return (x)", "return None"}),
        (
            "return [y for y in x if y]",
            {"return [y for y in x if (not (y))]", "return [y for y in x if True]", "return None"},
        ),
        ("y = sorted(x, key=f)", {"y = sorted(x)", "y = sorted(x, key=f, reverse=True)"}),
        ("y = min(x) if x else y", {"y = max(x) if x else y", "y = min(x) if (not (x)) else y"}),
        ("y = range(x)", {"y = range(x - 1)"}),
        ("f(x)", {"pass"}),
        ("x.y += z", {"pass", "x.y -= z"}),
        (
            'y = "wörter" if x is None else "1"',
            {'y = "wörter" if x is not None else "1"', 'y = "wörter" if (not (x is None)) else "1"'},
        ),
    ],
)
def test_a_line_takes_every_wrong_form(source: str, forms: set[str]) -> None:
    assert edited(source) == forms


@pytest.mark.parametrize(
    "source",
    [
        '"""Adds 1."""',
        'raise ValueError(f"{1 + x}")',
        "assert x > 1",
        "log.info(1)",
        "import a",
        "y: list[1] = x",
        "y = 'a'",
    ],
)
def test_what_only_a_reader_sees_stays(source: str) -> None:
    assert edited(source) == set()


def test_defaults_are_edited_and_types_are_not() -> None:
    text = b"T = int | str\n\n\ndef f(x: int | None = 1) -> int | None: ...\n"
    assert {edit.new for edit in edits_of("f.py", text)} == {"2", "0"}


def test_a_sample_is_drawn_by_its_seed_and_has_one_edit_a_line() -> None:
    edits = edits_of("f.py", b"".join(b"x = y + %d < z\n" % number for number in range(50)))
    drawn = sample(edits, 20, 7)
    assert drawn == sample(edits, 20, 7) != sample(edits, 20, 8)
    assert len({edit.line for edit in drawn}) == 20
    assert len(sample(edits, 99, 7)) == 50


def test_tests_that_reach_a_statement_are_run_short_files_first() -> None:
    lines = {
        "f.py": {
            2: ["tests/a.py::one", "tests/a.py::two"],
            3: ["tests/b.py::one", "tests/b.py::two", "tests/c.py::one"],
        }
    }
    seconds = {
        "a.py::one": 5.0,
        "a.py::two": 1.0,
        "b.py::one": 1.0,
        "b.py::two": 1.0,
        "c.py::one": 1.0,
        "c.py::two": 0.5,
    }
    reach = Reach(lines, {f"tests/{name}": took for name, took in seconds.items()})

    def tests(*scopes: tuple[int, int], path: str = "f.py") -> list[str]:
        return sorted(reach.tests(Edit(path, 1, 0, 0, "", scopes)))

    assert tests((2, 2)) == ["tests/a.py::one", "tests/a.py::two"]
    assert tests((1, 1), (1, 2)) == tests((2, 2)), "a default: the tests of its function"
    assert tests((3, 3)) == [f"tests/{name}" for name in ("b.py::one", "b.py::two", "c.py::one", "c.py::two")]
    assert tests((9, 9)) == tests((9, 9), path="other.py") == sorted(reach.seconds)
    order = reach.tests(Edit("f.py", 1, 0, 0, "", ((2, 3),)))
    assert [test[6] for test in order] == ["c", "c", "b", "b", "a", "a"]
    pages = f"tests/{mutation.PAGES}"
    documented = Reach(lines, {**reach.seconds, pages: 9.0})
    assert documented.tests(Edit("f.py", 1, 0, 0, "", ((1, 1), (1, 2))))[-1] == pages, (
        "a default stands in the reference"
    )
    assert pages not in documented.tests(Edit("f.py", 2, 0, 0, "", ((2, 2), (1, 2))))


ROOM = """\
def halvings(n):
    count = 0
    while n > 1:
        n //= 2
        count += 1
    return count


def square(x):
    return x * x
"""
TESTS = """\
from fpl_tune.room import halvings, square


def test_halvings():
    assert halvings(2) == 1


def test_square():
    assert square(1) == 1
"""


def test_edits_that_survive_are_printed_and_a_hang_is_caught(tmp_path: Path) -> None:
    """In a repository of two functions: one is tested where it cannot be told from x / x."""
    files = {"fpl_tune/__init__.py": "", "fpl_tune/room.py": ROOM, "tests/room/test_room.py": TESTS}
    files["pyproject.toml"] = "[tool.coverage.run]\nbranch = true\nsource_pkgs = ['fpl_tune']\n"
    files["tests/shared/mutation.py"] = Path(mutation.__file__).read_text()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    edits, wanted = edits_of("fpl_tune/room.py", ROOM.encode()), {(4, "pass"), (10, " / ")}
    seed = next(i for i in range(999) if {(edit.line, edit.new) for edit in sample(edits, 99, f"{i} room")} >= wanted)
    quick = "import mutation; mutation.LIBRARIES, mutation.SECONDS = '', 1; mutation.main()"
    ran = subprocess.run(
        [sys.executable, "-c", quick, "room", "--seed", str(seed), "--count", "99", "--jobs", "2"],
        cwd=tmp_path / "tests" / "shared",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "fpl_tune/room.py:10\n-     return x * x\n+     return x / x\n  survives 2 tests\n" in ran.stdout
    assert ran.stdout.count("survives") == 1
    assert ran.stdout.endswith("room           5 of 6   83%\n")
    assert (tmp_path / "fpl_tune" / "room.py").read_text() == ROOM
