"""The place of a study in MLflow: mlflow.json in the study's folder, and links to MLflow's pages made from it.

Needs no MLflow, so the report page and the terminal have the links immediately. The package `track` writes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from pydantic import BaseModel, Field

from fpl_tune.core.files import write_text
from fpl_tune.study import schema
from fpl_tune.study.schema import DamagedFile

BASE = "http://127.0.0.1:5000"
"""Address at which `fpl-tune ui` serves MLflow's page."""
COMPARED = 200
"""Maximum number of runs in a link to MLflow's comparison."""
_FILE = "mlflow.json"


class Tracked(BaseModel):
    """mlflow.json: a study's experiment and runs in MLflow."""

    experiment: str = Field(min_length=1)
    parent: str = Field(min_length=1)
    """Id of the study's own run."""
    server: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Address of the tracking server, without a password; empty: a database, which `fpl-tune ui` shows."""
    order: str = "test_acc"
    """Metric that tables are sorted by."""
    ascending: bool = False
    runs: dict[str, str] = {}
    """Ids of the cells' runs by cell, in the study's order."""
    best: list[str] = []
    """Cells that may be chosen as the best, highest validation accuracy first."""


def read(folder: Path) -> Tracked | None:
    """Reads a study's mlflow.json; None if it is missing or damaged: the next run of the study writes it again."""
    try:
        return schema.read(folder / _FILE, Tracked)
    except (OSError, DamagedFile):
        return None


def write(folder: Path, tracked: Tracked) -> None:
    """Writes a study's mlflow.json if it differs."""
    if read(folder) != tracked:
        write_text(folder / _FILE, tracked.model_dump_json(indent=1))


def links(folder: Path, base: str | None = None) -> dict[str, str]:
    """Links to MLflow's pages on a study.

    Args:
        folder: the study's folder.
        base: address at which `fpl-tune ui` serves MLflow's page; default: `BASE`. A tracking server has its own.

    Returns:
        `compare` (once there is a cell), `table` and `charts`; empty if MLflow does not have the study.
    """
    tracked = read(folder)
    if tracked is None:
        return {}
    start = (tracked.server or base or BASE).rstrip("/")
    return {name: f"{start}/{path}" for name, path in paths(tracked).items()}


def lasting(folder: Path) -> dict[str, str]:
    """The links that stay valid when runs are logged again, for a page that is kept: `table` and `charts`."""
    return {name: link for name, link in links(folder).items() if name != "compare"}


def paths(tracked: Tracked, most: int = COMPARED) -> dict[str, str]:
    """The links without the address, as they work on MLflow's own pages.

    Args:
        tracked: the study's place in MLflow.
        most: maximum number of runs that are compared: those with the highest validation accuracy.
    """
    best = {tracked.runs[key] for key in tracked.best[:most] if key in tracked.runs}
    compared = [run for run in tracked.runs.values() if run in best]
    experiment = quote(tracked.experiment, safe="")
    table = f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={tracked.parent}"
    lists = [quote(json.dumps(ids, separators=(",", ":")), safe="") for ids in (compared, [tracked.experiment])]
    compare = {"compare": f"#/compare-runs?runs={lists[0]}&experiments={lists[1]}"} if compared else {}
    return {**compare, "table": table, "charts": f"{table}&compareRunsMode=CHART"}
