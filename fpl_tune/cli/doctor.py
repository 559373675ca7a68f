"""`fpl-tune doctor`: check this machine, a cluster, and MLflow's records; a row per finding, with a remedy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli.common import Format, FormatOption, app

_LITTLE_SPACE = 2 << 30  # bytes


@app.command(epilog="Example: fpl-tune doctor --fix", rich_help_panel="Maintain")
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Set damaged files aside, and make MLflow equal to the stores.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="Check this Ray cluster; default: RAY_ADDRESS.")] = None,
    checkpoints: Annotated[str | None, typer.Option(help="URL of checkpoints that its nodes must reach.")] = None,
    data_root: Annotated[list[str] | None, typer.Option(help="Folder of data that its nodes must have.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Check this machine, the nodes of a cluster, and whether MLflow holds what the studies hold.

    Exit code 3 if something is wrong.
    """
    from fpl_tune.cli import output
    from fpl_tune.paths import output_root

    root = output_root()
    rows = _machine(root)
    if address := address or os.environ.get("RAY_ADDRESS"):
        rows += check_cluster(address, root, checkpoints, data_root or [])
    for folder in sorted(root.iterdir()):
        if (folder / "study.yaml").is_file():
            files = _files(root, folder.name, fix)
            rows += files
            if not any(row["what"].endswith("study.yaml") for row in files):
                rows += _records(folder.name, fix)
    output.emit(rows, format)
    if any(row["state"] == "wrong" for row in rows):
        sys.exit(3)


def _machine(root: Path) -> list[dict[str, str]]:
    """Rows on versions, GPUs and disk space of this machine."""
    import torch

    from fpl_tune.formatting import size
    from fpl_tune.paths import cache_root
    from fpl_tune.study.fingerprints import versions

    rows = [_row(name, str(version)) for name, version in versions().items()]
    rows.append(_row("GPUs", str(torch.cuda.device_count() if torch.cuda.is_available() else 0)))
    for what, folder, variable in (
        ("outputs", root, "FPL_TUNE_OUTPUT"),
        ("feature cache", cache_root(), "FPL_TUNE_CACHE"),
    ):
        there = folder
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        remedy = f"Free some space, or name another folder in {variable}."
        rows.append(_row(what, f"{folder}, {size(free)} free", remedy, wrong=free < _LITTLE_SPACE))
    return rows


def _files(root: Path, name: str, fix: bool) -> list[dict[str, str]]:
    """Rows on a study's damaged files."""
    from fpl_tune.execute.manage import check_files

    found = check_files(root, name, fix=fix)
    rows = [_row(str(f.path.relative_to(root)), f.why, f.remedy, wrong=bool(f.remedy)) for f in found]
    return rows or [_row(f"files of {name}", "readable")]


def _records(name: str, fix: bool) -> list[dict[str, str]]:
    """Rows on a study's records in MLflow."""
    from fpl_tune import track
    from fpl_tune.api import stored
    from fpl_tune.errors import EnvironmentProblem

    store, what = stored(name), f"MLflow of {name}"
    if not store.spec().tracking.enabled:
        return [_row(what, "off: tracking.enabled=false")]
    try:
        found = track.repair(store) if fix else track.inspect(store)
    except EnvironmentProblem as problem:
        return [_row(what, str(problem), wrong=True)]
    if not found:
        return [_row(what, "equal to the store")]
    state, remedy = ("fixed", "") if fix else ("wrong", "fpl-tune doctor --fix")
    return [{"what": what, "state": state, "found": " ".join(map(str, f)), "remedy": remedy} for f in found]


def check_cluster(address: str, root: Path, checkpoints: str | None, data_roots: Sequence[str]) -> list[dict[str, str]]:
    """Rows on the cluster at an address: reachable, and each node's versions, storage, GPUs, data and cache."""
    from fpl_tune.errors import FplTuneError
    from fpl_tune.execute import ray
    from fpl_tune.formatting import counted, size
    from fpl_tune.paths import cache_root

    storage = checkpoints or str(root)
    try:
        nodes, findings = ray.inspect(address, storage, cache_root(), data_roots)
    except FplTuneError as problem:
        return [_row("Ray", str(problem), "Start the cluster, or correct the address.", wrong=True)]
    rows = [_row("Ray", f"{counted(len(nodes), 'node')} at {address}")]
    for node in nodes:
        facts = node.facts
        found = f"{node.cpus:g} CPU, {node.gpus:g} GPU"
        if facts is not None:
            found += "".join(f", GPU {size(total)} ({size(free)} free)" for total, free in facts.gpus)
        rows.append(_row(node.name, found))
        if facts is not None:
            little = facts.cache_free < _LITTLE_SPACE
            free = "cannot be written" if facts.cache_free < 0 else f"{size(facts.cache_free)} free"
            remedy = "Free some space, or set FPL_TUNE_CACHE where the node is started."
            rows.append(_row(f"feature cache of {node.name}", f"{facts.cache}, {free}", remedy, wrong=little))
    rows += [_row(node.name, finding, remedy, wrong=True) for node, finding, remedy in findings]
    if not any(node.facts and node.facts.storage for node in nodes):
        rows.append(_row("shared storage", f"{storage}, written and read by all nodes"))
    rows.append(_row("MLflow from nodes", "not needed: the driver alone writes records"))
    return rows


def _row(what: str, found: str, remedy: str = "", *, wrong: bool = False) -> dict[str, str]:
    return {
        "what": what,
        "state": "wrong" if wrong else "fine",
        "found": found,
        "remedy": remedy if wrong else "",
    }
