"""The command line: one file per verb, imported here in the order of the help page.

A verb imports its dependencies inside its function, so that `-h` and completion are instant. Shared: `common.py`
(application and arguments), `output.py` (tables, JSON, CSV), `streams.py` (standard streams). Open `study.py` first.

Exit codes: 0 done; 1 finished with failed cells, data whose test images are copies of training images, or a trace that
differs; 2 usage, configuration or an infeasible plan, nothing started; 3 environment, such as a standard output that
cannot be written; 130 and 143 after a clean stop.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence

from fpl_tune.cli import hydra_words, output, streams
from fpl_tune.cli.common import app
from fpl_tune.core import plugins
from fpl_tune.core.errors import FplTuneError, Notice

# isort: off
from fpl_tune.cli import study, plan, run, bench, parity
from fpl_tune.cli import status, show, report, ui
from fpl_tune.cli import stop, doctor, export
from fpl_tune.cli import new, ls, data, world, cluster
# isort: on

_VERBS = (
    study, plan, run, bench, parity, status, show, report, ui, stop, doctor, export, new, ls, data, world, cluster
)  # fmt: skip
"""Importing a verb registers it."""

_LONG_WORD = r"\S{200,}"


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the console script. An expected error is printed as one line, with a documented exit code."""
    logging.getLogger("fpl_tune").addHandler(_WARNINGS)
    with streams.unfailing(), warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        warnings.showwarning = _Once()
        try:
            code = app(
                hydra_words.answered(sys.argv[1:] if words is None else words),
                prog_name="fpl-tune",
                standalone_mode=False,
            )
        except Exception as problem:
            if os.environ.get("FPL_TUNE_FULL_ERROR") and not hasattr(problem, "format_message"):
                raise
            code = _report(problem)
        finally:
            gc.freeze()  # PyTorch and MLflow would take a second to be collected when the process ends
        if isinstance(code, int) and code:
            sys.exit(code)
    sys.exit(0)


def _report(problem: Exception) -> int:
    """Prints an expected error as one line and returns the exit code; raises other errors again.

    Typer vendors click's exceptions under a path that changes between versions, so they are known by their methods.
    """
    code = 2
    if type(problem).__name__ == "Abort":  # Ctrl-C
        return 130
    if isinstance(problem, FplTuneError):
        message, code = str(problem), problem.exit_code
    elif explain := getattr(problem, "format_message", None):
        message = re.sub(r"Value error, |, unable to parse .*?(?=\.|$)", "", str(explain()))
        if type(problem).__name__ == "NoArgsIsHelpError":
            print(message)
            return 0
        called = getattr(getattr(problem, "ctx", None), "command_path", "fpl-tune")
        message = f"{message.rstrip('.?')}{'?' if message.endswith('?') else '.'} See {called} -h."
    elif plugins.where(problem):
        error, code = plugins.describe_error(problem), 1
        message = f"A plug-in raised {error}. Fix the plug-in; set FPL_TUNE_FULL_ERROR=1 for the traceback."
    elif isinstance(problem, OSError) and problem.strerror:
        path, code = problem.filename2 or problem.filename or "The output", 3
        message = f"{path} cannot be read or written ({problem.strerror}). Fix that, or choose another path."
    else:
        raise problem
    output.warn(f"fpl-tune: {re.sub(_LONG_WORD, lambda word: f'{word.group()[:60]}...', message)}", "red")
    return code


class _Warnings(logging.Handler):
    """Prints warnings of the package's log, such as those about a study's files."""

    def emit(self, record: logging.LogRecord) -> None:
        output.warn(f"fpl-tune: {record.getMessage()}")


_WARNINGS = _Warnings(logging.WARNING)


class _Once:
    """Prints a `UserWarning` as one line, once per command; warnings of libraries to programmers are dropped."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(self, message: Warning | str, category: type[Warning], *_: object) -> None:
        for_users = issubclass(category, UserWarning) and not issubclass(category, DeprecationWarning | FutureWarning)
        if for_users and str(message) not in self._shown:
            self._shown.add(str(message))
            output.warn(f"fpl-tune: {message}")


if __name__ == "__main__":
    main()
