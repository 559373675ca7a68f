"""Verbs on stored studies: following, comparing, choosing, verifying, mending, carrying elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.live import Live

from fpl_tune import config, track
from fpl_tune.api import stored
from fpl_tune.cli import output
from fpl_tune.cli._study import cell_figure
from fpl_tune.cli.live import time_left
from fpl_tune.errors import ConfigError, EnvironmentProblem, FplTuneError
from fpl_tune.execute import manage
from fpl_tune.execute.verify import verify as verify_cell
from fpl_tune.formatting import counted, duration
from fpl_tune.paths import output_root
from fpl_tune.plan.diff import diff as difference
from fpl_tune.search import replay as replaying
from fpl_tune.study import compare as comparing
from fpl_tune.study import export as exporting
from fpl_tune.study import selection
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store

_WATCH_SECONDS = 2.0
_LINE_SECONDS = 30.0  # between lines that differ in the time left alone, without a terminal


def status(name: str, watch: bool, format: str) -> None:
    """Cells by state and who runs the study; with `watch`, every two seconds until nobody does."""
    store = stored(name)
    found, talk = manage.status(store), output.console()
    if format != "table":
        output.emit_object(found, format)
    elif not watch or found["run_by"] is None:
        talk.print(_sentence(found), soft_wrap=True)
    elif not talk.is_terminal:
        _follow(store, lambda text: talk.print(text, soft_wrap=True), _LINE_SECONDS)
    else:
        with Live(console=talk, refresh_per_second=1) as live:
            _follow(store, live.update)


def _follow(store: Store, show: Callable[[str], None], seconds: float = 0.0) -> None:
    """Shows how a study stands until nobody runs it: when that has changed, and every so often the time left."""
    said, again = "", 0.0
    while True:
        found = manage.status(store)
        stands = _sentence({**found, "seconds_left": None})
        if stands != said or time.monotonic() >= again:
            said, again = stands, time.monotonic() + seconds
            show(_sentence(found))
        if found["run_by"] is None:
            return
        time.sleep(_WATCH_SECONDS)


def _sentence(found: dict[str, Any]) -> str:
    """How a study stands, in words."""
    states = ", ".join(f"{found[name]} {name}" for name in map(str, Status) if found[name])
    by = "nobody runs it"
    if found["run_by"]:
        by = f"{time_left(found['seconds_left'], ending=found['ending'])}; run by {found['run_by']}"
    wanted = found["seeds_wanted"]
    seeds = f"{found['seeds']} of {counted(wanted, 'seed')} {'has' if wanted == 1 else 'have'} a result"
    return f"{found['study']}: {counted(found['cells'], 'cell')} ({states}); {seeds}; {by}"


def compare(a: str, b: str, rule: str, anyway: bool, format: str) -> None:
    """Differences of two studies, paired by seed; refused where their partitions differ."""
    with output.progress("comparing") as progress:
        found = comparing.compare(stored(a), stored(b), rule=rule, progress=progress)
    if found.warnings and not anyway:
        raise ConfigError(f"{found.warnings[0]} Compare nevertheless: --anyway.")
    for warning in found.warnings:
        output.warn(warning)
    if format != "table":
        output.emit(found.rows, format)
        return
    one, other = stored(a).name, stored(b).name
    rows = [
        {
            "cell": row["cell"],
            "A %": output.percent(row[one]),
            "B %": output.percent(row[other]),
            "B − A": f"{100 * row['difference']:+.2f}",
            "± sem": "–" if math.isnan(row["sem"]) else f"{100 * row['sem']:.2f}",
            "p": row["p"],
            "seeds": row["seeds"],
            **({"partition": "same" if row["same_split"] else "differs"} if found.warnings else {}),
        }
        for row in found.rows
    ]
    left = [counted(n, "cell") + f" of {name}" for name, n in zip("AB", found.alone, strict=True) if n]
    alone = f" Without a partner: {', '.join(left)}." if left else ""
    caption = f"Test accuracy by the rule '{rule}', differences in points, paired by seed.{alone}"
    output.emit(rows, format, title=f"A: {one}\nB: {other}", caption=caption)


def best(name: str, rule: str, export: Path | None, format: str) -> None:
    """The cell that validation chooses; exported, if asked for, with all it takes to repeat it."""
    store = stored(name)
    found = selection.best(store, rule)
    row: dict[str, Any] = {
        "cell": found.label,
        "id": " ".join(cell.id for cell in found.cells),
        "chosen by": found.by,
        "rule": found.rule,
        "val/acc_mean": found.val,
        "test/acc_mean": found.test,
        "test_std": found.test_std,
        "seeds": found.seeds,
    }
    if export is not None:
        row["exported"] = [str(path) for path in exporting.export_choice(store, found, export)]
        if format == "table":
            scripts = " and ".join(f"sh {path}" for path in row["exported"] if path.endswith("reproduce.sh"))
            row["exported"] = f"{len(row['exported'])} files in {export}; {scripts} repeats the cell"
    if format == "table":
        shown = {"val/acc_mean": output.percent(found.val), "test/acc_mean": output.percent(found.test, found.test_std)}
        names = {"val/acc_mean": "validation %", "test/acc_mean": "test %"}
        row = {names.get(k, k): shown.get(k, v) for k, v in row.items() if k != "test_std"}
    output.emit_object(row, format)


def verify(name: str, cell: str | None, rounds: int, format: str) -> None:
    """Runs the first rounds of a cell again; exit code 1 where figures differ."""
    store = stored(name)
    chosen = store.cell(cell) if cell else selection.best(store).cell
    with output.progress("running again") as progress:
        found = verify_cell(store, chosen, rounds=rounds, progress=progress)
    output.emit_object({**vars(found), "cell": found.cell.label}, format)
    if not found.agrees:
        sys.exit(1)


def diff(name: str, overrides: Sequence[str], format: str) -> None:
    """What running the study now would do to each cell, and why."""
    spec, node = config.compose_study(name, overrides)
    store = stored(spec.name)
    rows = difference(spec, node, store)
    if format != "table":
        output.emit(rows, format)
        return
    output.emit([row for row in rows if row["state"] != "left"], format)
    left = sum(row["state"] == "left" for row in rows)
    if outside := left + sum(row["state"] == "gone" and bool(store.seeds(store.cell(row["cell"]))) for row in rows):
        text = f"Kept in {store.folder / 'cells'}, but not in this study: {counted(outside, 'cell')} with results. "
        text += "The settings that made them take them up again; only what is stale would run."
        if left:
            text += f" Folders of {left}, state left in --format csv, are in no table and may be deleted."
        output.console().print(text, soft_wrap=True)


def replay(name: str, overrides: Sequence[str], format: str) -> None:
    """What pruning or random search would have saved and lost on a finished study."""
    store = stored(name)
    spec = store.spec().prune
    for text in overrides:
        field, _, value = text.removeprefix("prune.").partition("=")
        if field not in vars(spec):
            raise ConfigError(f"replay takes fields of prune ({', '.join(vars(spec))}), but was given {text!r}.")
        kind = type(getattr(spec, field)) if getattr(spec, field) is not None else str
        try:
            setattr(spec, field, kind(value))
        except ValueError:
            wanted = {float: "a number", int: "a whole number"}[kind]
            raise ConfigError(f"prune.{field} must be {wanted}, but is {value!r}.") from None
    with output.progress("replaying") as progress:
        found = replaying.replay_pruning(store, spec)
        samplers = {"random": replaying.replay_random(store), "tpe": replaying.replay_tpe(store, progress=progress)}
    if format == "json":
        output.emit_object({"pruning": asdict(found), **samplers}, "json")
        return
    if format == "csv":
        rows = [{"sampler": name, **row} for name, table in samplers.items() for row in table]
        output.emit([{"sampler": f"pruning by {found.rule}", **asdict(found)}, *rows], format)
        return
    _replayed(store.name, found, samplers)


_ROWS = 12  # of a replayed search that are printed


def _replayed(name: str, found: replaying.Replay, samplers: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Tables for people: what pruning would have changed, and what a search of fewer cells would have ended with."""
    both = {
        "rounds": (found.rounds, found.kept),
        "cells pruned": (0, f"{found.pruned} of {found.cells}"),
        "training saved": ("–", duration(found.saved_seconds)),
        "chosen on validation": (found.best, found.best_replayed),
        "validation %": (output.percent(found.val), output.percent(found.val_replayed)),
        "test %": (output.percent(found.test), output.percent(found.test_replayed)),
    }
    rows = [{"": what, "as run": str(a), f"with {found.rule}": str(b)} for what, (a, b) in both.items()]
    output.emit(rows, "table", title=f"Pruning of {name}, replayed")
    n = len(samplers["random"])
    kept = sorted({round(1 + i * (n - 1) / (_ROWS - 1)) for i in range(_ROWS)})
    rows = []
    for k in kept:
        row: dict[str, Any] = {"cells": f"{k} of {n}"}
        for sampler, table in samplers.items():
            for room in ("val", "test") if table else ():
                row[f"{sampler}, {room} %"] = output.percent(table[k - 1][f"{room}/acc_mean"])
        rows.append(row)
    caption = "Expected accuracy of the cell that validation chooses among so many of the study's own cells."
    if not samplers["tpe"]:
        caption += " TPE is replayed on grids only: it would suggest what no cell of a search has."
    output.emit(rows, "table", title="Searches of fewer cells, replayed", caption=caption)


def stop(name: str) -> None:
    """Asks the process that runs a study to end after the round."""
    manage.stop(stored(name))
    output.console().print("It will end after the round, with a checkpoint. The same command continues it.")


def retry(name: str, failed: bool) -> None:
    """Takes failed and, unless `failed`, diverged seeds away, so that the next run tries them again."""
    store = stored(name)
    named = manage.retry_failed(store, {Status.FAILED} if failed else FAILURES)
    talk = output.console()
    if not named:
        talk.print(f"No seed of {name} has failed{'' if failed else ' or diverged'}: there is nothing to try again.")
        return
    talk.print("\n".join(line for _, line in named), soft_wrap=True)
    again = f"fpl-tune study {store.folder / 'study.yaml'}"
    talk.print(f"{len(named)} taken away. The same command as before tries them again, or {again}", soft_wrap=True)
    try:
        talk.print(_beside(store, {str(cell.run.method["name"]) for cell, _ in named}), soft_wrap=True)
    except FplTuneError as problem:  # a plug-in or data that are not at hand
        output.warn(f"What else runs again cannot be told here: {problem}")


def _beside(store: Store, methods: set[str]) -> str:
    """What else the next run does, or would do if the source of a method that failed were mended."""
    if stale := manage.stale(store):
        why = ", ".join(sorted({reason for reasons in stale.values() for reason in reasons}))
        return f"Stale, and run again whole: {counted(len(stale), 'cell')} with results ({why}). See fpl-tune diff."
    cells = sum(str(cell.run.method["name"]) in methods for cell in store.cells())
    named = " and ".join(sorted(methods))
    return f"A mended source of {named} makes its {counted(cells, 'cell')} stale: they run again whole, done seeds too."


def export(name: str, out: Path) -> None:
    """Copies a study to a folder that can be carried elsewhere."""
    with output.progress("copying") as progress:
        folder = track.export_study(stored(name), out, progress)
    print(folder)


def import_(folder: Path) -> None:
    """Takes an exported study into the outputs here, and writes its MLflow records, now or when MLflow answers."""
    store = track.import_study(folder, output_root())
    try:
        track.sync(store, draw=cell_figure)
    except EnvironmentProblem as problem:
        output.warn(f"{problem} The study is here nevertheless; `fpl-tune doctor --fix` writes its records later.")
    print(store.folder)
