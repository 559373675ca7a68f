import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from fpl_tune.core import paths
from fpl_tune.core.errors import ConfigError, EnvironmentProblem


def test_a_folder_that_can_be_written_is_not_made_before_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path / "c" / "d"))
    assert paths.output_root() == tmp_path / "a" / "b"
    assert paths.usable_cache() == tmp_path / "c" / "d"
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "file"))
    with pytest.raises(EnvironmentProblem, match=r"file is not \(Not a directory\)"):
        paths.output_root()


def test_a_cache_that_cannot_be_written_is_named_unless_others_filled_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    (tmp_path / "file").touch()
    monkeypatch.delenv("FPL_TUNE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    named = r"cache must be writable, but .*file/fpl-tune is not \(Not a directory\)\. .* in FPL_TUNE_CACHE\.$"
    with pytest.raises(EnvironmentProblem, match=named):
        paths.usable_cache()
    monkeypatch.setattr(paths, "TemporaryFile", refuse)
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="Read-only file system"):
        paths.usable_cache()
    (tmp_path / "features.npy").touch()
    assert paths.usable_cache() == tmp_path


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("sqlite:////a?b/x.db", True),
        ("sqlite+pysqlite:////a?b=c/d/x.db", False),  # may be an option
        ("sqlite:////a%3Fb/x.db?timeout=5", False),
        ("postgresql://me@host/db?host=/tmp", False),
        ("", False),
    ],
)
def test_a_path_that_its_question_mark_cuts_is_refused(url: str, refused: bool) -> None:
    with pytest.raises(ConfigError, match=r"^It must have .*%3F.* but is '") if refused else nullcontext():
        paths.check_sqlite(url, "It")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("photos", "photos"),
        ("./photos/../x", "photos/../x"),
        ("/photos", "/photos"),
        ("~/photos", "/home/me/photos"),
        ("~nobody-of-that-name/x", "~nobody-of-that-name/x"),
        ("", "."),
    ],
)
def test_a_path_of_the_user_is_below_the_folder_that_they_started_in(
    written: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("TUNE_ORIG_WORKING_DIR", raising=False)
    assert paths.local(written) == Path(found)
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(tmp_path))
    assert paths.local(written) == tmp_path / found
    assert paths.local(Path(written)) == tmp_path / found


def test_a_relative_cache_is_below_the_folder_that_the_user_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", "cache")
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(tmp_path))
    assert paths.cache_root() == tmp_path / "cache"


def test_studies_of_the_current_folder_come_before_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "out"))
    (tmp_path / "studies").mkdir()
    for name in ("zoo", "mine"):
        (tmp_path / "studies" / f"{name}.yaml").touch()
    found = paths.list_studies()
    assert {found["zoo"], found["mine"]} == {*(tmp_path / "studies").iterdir()}
    assert found["claims"] == paths.shipped("studies", "claims.yaml") == paths.study_file("claims")
    (tmp_path / "out" / "stored").mkdir(parents=True)
    assert paths.stored_studies() == []
    (tmp_path / "out" / "stored" / "study.yaml").touch()
    assert paths.stored_studies() == ["stored"]
    assert paths.study_file("stored") == tmp_path / "out" / "stored" / "study.yaml"
    assert paths.study_file("studies/mine.yaml") == Path("studies/mine.yaml")
    for name, says in (
        ("claimz", "There is no study 'claimz'. Did you mean 'claims'"),
        ("no.yaml", "no file 'no.yaml'"),
    ):
        with pytest.raises(ConfigError, match=says):
            paths.study_file(name)


def test_the_cache_is_in_the_home_unless_a_variable_names_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("FPL_TUNE_CACHE", "XDG_CACHE_HOME", "TUNE_ORIG_WORKING_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert paths.cache_root() == tmp_path / ".cache" / "fpl-tune"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert paths.cache_root() == Path("/xdg/fpl-tune")
    monkeypatch.setenv("FPL_TUNE_CACHE", "~/mine")
    assert paths.cache_root() == tmp_path / "mine"
