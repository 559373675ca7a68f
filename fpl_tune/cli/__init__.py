"""The command line: one file per verb, imported here in the order of the help page.

A verb imports what it works with inside its function, so that `-h` and completion are instant. Shared: `common.py`
(application and arguments), `output.py` (tables, JSON, CSV), `complete.py` (shell completion). Open `study.py` first.

Exit codes: 0 done; 1 finished with failed cells; 2 usage, configuration or an infeasible plan, nothing started;
3 environment; 4 budget spent, the same command continues; 130 and 143 after a clean stop.
"""

from __future__ import annotations

import time

_LOADED = [time.monotonic()]
"""When the process of the command began; empty once a command has run."""

# ruff: noqa: E402
import gc
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence

from fpl_tune.cli import complete
from fpl_tune.cli.common import app

# isort: off
from fpl_tune.cli import study, plan, run, bench
from fpl_tune.cli import status, show, report, compare, ui, verify, replay
from fpl_tune.cli import stop, doctor, export, import_study
from fpl_tune.cli import new, ls, data, cluster, deprecated
# isort: on

_VERBS = (study, plan, run, bench, status, show, report, compare, ui, verify, replay, stop, doctor, export,
          import_study, new, ls, data, cluster, deprecated)  # fmt: skip
"""Importing a verb registers it."""


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the console script: an expected error is one line and a documented exit code."""
    from fpl_tune.cli import answers, output
    from fpl_tune.errors import FplTuneError, Notice

    answers.begin()
    output.begin(_LOADED.pop() if _LOADED else time.monotonic())
    complete.join_words()
    logging.getLogger("fpl_tune").addHandler(_WARNINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        warnings.showwarning = _warn
        try:
            code = app(words, prog_name="fpl-tune", standalone_mode=False)
        except FplTuneError as problem:
            if os.environ.get("FPL_TUNE_FULL_ERROR"):
                raise
            code = _fail(str(problem), problem.exit_code)
        except Exception as problem:
            code = _usage_error(problem)
        finally:
            gc.freeze()  # PyTorch and MLflow would take a second to be collected when the process ends
    sys.exit(code if isinstance(code, int) else 0)


def _usage_error(problem: Exception) -> int:
    """Prints what is wrong with the arguments; other exceptions go to `_unexpected`.

    Typer vendors click's exceptions under a path that changes between versions, so they are known by their methods.
    """
    explain = getattr(problem, "format_message", None)
    if explain is None:
        return _unexpected(problem)
    text = re.sub(r"Value error, |, unable to parse .*?(?=\.|$)", "", str(explain()))
    if type(problem).__name__ == "NoArgsIsHelpError":
        print(text)
        return 0
    called = getattr(getattr(problem, "ctx", None), "command_path", "fpl-tune")
    return _fail(f"{text.rstrip('.?')}{'?' if text.endswith('?') else '.'} See {called} -h.", 2)


def _unexpected(problem: Exception) -> int:
    """Prints where a plug-in raised, or which file cannot be read or written; raises any other exception again."""
    from fpl_tune import plugins

    if os.environ.get("FPL_TUNE_FULL_ERROR"):
        raise problem
    if plugins.where(problem):
        return _fail(
            f"A plug-in raised {plugins.told(problem)}. Fix the plug-in; set FPL_TUNE_FULL_ERROR=1 for the traceback.",
            1,
        )
    if isinstance(problem, OSError) and problem.strerror:
        path = problem.filename2 or problem.filename or "The output"
        return _fail(f"{path} cannot be read or written ({problem.strerror}). Fix that, or choose another path.", 3)
    raise problem


def _fail(message: str, code: int) -> int:
    from fpl_tune.cli.output import warn

    message = re.sub(r"\S{200,}", lambda word: f"{word.group()[:60]}...", message)
    warn(f"fpl-tune: {message}", "red")
    return code


class _Warnings(logging.Handler):
    """Prints the package's own log, which holds warnings about a study's files."""

    def emit(self, record: logging.LogRecord) -> None:
        _warn(record.getMessage(), UserWarning)


_WARNINGS = _Warnings(logging.WARNING)


def _warn(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Prints a `UserWarning` as one line; warnings of libraries to programmers are dropped."""
    if issubclass(category, UserWarning) and not issubclass(category, DeprecationWarning | FutureWarning):
        from fpl_tune.cli.output import warn

        warn(f"fpl-tune: {message}")


if __name__ == "__main__":
    main()
