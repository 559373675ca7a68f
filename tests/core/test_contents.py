"""Contents of files: a digest is of the bytes that are there, whatever was kept before."""

import hashlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpl_tune.core import contents

NAMES = ["a/1.bin", "a/2.bin", "b/1.bin"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files that were written a minute ago, beside an empty cache."""
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path / "cache"))
    for name in NAMES:
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "root"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute passes: what was written so far is kept, though its times are those of now."""
    real = time.time_ns
    monkeypatch.setattr(contents.time, "time_ns", lambda: real() + 60 * 10**9)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose contents are read."""
    read: list[str] = []

    def noted(path: str, *how: Any, **more: Any) -> Any:
        read.append(Path(path).name)
        return open(path, *how, **more)

    monkeypatch.setattr(contents, "open", noted, raising=False)
    return read


def found(root: Path, names: list[str] | None = None) -> list[str]:
    return [row.tobytes().hex() for row in contents.digests(root, NAMES if names is None else names)]


@pytest.mark.usefixtures("later")
def test_what_was_kept_stays_beside_what_is_added(files: Path, opened: list[str]) -> None:
    first = [*found(files, NAMES[:1]), *found(files, NAMES[1:])]
    opened.clear()
    assert found(files) == first
    assert opened == []


@pytest.mark.usefixtures("later")
def test_contents_are_read_once(files: Path, opened: list[str]) -> None:
    first = found(files)
    assert sorted(opened) == ["1.bin", "1.bin", "2.bin"]
    assert len(set(first)) == 3
    opened.clear()
    assert found(files) == first
    assert found(files, NAMES[::-1]) == first[::-1]
    assert found(files, NAMES[1:2]) == first[1:2]
    assert found(files, []) == []
    assert opened == []


def rewrite(path: Path) -> None:
    """Other bytes, as many as before, under the same time of change."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    """Another file takes its place, with its size and time of change."""
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "2.bin")


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("change", [rewrite, replace, append, relink, Path.unlink])
def test_a_changed_file_is_read_again(files: Path, change: Callable[[Path], object], opened: list[str]) -> None:
    before = found(files)
    opened.clear()
    change(files / NAMES[0])
    after = found(files)
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    assert opened == ([] if change is Path.unlink else ["1.bin"])
    assert (after[0] == "00" * contents.WIDTH) == (change is Path.unlink)
    opened.clear()
    assert found(files) == after
    assert opened == [], "what is kept is the new digest"


@pytest.mark.usefixtures("later")
def test_a_file_that_changes_often_has_one_digest(files: Path) -> None:
    found(files)
    (memory,) = (files.parent / "cache" / "contents").glob("*.npz")
    size = memory.stat().st_size
    for _ in range(3):
        append(files / NAMES[1])
        found(files)
        assert memory.stat().st_size == size


@pytest.mark.usefixtures("later")
def test_a_touched_or_moved_file_has_its_digest(files: Path) -> None:
    before = found(files)
    os.utime(files / NAMES[0])
    assert found(files) == before
    moved = files.rename(files.with_name("elsewhere"))
    assert found(moved) == before


def test_what_was_just_written_is_not_kept(files: Path, opened: list[str]) -> None:
    """It may change again within one tick of its clock."""
    first = found(files)
    opened.clear()
    assert found(files) == first
    assert len(opened) == 3


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("damage", [b"", b"PK\3\4 cut short", b"\x93NUMPY"])
def test_damaged_memory_is_made_anew(files: Path, damage: bytes, opened: list[str]) -> None:
    first = found(files)
    (memory,) = (files.parent / "cache" / "contents").glob("*.npz")
    memory.write_bytes(damage)
    opened.clear()
    assert found(files) == first
    assert len(opened) == 3
    assert found(files) == first
    assert len(opened) == 3


def test_without_a_cache_folder_contents_are_read_each_time(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = found(files)
    (files.parent / "a file").touch()
    monkeypatch.setenv("FPL_TUNE_CACHE", str(files.parent / "a file"))
    assert found(files) == first


def test_the_digest_of_one_file(files: Path) -> None:
    digest = hashlib.blake2b((files / NAMES[0]).read_bytes(), digest_size=16).hexdigest()
    assert contents.digest_of(files / NAMES[0]) == found(files)[0] == digest
    assert contents.digest_of(files / "none") == ""
    texts = (b"%d" % number for number in itertools.count())
    text = next(text for text in texts if 0 in hashlib.blake2b(text, digest_size=16).digest())
    (files / "zero").write_bytes(text)
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    assert contents.digest_of(files / "zero") == digest, "one zero makes it no missing file"
    os.mkfifo(files / "pipe")
    assert [contents.digest_of(path) for path in (files, files / "pipe", Path("/dev/zero"))] == ["", "", ""]


def test_digests_differ_where_contents_do(files: Path) -> None:
    large = np.random.default_rng(0).bytes(3 << 20)  # of several parts
    (files / "x").write_bytes(large)
    (files / "y").write_bytes(large[:-1] + bytes([large[-1] ^ 1]))
    (files / "z").write_bytes(large)
    (files / "empty").touch()
    x, y, z, empty = found(files, ["x", "y", "z", "empty"])
    assert x == z != y
    assert empty not in ("00" * contents.WIDTH, x, y)


def test_a_file_that_cannot_be_read_has_no_digest(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    assert contents.digest_of(files / NAMES[0]) == ""
