"""Verbs on stored studies: following, comparing, choosing, verifying, mending, carrying elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.live import Live

from fpl_tune import config, track
from fpl_tune.api import stored
from fpl_tune.cli import output
from fpl_tune.cli._study import cell_figure
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.paths import cache_root, output_root
from fpl_tune.study import best as choosing
from fpl_tune.study import compare as comparing
from fpl_tune.study import manage
from fpl_tune.study import replay as replaying

_LITTLE_SPACE = 2 << 30


def status(name: str, watch: bool, format: str) -> None:
    """Cells by state and who runs the study; with `watch`, every two seconds until nobody does."""
    store = stored(name)
    found = manage.status(store)
    if not watch or format != "table":
        output.emit_object(found, format)
        return
    with Live(console=output.console(), refresh_per_second=1) as live:
        while True:
            found = manage.status(store)
            live.update("   ".join(f"{k} {v}" for k, v in found.items() if v))
            if found["run_by"] is None:
                return
            time.sleep(2)


def compare(a: str, b: str, rule: str, anyway: bool, format: str) -> None:
    """Differences of two studies, paired by seed; refused where their partitions differ."""
    found = comparing.compare(stored(a), stored(b), rule=rule)
    if found.warnings and not anyway:
        raise ConfigError(f"{found.warnings[0]} Compare nevertheless: --anyway.")
    for warning in found.warnings:
        output.warn(warning)
    output.emit(found.rows, format, title=f"{b} - {a}, test accuracy by the rule '{rule}'")


def best(name: str, rule: str, export: Path | None, format: str) -> None:
    """The cell that validation chooses; exported, if asked for, with all it takes to repeat it."""
    store = stored(name)
    found = choosing.best(store, rule)
    row: dict[str, Any] = {
        "cell": found.cell.label,
        "id": found.cell.id,
        "rule": found.rule,
        "val/acc_mean": found.val,
        "test/acc_mean": found.test,
        "test_std": found.test_std,
        "seeds": found.seeds,
    }
    if export is not None:
        row["exported"] = [str(path) for path in choosing.export(store, found.cell, export)]
    output.emit_object(row, format)


def verify(name: str, cell: str | None, rounds: int, format: str) -> None:
    """Runs the first rounds of a cell again; exit code 1 where figures differ."""
    store = stored(name)
    chosen = store.cell(cell) if cell else choosing.best(store).cell
    found = choosing.verify(store, chosen, rounds=rounds)
    output.emit_object({**vars(found), "cell": found.cell.label}, format)
    if not found.agrees:
        sys.exit(1)


def diff(name: str, overrides: Sequence[str], format: str) -> None:
    """What running the study now would do to each cell, and why."""
    spec, node = config.compose_study(name, overrides)
    output.emit(manage.diff(spec, node, stored(spec.name)), format)


def replay(name: str, overrides: Sequence[str], format: str) -> None:
    """What pruning or random search would have saved and lost on a finished study."""
    store = stored(name)
    spec = store.spec().prune
    for text in overrides:
        field, _, value = text.partition("=")
        if field not in vars(spec):
            raise ConfigError(f"replay takes fields of prune ({', '.join(vars(spec))}), but was given {text!r}.")
        kind = type(getattr(spec, field)) if getattr(spec, field) is not None else str
        try:
            setattr(spec, field, kind(value))
        except ValueError:
            raise ConfigError(f"prune.{field} must be {kind.__name__}, but is {value!r}.") from None
    found = replaying.replay_pruning(store, spec)
    if format == "json":
        output.emit_object({"pruning": asdict(found), "random": replaying.replay_random(store)}, "json")
        return
    output.emit_object(asdict(found), format)
    output.emit(replaying.replay_random(store), format, title="Random search of so many cells, expected")


def stop(name: str) -> None:
    """Asks the process that runs a study to end after the round."""
    manage.stop(stored(name))
    output.console().print("It will end after the round, with a checkpoint. The same command continues it.")


def retry(name: str) -> None:
    """Takes failed seeds away, so that the next run tries them again."""
    named = manage.retry_failed(stored(name))
    output.console().print("\n".join(named) if named else "No seed has failed.")
    if named:
        output.console().print(f"Run again: fpl-tune study {name}")


def doctor(fix: bool, format: str) -> None:
    """What this machine has, and whether MLflow holds what the studies hold; exit code 3 where something is wrong."""
    root = output_root()
    rows = [*_machine(root)]
    for folder in sorted(root.iterdir()):
        if (folder / "study.yaml").is_file():
            rows += _records(folder.name, fix)
    output.emit(rows, format)
    if any(row["state"] == "wrong" for row in rows):
        sys.exit(3)


def _machine(root: Path) -> list[dict[str, str]]:
    import torch

    from fpl_tune.study.fingerprints import versions

    rows = [
        {"what": name, "state": "fine", "found": str(version), "remedy": ""} for name, version in versions().items()
    ]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    rows.append({"what": "GPUs", "state": "fine", "found": str(gpus), "remedy": ""})
    for what, folder, variable in (
        ("outputs", root, "FPL_TUNE_OUTPUT"),
        ("feature cache", cache_root(), "FPL_TUNE_CACHE"),
    ):
        there = folder
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        little = free < _LITTLE_SPACE
        remedy = f"Free some space, or name another folder in {variable}." if little else ""
        rows.append(
            {
                "what": what,
                "state": "wrong" if little else "fine",
                "found": f"{folder}, {output.size(free)} free",
                "remedy": remedy,
            }
        )
    return rows


def _records(name: str, fix: bool) -> list[dict[str, str]]:
    store = stored(name)
    try:
        found = track.repair(store, draw=cell_figure) if fix else track.inspect(store)
    except EnvironmentProblem as problem:
        return [{"what": f"MLflow of {name}", "state": "wrong", "found": str(problem), "remedy": ""}]
    if not found:
        return [{"what": f"MLflow of {name}", "state": "fine", "found": "equal to the store", "remedy": ""}]
    state, remedy = ("mended", "") if fix else ("wrong", "fpl-tune doctor --fix")
    return [
        {"what": f"MLflow of {name}", "state": state, "found": " ".join(map(str, f)), "remedy": remedy} for f in found
    ]


def export(name: str, out: Path) -> None:
    """Copies a study to a folder that can be carried elsewhere."""
    print(track.export_study(stored(name), out))


def import_(folder: Path) -> None:
    """Takes an exported study into the outputs here, and writes its MLflow records."""
    store = track.import_study(folder, output_root())
    track.sync(store, draw=cell_figure)
    print(store.folder)
