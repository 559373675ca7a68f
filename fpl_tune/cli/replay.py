"""`fpl-tune replay`: what pruning or a search would have saved and lost on a finished study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli import complete, output
from fpl_tune.cli.common import FormatOption, StoredStudy, app, stored
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import duration

if TYPE_CHECKING:
    from fpl_tune.config import PruneSpec

_ROWS = 12  # of a replayed search that are printed


@app.command(epilog="Example: fpl-tune replay lambda_sweep confidence=0.5", rich_help_panel="Results")
def replay(
    name: StoredStudy,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Fields of prune.", autocompletion=complete.prune),
    ] = None,
    format: FormatOption = "table",
) -> None:
    """What pruning, or a random or TPE search of fewer cells, would have saved and lost on a finished study."""
    from fpl_tune.search import replay as replaying

    store = stored(name)
    spec = store.spec().prune
    for text in overrides or []:
        spec = _override(spec, text)
    with output.progress("replaying") as progress:
        cells = replaying.finished(store)
        found, orders = replaying.replay_pruning(cells, spec), replaying.replay_orders(cells, spec)
        samplers = {"random": replaying.replay_random(cells), "tpe": replaying.replay_tpe(cells, progress=progress)}
    if format == "json":
        output.emit({"pruning": found, "orders": orders, **samplers}, format)
    elif format == "csv":
        rows = [{"sampler": sampler, **row} for sampler, table in samplers.items() for row in table]
        output.emit([{"sampler": f"pruning by {found['rule']}", **found}, *rows], format)
    else:
        _print_pruning(store.name, found, orders)
        _print_samplers(samplers)


def _override(spec: PruneSpec, text: str) -> PruneSpec:
    """The prune settings with one field changed."""
    from fpl_tune import config

    field, _, value = text.removeprefix("prune.").partition("=")
    known = [name for name in vars(spec) if name not in ("seeds", "level")]  # those of a race, which is not replayed
    if field not in known:
        raise ConfigError(f"replay takes the fields {', '.join(known)} of prune, but was given {text!r}. Remove it.")
    return config.changed(spec, {field: value}, "prune")


def _print_pruning(name: str, found: Mapping[str, Any], orders: Mapping[str, float]) -> None:
    """Prints what pruning would have changed, in the order in which the cells ran and in random ones."""
    rule = found["rule"]
    both = {
        "rounds": (found["rounds"], found["kept"]),
        "cells pruned": (0, f"{found['pruned']} of {found['cells']}"),
        "training saved": ("–", duration(found["saved_seconds"])),
        "chosen on validation": (found["best"], found["best_replayed"]),
        "validation %": (output.percent(found["val"]), output.percent(found["val_replayed"])),
        "test %": (output.percent(found["test"]), output.percent(found["test_replayed"])),
    }
    rows = [{"": what, "as run": str(a), f"with {rule}": str(b)} for what, (a, b) in both.items()]
    caption = (
        f"In {orders['orders']} random orders of the cells {rule} ends with the same cell in "
        f"{100 * orders['same_winner']:.0f} % and runs {100 * orders['rounds']:.0f} % of the rounds."
    )
    output.emit(rows, "table", title=f"Pruning of {name}, replayed", caption=caption)


def _print_samplers(samplers: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Prints the expected result of searches that run fewer cells."""
    n = len(samplers["random"])
    rows = []
    for k in sorted({round(1 + i * (n - 1) / (_ROWS - 1)) for i in range(_ROWS)}):
        row: dict[str, Any] = {"cells": f"{k} of {n}"}
        for sampler, table in samplers.items():
            for split in ("val", "test") if table else ():
                row[f"{sampler}, {split} %"] = output.percent(table[k - 1][f"{split}/acc_mean"])
        rows.append(row)
    caption = "Expected accuracy of the cell that validation chooses among so many of the study's own cells."
    if not samplers["tpe"]:
        caption += " TPE is replayed on grids only: its suggestions lie between the cells of a search."
    output.emit(rows, "table", title="Searches of fewer cells, replayed", caption=caption)
