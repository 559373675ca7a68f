"""Where MLflow holds a study: mlflow.json in the study's folder, and links to MLflow's pages made from it.

Needs no MLflow, so that the report page and the terminal have the links at once. The room `track` writes the file.
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
"""Where `fpl-tune ui` serves MLflow's page."""
COMPARED = 200
"""Most runs of a link to MLflow's comparison."""
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
    """Reads a study's mlflow.json; None where it is missing or damaged: the next run of the study writes it again."""
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
        base: where `fpl-tune ui` serves MLflow's page; default: `BASE`. A tracking server has its own address.

    Returns:
        `compare` (from the first cell on), `table` and `charts`; empty where MLflow does not hold the study.
    """
    found = read(folder)
    if found is None:
        return {}
    start = (found.server or base or BASE).rstrip("/")
    return {name: f"{start}/{place}" for name, place in places(found).items()}


def lasting(folder: Path) -> dict[str, str]:
    """The links that stay as they are while runs are written anew, for a page that is kept: `table` and `charts`."""
    return {name: link for name, link in links(folder).items() if name != "compare"}


def places(tracked: Tracked, most: int = COMPARED) -> dict[str, str]:
    """The part of the links that follows the address, and that works as a link on MLflow's own pages.

    Args:
        tracked: where MLflow holds the study.
        most: runs that are compared; of more, those of the highest validation accuracy.
    """
    best = {tracked.runs[key] for key in tracked.best[:most] if key in tracked.runs}
    compared = [run for run in tracked.runs.values() if run in best]
    experiment = quote(tracked.experiment, safe="")
    table = f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={tracked.parent}"
    lists = [quote(json.dumps(ids, separators=(",", ":")), safe="") for ids in (compared, [tracked.experiment])]
    compare = {"compare": f"#/compare-runs?runs={lists[0]}&experiments={lists[1]}"} if compared else {}
    return {**compare, "table": table, "charts": f"{table}&compareRunsMode=CHART"}
