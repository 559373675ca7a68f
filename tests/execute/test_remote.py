"""Folders at a URL: equal to the ones here, whole or not at all, and messages for what cannot be."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.remote import RemoteStorage, StorageError

from ..conftest import Compose, Heard, figures_of
from ..conftest import start_study as run_study


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
    with pytest.raises(ConfigError, match=r"must not have any of \*, \? and \[, but is memory://a\?b"):
        RemoteStorage("memory://a?b")
    with pytest.raises(EnvironmentProblem, match="needs a package that is missing"):
        RemoteStorage("s3://bucket/x")


class Denied(Exception):
    """An error of a vendor's library, which is no OSError."""


class Shaky(MemoryFileSystem):  # pyright: ignore[reportUntypedBaseClass]
    """A file system whose calls fail while they are counted in `fails`."""

    protocol = "shaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fails: ClassVar = Counter[str]()

    def _try(self, call: str) -> None:
        if self.fails[call]:
            self.fails[call] -= 1
            raise Denied("Access\nDenied")

    def put_file(self, *args: Any, **kwargs: Any) -> Any:
        self._try("push")
        return super().put_file(*args, **kwargs)

    def isdir(self, *args: Any) -> bool:
        self._try("pull")
        return super().isdir(*args)

    def rm(self, *args: Any, **kwargs: Any) -> None:
        self._try("drop")
        super().rm(*args, **kwargs)


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often a push, pull or drop at shaky:// fails from now on; each is tried three times without a pause."""
    monkeypatch.setattr("fpl_tune.execute.remote.PAUSES", (0.0, 0.0))
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    yield Shaky.fails
    Shaky.store.clear()
    Shaky.fails.clear()


def test_an_error_of_any_library_is_one_line_that_names_the_url(shaky: Counter[str], tmp_path: Path) -> None:
    there = RemoteStorage("shaky://bucket")
    (tmp_path / "round-1").touch()
    calls = {
        "push": lambda: there.push(tmp_path, "slot"),
        "pull": lambda: there.pull("slot", tmp_path),
        "drop": lambda: there.drop("slot"),
    }
    for name, call in calls.items():
        shaky[name] = 3
        with pytest.raises(StorageError) as caught:
            call()
        assert isinstance(caught.value, OSError)
        assert str(caught.value) == (
            "execution.checkpoints=shaky://bucket cannot be used (Denied: Access Denied). Check the permissions; "
            "the same command continues."
        )
    there.push(tmp_path, "slot")
    assert there.holds("slot/round-1"), "what failed is sent again"


def test_what_time_does_not_mend_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, tried = RemoteStorage(f"file://{tmp_path}/bucket"), list[str]()

    def exists(path: str) -> bool:
        tried.append(path)
        raise PermissionError("Access Denied")

    monkeypatch.setattr(there.fs, "exists", exists)
    with pytest.raises(StorageError, match="PermissionError: Access Denied"):
        there.holds("flag")
    assert len(tried) == 1


ONE = "axes: {optim: {lr: [0.1]}}"
AT_URL = ("execution.checkpoints='shaky://bucket'", "execution.checkpoint_every=1", "execution.retries=0")


@pytest.fixture
def undisturbed(compose: Compose, tmp_path: Path) -> Any:
    run_study(compose(ONE), root=tmp_path / "whole")
    return figures_of(tmp_path / "whole")


def test_a_push_or_drop_that_fails_is_one_warning(
    compose: Compose, tmp_path: Path, shaky: Counter[str], undisturbed: Any
) -> None:
    shaky.update(push=3, drop=3)
    ear = Heard()
    assert run_study(compose(ONE, *AT_URL), root=tmp_path / "out", callbacks=[ear]).exit_code == 0
    pushed, dropped = ear.warnings
    assert pushed.startswith(
        "A checkpoint after round 1 could not be written (Denied: Access Denied) to shaky://bucket."
    )
    assert dropped.startswith("An old checkpoint could not be removed. execution.checkpoints=shaky://bucket cannot be")
    assert figures_of(tmp_path / "out").equals(undisturbed)


def test_errors_that_pass_are_not_noticed(
    compose: Compose, tmp_path: Path, shaky: Counter[str], undisturbed: Any
) -> None:
    shaky.update(push=2, pull=2, drop=2)
    ear = Heard()
    assert run_study(compose(ONE, *AT_URL), root=tmp_path / "out", callbacks=[ear]).exit_code == 0
    assert not +shaky, "each of them has failed"
    assert ear.warnings == []
    assert figures_of(tmp_path / "out").equals(undisturbed)


@pytest.mark.parametrize("failing", ["push", "pull"])
def test_results_that_cannot_travel_end_the_study_and_no_job_is_charged(
    compose: Compose, tmp_path: Path, shaky: Counter[str], undisturbed: Any, failing: str
) -> None:
    made, root, ear = compose(ONE, *AT_URL), tmp_path / "out", Heard()
    shaky[failing] = 99
    with pytest.raises(EnvironmentProblem, match=r"shaky://bucket cannot be used .* the same command continues"):
        run_study(made, root=root, callbacks=[ear])
    assert len(ear.outcomes) == 1
    assert not list(root.rglob("result.json"))
    shaky.clear()
    assert run_study(made, root=root).exit_code == 0
    assert figures_of(root).equals(undisturbed)
