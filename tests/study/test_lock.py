"""One process runs a study; whoever asks which one does not disturb it, and a request to stop reaches it."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.study.lock import STOP_FILE, AlreadyRunning, locked, owner

ASKS = """
import sys
from pathlib import Path
from fpl_tune.study.lock import owner
print("asking", flush=True)
while True:
    owner(Path(sys.argv[1]))
"""
"""What `watch fpl-tune status` does, without a pause."""
DIES = """
import os, sys
from pathlib import Path
from fpl_tune.study.lock import locked
with locked(Path(sys.argv[1])):
    os._exit(9)
"""


def process(source: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", source, str(folder)], stdout=subprocess.PIPE)


def test_questions_make_no_start_fail(tmp_path: Path) -> None:
    with process(ASKS, tmp_path) as asking:
        assert asking.stdout is not None
        try:
            assert asking.stdout.readline() == b"asking\n"
            for _ in range(300):
                with locked(tmp_path):
                    pass
            assert asking.poll() is None
        finally:
            asking.kill()


def test_a_study_that_runs_names_its_process_until_it_ends(tmp_path: Path) -> None:
    assert owner(tmp_path) is None
    with locked(tmp_path):
        assert (owner(tmp_path) or {})["pid"] == os.getpid()
        with (
            pytest.raises(AlreadyRunning, match=rf"by process {os.getpid()} on .* since .* Wait for it"),
            locked(tmp_path),
        ):
            pass
        assert (owner(tmp_path) or {})["pid"] == os.getpid(), "who was refused changed nothing"
    assert owner(tmp_path) is None


def test_the_name_of_a_process_that_was_killed_is_no_answer(tmp_path: Path) -> None:
    with process(DIES, tmp_path) as killed:
        assert killed.wait() == 9
    assert (tmp_path / "study.owner").exists()
    assert owner(tmp_path) is None
    with locked(tmp_path):
        assert (owner(tmp_path) or {})["pid"] == os.getpid()


def test_a_process_that_begins_has_locked_the_study_before_it_is_named(tmp_path: Path) -> None:
    with (tmp_path / "study.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert owner(tmp_path) is None
        with (
            pytest.raises(AlreadyRunning, match="is run by another one, which is starting or ending"),
            locked(tmp_path),
        ):
            pass


def test_requests_to_stop_an_earlier_owner_are_gone_before_a_new_one_is_named(tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    with locked(tmp_path):
        assert not (tmp_path / STOP_FILE).exists()


def test_a_start_whose_file_was_removed_with_a_new_study_locks_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner removes the folder and its locked file, while the start has that file open."""
    flock, folder, removed = fcntl.flock, tmp_path / "new", list[Path]()

    def first_removed(file: Any, kind: int) -> None:
        if not removed:
            removed.append(folder)
            shutil.rmtree(folder)
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", first_removed)
    with locked(folder):
        assert (owner(folder) or {})["pid"] == os.getpid()
        with pytest.raises(AlreadyRunning), locked(folder):
            pass
    assert removed


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EnvironmentProblem, match=r"has no locks .* in FPL_TUNE_OUTPUT") as caught, locked(tmp_path):
        pass
    assert "\n" not in str(caught.value)
