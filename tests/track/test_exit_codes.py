"""An absent server ends the command with code 3 only where the server itself was asked for."""

from pathlib import Path

import pytest

from fpl_tune import cli
from fpl_tune.study.store import Store

from .conftest import SMALL


@pytest.fixture
def away(make_store, tmp_path, monkeypatch) -> Path:
    """A finished study in the outputs, and a server that is not there."""
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "outputs"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    make_store(body=SMALL, root=tmp_path / "outputs")
    return tmp_path


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code is None or isinstance(ended.value.code, int)
    return ended.value.code or 0


def test_a_study_goes_on_with_one_warning(away, capsys):
    assert call("study", str(away / "outputs" / "toy" / "study.yaml")) == 0
    told = capsys.readouterr()
    assert told.err.count("The study goes on") == 1
    assert "s3cret" not in told.out + told.err
    assert (away / "outputs" / "toy" / "report.html").is_file()


def test_a_folder_is_refused_before_the_study_starts(away, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(away / "mlruns"))
    assert call("study", str(away / "outputs" / "toy" / "study.yaml"), "seeds=5") == 2
    assert "MLFLOW_TRACKING_URI must be a database or a server" in " ".join(capsys.readouterr().err.split())
    assert Store.open(away / "outputs", "toy").spec().seed_list() == [1, 2], "nothing was started"


@pytest.mark.parametrize("words", [("ui",), ("doctor", "--format", "csv")])
def test_the_server_itself_was_asked_for(away, capsys, words):
    assert call(*words) == 3
    told = capsys.readouterr()
    assert "connection refused" in " ".join((told.out + told.err).split())
    assert "s3cret" not in told.out + told.err
