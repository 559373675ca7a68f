"""`fpl-tune doctor`: check this machine, a cluster, and MLflow's records; a row per finding, with a remedy."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, app, stored
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, FplTuneError
from fpl_tune.core.formatting import counted, size
from fpl_tune.core.paths import cache_root, output_folder, stored_studies, why_not_writable
from fpl_tune.study.schema import DamagedFile
from fpl_tune.study.store import Store

_LITTLE_SPACE = 2 << 30  # bytes


@app.command(epilog="Example: fpl-tune doctor --fix", rich_help_panel="Maintain")
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Make MLflow equal to the stores.")] = False,
    address: Annotated[str | None, typer.Option(help="Check this Ray cluster; default: RAY_ADDRESS.")] = None,
    format: FormatOption = "table",
) -> None:
    """Check this machine, the nodes of a cluster, and whether MLflow holds what the studies hold.

    Exit code 3 if something is wrong.
    """
    from fpl_tune import track

    root = output_folder()
    rows = _machine(root)
    if address := address or os.environ.get("RAY_ADDRESS"):
        rows += check_cluster(address, root)
    for name in stored_studies():
        rows += _study(root, name, fix)
    try:
        orphaned = track.inspect_deleted(root, fix=fix)
        rows += [_records(study, f"{counted(n, 'run')} orphaned", fix) for study, n in orphaned.items()]
    except EnvironmentProblem as problem:
        rows.append(_row("MLflow", str(problem), ""))
    output.emit(rows, format)
    if any(row["state"] == "wrong" for row in rows):
        sys.exit(3)


def _machine(root: Path) -> list[dict[str, str]]:
    """Rows on versions, GPUs and disk space of this machine."""
    import torch

    from fpl_tune.study.fingerprints import versions

    rows = [_row(name, str(version)) for name, version in versions().items()]
    rows.append(_row("GPUs", str(torch.cuda.device_count() if torch.cuda.is_available() else 0)))
    for what, folder, variable in (
        ("outputs", root, "FPL_TUNE_OUTPUT"),
        ("feature cache", cache_root(), "FPL_TUNE_CACHE"),
    ):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free, why = shutil.disk_usage(existing).free, why_not_writable(folder)
        state = f"cannot be written ({why})" if why else f"{size(free)} free"
        remedy = f"Free some space, or name another folder in {variable}."
        fine = free >= _LITTLE_SPACE and not why
        rows.append(_row(what, f"{folder}, {state}", None if fine else remedy))
    return rows


def _study(root: Path, name: str, fix: bool) -> list[dict[str, str]]:
    """Rows on a study's damaged files, and on its records in MLflow."""
    from fpl_tune import track

    try:
        damaged = Store.open(root, name).check()
    except ConfigError as problem:
        damaged = [problem if isinstance(problem, DamagedFile) else DamagedFile(root / name, str(problem).rstrip("."))]
    rows = [_row(str(file.path.relative_to(root)), file.why, file.remedy) for file in damaged]
    rows = rows or [_row(f"files of {name}", "readable")]
    if any(file.path.name == "study.yaml" for file in damaged):
        return rows
    store, what = stored(name), f"MLflow of {name}"
    if not store.spec().tracking.enabled:
        return [*rows, _row(what, "off: tracking.enabled=false")]
    try:
        differ = track.inspect(store, fix=fix)
    except EnvironmentProblem as problem:
        return [*rows, _row(what, str(problem), "")]
    text = "; ".join(f"{cell} {kind}" for cell, kind in differ[:3]) + ("; ..." if len(differ) > 3 else "")
    return [*rows, _records(name, f"{counted(len(differ), 'run')}: {text}", fix) if differ else _row(what, "equal")]


def _records(study: str, finding: str, fixed: bool) -> dict[str, str]:
    """A row on runs in MLflow that differ from a study's store."""
    row = _row(f"MLflow of {study}", finding, "fpl-tune doctor --fix")
    return {**row, "state": "fixed", "remedy": ""} if fixed else row


def check_cluster(address: str, root: Path) -> list[dict[str, str]]:
    """Rows on the cluster at an address, and on each node's versions, storage and GPUs."""
    from fpl_tune.execute import ray

    try:
        nodes = ray.inspect(address, str(root), [])
    except FplTuneError as problem:
        return [_row("Ray", str(problem), "Start the cluster, or correct the address.")]
    rows = [_row("Ray", f"{counted(len(nodes), 'node')} at {address}")]
    for node in nodes:
        shown = "".join(f", GPU {size(total)}" for total in node.gpu_bytes)
        rows.append(_row(node.name, f"{node.cpus:g} CPU, {node.gpus:g} GPU{shown}"))
        finding, _, remedy = node.problem.partition(". ")
        rows += [_row(node.name, finding, remedy)] if finding else []
    return rows


def _row(what: str, finding: str, remedy: str | None = None) -> dict[str, str]:
    """A row of the table. A finding with a remedy, which may be empty, is wrong."""
    return {"what": what, "state": "fine" if remedy is None else "wrong", "found": finding, "remedy": remedy or ""}
