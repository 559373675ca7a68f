"""A study that is killed before any file operation, and run again, ends as if it had not been killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .kill_matrix import CASES, changes, differences

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork and /proc")


def ended(out: Path, *words: str) -> tuple[list[dict], str]:
    """Points of one case, and what the program printed."""
    program = Path(__file__).with_name("kill_matrix.py")
    found = subprocess.run(
        [sys.executable, str(program), "--jobs", "1", "--out", str(out), *words],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert out.exists(), found.stderr
    (points,) = json.loads(out.read_text()).values()
    return points, found.stdout


def check(tmp_path: Path, case: str, *words: str) -> list[dict]:
    """Everything that differs is in the message: the operation that the kill preceded, and what the study left."""
    points, told = ended(tmp_path / "points.json", "--case", case, *words)
    assert not [point for point in points if point["differs"]], told
    assert all(point["before"] for point in points), "a point was not reached"
    return points


@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_13th_file_operation_ends_as_undisturbed(tmp_path: Path, case: str) -> None:
    """The program itself runs all points, in half an hour."""
    points = check(tmp_path, case, "--every", "13")
    assert {line.partition(" ")[0] for point in points for line in point["before"]} >= {"open", "rename"}
    assert any(len(point["before"]) == 2 for point in points)


def test_what_reads_or_changes_nothing_is_no_point(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.touch()
    assert changes("open", (str(there), "r", os.O_RDONLY)) is None
    assert changes("open", (str(there), "ab", os.O_WRONLY | os.O_APPEND)) == str(there)
    assert changes("os.mkdir", (str(tmp_path), 511, -1)) is None
    assert changes("os.remove", (str(absent), -1)) is None
    assert changes("os.rename", (str(there), str(absent), -1, -1)) == str(there)
    assert changes("os.symlink", (str(there), str(absent), -1)) == str(absent)


def test_differences_are_told_with_both_values() -> None:
    calm = {"a": {"status": "done", "mean": float("nan")}, "b": 1}
    assert differences(calm, {"a": {"status": "done", "mean": float("nan")}, "b": 1}) == []
    assert differences(calm, {"a": {"status": "pruned", "mean": float("nan")}}) == [
        "a: status is 'pruned', not 'done'",
        "b: is missing",
    ]
