"""A tracking database that is made once and copied: its tables take a second to create."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fpl_tune.track import server


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    server.connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(blank_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """SQLite in the output folder, the default."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    shutil.copy(blank_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path.resolve()}/mlflow.db"
