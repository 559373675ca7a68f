"""Computes what a study will want of a data set before the study starts."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fpl_tune.data.cache import Encoder, Progress, features
from fpl_tune.data.registry import load
from fpl_tune.data.spec import DataSpec


@dataclass(frozen=True)
class Prepared:
    """One pool's features in the cache."""

    pool: str
    shape: tuple[int, ...]
    dtype: str
    megabytes: float
    seconds: float
    """About nothing where the cache held them already."""


def prepare(
    spec: DataSpec, towers: Encoder, needs: str, *, cache_dir: str | Path, progress: Progress | None = None
) -> list[Prepared]:
    """Fills the feature cache for the training and the test pool of a data set."""
    dataset = load(spec)
    done = []
    for pool in (dataset.train, dataset.test):
        began = time.perf_counter()
        held = features(pool, towers, needs, cache_dir=cache_dir, progress=progress)
        seconds = time.perf_counter() - began
        kind = str(held.dtype).removeprefix("torch.")
        done.append(Prepared(pool.key, tuple(held.shape), kind, round(held.nbytes / 1e6, 2), round(seconds, 3)))
    return done


def table(done: list[Prepared]) -> Table:
    """For the terminal."""
    shown = Table("pool", "features", "type", "MB", "seconds")
    for row in done:
        shown.add_row(row.pool, " x ".join(map(str, row.shape)), row.dtype, f"{row.megabytes:,}", f"{row.seconds:.2f}")
    return shown


def to_dicts(done: list[Prepared]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(row) for row in done]
