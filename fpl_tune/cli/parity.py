"""`fpl-tune parity`: what other code computed, beside what fpl-tune computes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import FormatOption, Overrides, app


@app.command(epilog="Example: fpl-tune parity my_world/trace.npz method=promptfl", rich_help_panel="Run")
def parity(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace (.npz) of a run on an exported world.")],
    overrides: Overrides = None,
    world: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The exported world; the file's folder by default.")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Relative difference that still agrees.")] = 1e-4,
    write: Annotated[bool, typer.Option("--write", help="Write what fpl-tune computes to FILE.")] = False,
    format: FormatOption = "table",
) -> None:
    """Run what a trace is of, from its start and with its batches, and say array by array what differs.

    Exit code 1 if something differs.
    """
    from fpl_tune import config
    from fpl_tune import parity as traces
    from fpl_tune.core.errors import ConfigError

    words, known = overrides or [], None
    if not write or world or (file.parent / "world.json").exists():
        known = traces.read_world(world or file.parent)
        words = [f"seeds=[{known.seeds[0]}]", *_joined(known.overrides, words)]
    given, seeds = config.take_seeds(words)
    run = config.compose_run(given)
    if len(seeds) > 1:
        raise ConfigError(f"A trace is of one seed, but seeds={seeds}. Write seeds=[{seeds[0]}].")
    with output.progress("encoding images") as progress:
        if write:
            print(traces.write_trace(file, traces.trace_of(run, seeds[0], progress=progress)))
            return
        assert known is not None
        more = {"fingerprint": known.fingerprint, "tolerance": tolerance, "progress": progress}
        found = traces.compare_trace(run, traces.read_trace(file), seeds[0], **more)
    rows = [row._asdict() for row in found.rows]
    if format == "json":
        told = {"agrees": found.agrees, "finding": found.finding, "notes": found.notes, "seconds": found.seconds}
        output.emit({**told, "arrays": rows}, format)
    else:
        for note in found.notes:
            output.warn(note)
    if format == "csv" and rows:
        output.emit(rows, format)
    if format == "table":
        if found.finding:
            print(found.finding)
        if rows:
            shown = [{**row, **{k: _number(row[k]) for k in ("difference", "rounding")}} for row in rows]
            output.emit(shown, format, title=f"{shlex.quote(str(file))} against fpl-tune, seed {seeds[0]}")
        if found.seconds is not None:
            print(f"seconds a round: {found.seconds[0]:.3g} in the trace, {found.seconds[1]:.3g} in fpl-tune")
    if not found.agrees:
        sys.exit(1)


def _joined(settings: list[str], given: list[str]) -> list[str]:
    """Overrides of the world, then those given now; without fields, and fields of groups, that are given now."""
    keys = {text.partition("=")[0] for text in given}
    kept = [text for text in settings if not keys & {(key := text.partition("=")[0]), key.partition(".")[0]}]
    return [*kept, *given]


def _number(difference: float | None) -> str:
    return "" if difference is None else f"{difference:.2g}"
