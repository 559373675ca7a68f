from pathlib import Path

import pytest

from fpl_tune.core import paths
from fpl_tune.core.errors import EnvironmentProblem


def test_the_output_folder_is_created_and_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "a" / "b"))
    assert paths.output_root() == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "file"))
    with pytest.raises(EnvironmentProblem, match=r"file is not \(File exists\)"):
        paths.output_root()
