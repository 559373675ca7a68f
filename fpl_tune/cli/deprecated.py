"""Old spellings of verbs, hidden from help: they work for one release and name the new spelling on standard error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune.cli.common import Format, FormatOption, Overrides, StoredStudy, StudyName, app
from fpl_tune.cli.data import data_app


def deprecated(old: str, new: str) -> None:
    """Prints that a spelling is going away."""
    from fpl_tune.cli import output

    output.warn(f"`fpl-tune {old}` is deprecated and goes with the next release; use `fpl-tune {new}`.")


def moved_bench(kind: str, overrides: Sequence[str], format: Format) -> int:
    """Runs a benchmark that is a script of the repository now: `fpl-tune bench desk`, `search`, `statistics`.

    Raises:
        ConfigError: the package is installed without the repository.
    """
    from fpl_tune.cli import output
    from fpl_tune.errors import ConfigError

    new = ["bench.py", "platform" if kind == "desk" else kind]
    script = Path(__file__).resolve().parents[2] / ".github" / "tools" / new[0]
    if not script.is_file():
        raise ConfigError(f"`bench {kind}` is a script of the repository. There: python .github/tools/{' '.join(new)}")
    output.warn(f"`fpl-tune bench {kind}` goes with the next release; use `python .github/tools/{' '.join(new)}`.")
    return subprocess.call([sys.executable, str(script), *new[1:], *overrides, "--format", format.value])


@app.command(hidden=True, epilog="Example: fpl-tune diff lambda_sweep seeds=5")
def diff(name: StudyName, overrides: Overrides = None, format: FormatOption = Format.table) -> None:
    """Deprecated: `fpl-tune plan`."""
    from fpl_tune.cli.plan import plan

    deprecated("diff", "plan")
    plan(name, overrides, format=format)


@app.command(hidden=True, epilog="Example: fpl-tune best lambda_sweep --export best/")
def best(
    name: StoredStudy,
    rule: Annotated[str, typer.Option(help="Rule that selects: final or best_val.")] = "final",
    export: Annotated[Path | None, typer.Option(help="Folder to write the cell to.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Deprecated: `fpl-tune show --best` and `fpl-tune export --cell best`."""
    from fpl_tune.api import stored
    from fpl_tune.cli.export import export as export_cell
    from fpl_tune.cli.show import show_best

    if export is None:
        deprecated("best", "show STUDY --best")
    else:
        deprecated("best --export", "export STUDY FOLDER --cell best")
        export_cell(name, export, "best", rule)
    show_best(stored(name), rule, format)


@app.command(hidden=True, epilog="Example: fpl-tune retry lambda_sweep --failed")
def retry(
    name: StoredStudy,
    failed: Annotated[bool, typer.Option("--failed", help="Only seeds that failed, not those that diverged.")] = False,
) -> None:
    """Deprecated: `fpl-tune study --retry`."""
    from fpl_tune.api import stored
    from fpl_tune.cli.study import retry_failed
    from fpl_tune.study.status import FAILURES, Status

    deprecated("retry", "study STUDY --retry")
    retry_failed(stored(name), {Status.FAILED} if failed else FAILURES)


@data_app.command("ls", hidden=True, epilog="Example: fpl-tune data ls --root ~/data")
def data_ls(
    root: Annotated[str | None, typer.Option(help="List what is in this folder.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Deprecated: `fpl-tune ls data`."""
    from fpl_tune.cli.ls import list_data

    deprecated("data ls", "ls data")
    list_data(root, format)
