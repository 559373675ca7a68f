"""`fpl-tune parity`: compares what other code computed with what fpl-tune computes."""

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
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Relative difference that agrees; by default ten times rounding.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write what fpl-tune computes to FILE.")] = False,
    format: FormatOption = "table",
) -> None:
    """Run the configuration of a trace from its start and with its batches, and compare array by array.

    Exit code 1 if something differs.
    """
    from fpl_tune import config
    from fpl_tune import parity as traces
    from fpl_tune.core.errors import ConfigError

    words, exported = overrides or [], None
    if not write or world or (file.parent / "world.json").exists():
        exported = traces.read_world(world or file.parent)
        words = [f"seeds=[{exported.seeds[0]}]", *_joined(exported.overrides, words)]
    given, seeds = config.take_seeds(words)
    run = config.compose_run(given)
    if len(seeds) > 1:
        raise ConfigError(f"A trace is of one seed, but seeds={seeds}. Write seeds=[{seeds[0]}].")
    with output.progress("encoding images") as progress:
        if write:
            print(traces.write_trace(file, traces.trace_of(run, seeds[0], progress=progress)))
            return
        assert exported is not None
        more = {"fingerprint": exported.fingerprint, "tolerance": tolerance, "progress": progress}
        result = traces.compare_trace(run, traces.read_trace(file), seeds[0], **more)
    rows = [row._asdict() for row in result.rows]
    if format == "json":
        summary = {"agrees": result.agrees, "finding": result.finding, "notes": result.notes, "seconds": result.seconds}
        output.emit({**summary, "arrays": rows}, format)
    else:
        for note in result.notes:
            output.warn(note)
    if format == "csv" and rows:
        output.emit(rows, format)
    if format == "table":
        if result.finding:
            print(result.finding)
        if rows:
            shown = [{**row, **{k: _number(row[k]) for k in ("difference", "rounding")}} for row in rows]
            output.emit(shown, format, title=f"{shlex.quote(str(file))} against fpl-tune, seed {seeds[0]}")
        if result.seconds is not None:
            print(f"seconds a round: {result.seconds[0]:.3g} in the trace, {result.seconds[1]:.3g} in fpl-tune")
    if not result.agrees:
        sys.exit(1)


def _joined(settings: list[str], given: list[str]) -> list[str]:
    """Overrides of the world without fields and groups that are given now, followed by those that are given now."""
    keys = {text.partition("=")[0] for text in given}
    others = [text for text in settings if not keys & {(key := text.partition("=")[0]), key.partition(".")[0]}]
    return [*others, *given]


def _number(difference: float | None) -> str:
    return "" if difference is None else f"{difference:.2g}"
