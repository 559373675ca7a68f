"""The command line. Nothing heavy is imported before a verb needs it, so that help is instant.

`frame.py` is the frame; `verbs_*.py` declare the verbs; `work.py` imports the file that does a verb's work
(`_run.py`, `_study.py`, ...) when it is called.

Exit codes: 0 done; 1 finished with failed cells; 2 usage, configuration or an infeasible plan, nothing started;
3 environment; 4 budget spent, the same command continues; 130 and 143 after a clean stop.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from fpl_tune.cli import complete
from fpl_tune.cli.frame import app

for _name in ("start", "results", "upkeep", "data", "cluster"):
    import_module(f"fpl_tune.cli.verbs_{_name}")  # registers what is declared there, in the order of the help page


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the console script: errors the user can mend are one line and a documented exit code."""
    from fpl_tune.errors import FplTuneError

    complete.join_words()
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            code = app(words, prog_name="fpl-tune", standalone_mode=False)
        except FplTuneError as problem:
            if os.environ.get("FPL_TUNE_FULL_ERROR"):
                raise
            code = _fail(str(problem), problem.exit_code)
        except Exception as problem:
            code = _misused(problem)
    sys.exit(code if isinstance(code, int) else 0)


def _misused(problem: Exception) -> int:
    """Says what is wrong with the words of a call.

    Typer brings click's errors along, under another name in every version.
    """
    explain = getattr(problem, "format_message", None)
    if explain is None:
        return _broken(problem)
    text = re.sub(r"Value error, |, unable to parse .*?(?=\.|$)", "", str(explain()))
    if type(problem).__name__ == "NoArgsIsHelpError":
        print(text)
        return 0
    called = getattr(getattr(problem, "ctx", None), "command_path", "fpl-tune")
    return _fail(f"{text.rstrip('.?')}{'?' if text.endswith('?') else '.'} See {called} -h.", 2)


def _broken(problem: Exception) -> int:
    """Says where a plug-in raised an error, or what could not be written; what is neither is raised again."""
    from fpl_tune import plugins

    if os.environ.get("FPL_TUNE_FULL_ERROR"):
        raise problem
    if plugins.where(problem):
        return _fail(f"A plug-in raised {plugins.told(problem)}. Mend it; FPL_TUNE_FULL_ERROR=1 shows the calls.", 1)
    if isinstance(problem, OSError) and problem.strerror:
        path = problem.filename2 or problem.filename or "The output"
        return _fail(f"{path} cannot be read or written ({problem.strerror}). Mend that, or name another place.", 3)
    raise problem


def _fail(message: str, code: int) -> int:
    from fpl_tune.cli.output import warn

    warn(f"fpl-tune: {message}", "red")
    return code


def _warn(message: Warning | str, category: type[Warning], *_: object) -> None:
    """What a person can mend or should know is a line; the notices of libraries to programmers are none."""
    if issubclass(category, UserWarning) and not issubclass(category, DeprecationWarning | FutureWarning):
        from fpl_tune.cli.output import warn

        warn(f"fpl-tune: {message}")


if __name__ == "__main__":
    main()
