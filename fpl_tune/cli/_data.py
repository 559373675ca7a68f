"""`fpl-tune data`: what is expected where, whether it is whole, its features, its splits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fpl_tune import config
from fpl_tune.cli import output
from fpl_tune.data import check as checking
from fpl_tune.data import load, split
from fpl_tune.data import prepare as preparing
from fpl_tune.data.exchange import export_split
from fpl_tune.data.show import overview
from fpl_tune.errors import ConfigError
from fpl_tune.paths import cache_root
from fpl_tune.trial import stages_of

_DRAWN = (".png", ".pdf", ".svg")


def _print(value: Any, tables: Sequence[Any], format: str) -> None:
    if format == "table":
        for table in tables:
            output.console().print(table)
    elif format == "json":
        print(json.dumps(value, indent=1, ensure_ascii=False))
    elif isinstance(value, list):
        output.emit(value, format)
    else:
        output.emit_object(value, format)


def ls(root: str | None, format: str) -> None:
    """All data sets: what they are and where their files are expected."""
    rows = checking.catalogue(root)
    _print(rows, [checking.catalogue_table(rows)] if format == "table" else [], format)


def check(overrides: Sequence[str], format: str) -> None:
    """Reads every image; exit code 3 if the data cannot be trusted."""
    run = config.compose_run(overrides)
    with output.progress("reading") as progress:
        report = checking.check(run.data, progress=progress)
    _print(report.to_dict(), report.tables(), format)
    if not report.sound:
        sys.exit(3)


def prepare(overrides: Sequence[str], format: str) -> None:
    """Fills the feature cache."""
    run = config.compose_run(overrides)
    towers = run.clip.load(dtype="float32")
    with output.progress("encoding") as progress:
        needs = stages_of(run)[0].method.needs
        done = preparing.prepare(run.data, towers, needs, cache_dir=cache_root(), progress=progress)
    _print(preparing.to_dicts(done), [preparing.table(done)], format)


def show(overrides: Sequence[str], seed: int, figure: Path | None, export: Path | None, format: str) -> None:
    """Clients by classes of one seed's split; as a picture and as a file that can be imported, if asked for."""
    if figure is not None and figure.suffix not in _DRAWN:
        raise ConfigError(f"--figure must end in {', '.join(_DRAWN)}, but is {str(figure)!r}.")
    if seed < 0:
        raise ConfigError(f"--seed must be >= 0, but is {seed}.")
    run = config.compose_run(overrides)
    dataset = load(run.data)
    drawn = split(dataset, run.data, run.partition, seed)
    found = overview(drawn, dataset)
    _print(found.to_dict(), [found.table()], format)
    if figure is not None:
        found.figure().savefig(figure, dpi=150)
    if export is not None:
        export_split(drawn, dataset, export)
