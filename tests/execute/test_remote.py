"""Folders at a URL: equal to the ones here, whole or not at all, and messages for what cannot be."""

from pathlib import Path

import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.remote import RemoteStorage


def test_a_folder_and_its_changes_travel(tmp_path: Path) -> None:
    here, there = tmp_path / "here", RemoteStorage(f"file://{tmp_path}/bucket")
    here.mkdir()
    (here / "round-1").write_bytes(b"one")
    (here / "round-2").write_bytes(b"two")
    there.push(here, "study/cells/a/slot")
    (here / "round-1").unlink()
    (here / "round-3").write_bytes(b"three")
    there.push(here, "study/cells/a/slot")
    other = tmp_path / "other"
    RemoteStorage(there.url).pull("study/cells/a/slot", other)
    assert {p.name: p.read_bytes() for p in other.iterdir()} == {"round-2": b"two", "round-3": b"three"}
    there.drop("study/cells/a/slot")
    there.drop("study/cells/a/slot")
    again = tmp_path / "again"
    there.pull("study/cells/a/slot", again)
    assert not again.exists()


def test_only_what_changed_is_sent(tmp_path: Path) -> None:
    here, there = tmp_path / "here", RemoteStorage(f"file://{tmp_path}/bucket")
    here.mkdir()
    (here / "large").write_bytes(b"large")
    there.push(here, "slot")
    (tmp_path / "bucket" / "slot" / "large").write_bytes(b"as it was")
    (here / "small").write_bytes(b"small")
    there.push(here, "slot")
    assert (tmp_path / "bucket" / "slot" / "large").read_bytes() == b"as it was"
    assert (tmp_path / "bucket" / "slot" / "small").read_bytes() == b"small"


def test_a_folder_without_a_scheme_and_memory_do_as_well(tmp_path: Path) -> None:
    for url in (str(tmp_path / "plain"), "memory://place"):
        place = RemoteStorage(url)
        place.write("flag", "on")
        assert RemoteStorage(url).holds("flag")


def test_what_cannot_be_says_so() -> None:
    with pytest.raises(ConfigError, match="must be a URL that fsspec knows, but is nowhere://x"):
        RemoteStorage("nowhere://x")
    with pytest.raises(EnvironmentProblem, match="needs a package that is missing"):
        RemoteStorage("s3://bucket/x")
