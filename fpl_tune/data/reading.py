"""Reading many images at once, with a time limit: storage that does not answer would stop a study without a word."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import TimeoutError as Late
from multiprocessing.pool import ThreadPool
from typing import TypeVar

from fpl_tune.core.errors import EnvironmentProblem

READ_SECONDS = 120.0
"""Time limit of reading one image."""

T = TypeVar("T")


def read_in_threads(work: Callable[[int], T], names: Sequence[str], batch: int) -> Iterator[list[T]]:
    """Calls `work` with every row, in several threads.

    Args:
        work: reads an image by its row.
        names: of the images, by row.
        batch: rows that are read, and whose results are held, at a time.

    Yields:
        The results of a batch, in the order of the rows.

    Raises:
        EnvironmentProblem: an image was not read within `READ_SECONDS`. Its thread, which cannot be ended, is a daemon.
    """
    with ThreadPool(min(16, os.cpu_count() or 1)) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata; only unreadable pixels matter
        for start in range(0, len(names), batch):
            rows = range(start, min(start + batch, len(names)))
            results = threads.imap(work, rows)
            found: list[T] = []
            for row in rows:
                try:
                    found.append(results.next(READ_SECONDS))
                except Late:
                    raise EnvironmentProblem(
                        f"{names[row]} was not read within {READ_SECONDS:g} s: its storage does not answer. Check the "
                        "disk or network folder, and run the same command again."
                    ) from None
            yield found
