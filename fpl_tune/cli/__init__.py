"""The command line. Nothing heavy is imported before a verb needs it, so that help is instant.

Exit codes: 0 done; 1 finished with failed cells; 2 usage, configuration or an infeasible plan, nothing started;
3 environment; 4 budget spent, the same command continues; 130 and 143 after a clean stop.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fpl_tune import __version__

app = typer.Typer(
    name="fpl-tune",
    help="Hyper-parameter search and ablation studies for personalised federated prompt learning.",
    epilog="Example: fpl-tune study lambda_sweep seeds=5 'axes.method.lam=[0,0.5,1]'",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    no_args_is_help=True, help="Data sets: where they are expected, whether they are whole, what a split holds."
)
app.add_typer(data_app, name="data", epilog="Example: fpl-tune data check data=pacs data.root=~/fpl-data")


class Format(str, Enum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides in Hydra's grammar, e.g. method=promptfl optim.lr=0.01"),
]
Formats = Annotated[Format, typer.Option("--format", help="How results are printed.")]
Stored = Annotated[str, typer.Argument(metavar="STUDY", help="A study that has results.")]
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study, or the path of its YAML file.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fpl-tune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: fpl-tune run method=pfedmoap method.d_gating=32 protocol=quick")
def run(
    overrides: Overrides = None,
    seeds: Annotated[str, typer.Option(help="Number of seeds, or a list such as 1,2,5.")] = "1",
    format: Formats = Format.table,
    cfg: Annotated[bool, typer.Option("--cfg", help="Print the composed configuration and exit.")] = False,
) -> None:
    """One federated simulation in the terminal; nothing is recorded."""
    from fpl_tune.cli import _run as command

    command.run(overrides or [], seeds, format.value, cfg)


@app.command(epilog="Example: fpl-tune study lambda_sweep method.experts=5 seeds=5")
def study(
    name: StudyName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only; nothing is started.")] = False,
    format: Formats = Format.table,
    cfg: Annotated[bool, typer.Option("--cfg", help="Print the composed study and exit.")] = False,
) -> None:
    """Run a study, or continue it: finished cells are never run again."""
    from fpl_tune.cli import _study as command

    if dry_run:
        command.plan(name, overrides or [], format.value)
    else:
        command.study(name, overrides or [], format.value, cfg)


@app.command(epilog="Example: fpl-tune plan lambda_sweep seeds=10 --format json")
def plan(name: StudyName, overrides: Overrides = None, format: Formats = Format.table) -> None:
    """What a study would run: cells, time, memory, exact bytes, and whether the machine can carry it."""
    from fpl_tune.cli import _study as command

    command.plan(name, overrides or [], format.value)


class Kind(str, Enum):
    """What `ls` lists."""

    methods = "methods"
    data = "data"
    studies = "studies"
    towers = "towers"
    results = "results"


@app.command(epilog="Example: fpl-tune ls methods")
def ls(kind: Annotated[Kind, typer.Argument(help="What to list.")], format: Formats = Format.table) -> None:
    """List methods, data sets, studies, towers, or the studies that have results."""
    from fpl_tune.cli import _look as command

    command.ls(kind.value, format.value)


@app.command(epilog="Example: fpl-tune show lambda_sweep --rule best_val")
def show(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A study that has results.")],
    rule: Annotated[str | None, typer.Option(help="Reporting rule: final, best_val, best_test or mean_last5.")] = None,
    format: Formats = Format.table,
) -> None:
    """The results of a study: mean and deviation over seeds, the best cell, the reporting rule by name."""
    from fpl_tune.cli import _look as command

    command.show(name, rule, format.value)


@app.command(epilog="Example: fpl-tune report lambda_sweep")
def report(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A study that has results.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: the study's own.")] = None,
) -> None:
    """Write the report page, tables (Markdown, LaTeX, CSV) and figures of a study again."""
    from fpl_tune.cli import _look as command

    command.report(name, out)


@app.command(epilog="Example: fpl-tune ui --port 5001")
def ui(port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000) -> None:
    """Open MLflow's page on the store that the studies of this folder write to."""
    from fpl_tune.cli import _look as command

    command.ui(port)


@app.command(epilog="Example: fpl-tune status lambda_sweep --watch")
def status(
    name: Stored,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the study until nobody runs it.")] = False,
    format: Formats = Format.table,
) -> None:
    """Cells by state, finished seeds, and which process runs the study."""
    from fpl_tune.cli import _manage as command

    command.status(name, watch, format.value)


@app.command(epilog="Example: fpl-tune compare lambda_sweep lambda_sweep_rn50")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A study that has results.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    rule: Annotated[str, typer.Option(help="Reporting rule.")] = "final",
    anyway: Annotated[bool, typer.Option("--anyway", help="Also where partitions differ.")] = False,
    format: Formats = Format.table,
) -> None:
    """Differences of two studies, cell by cell, paired by seed."""
    from fpl_tune.cli import _manage as command

    command.compare(a, b, rule, anyway, format.value)


@app.command(epilog="Example: fpl-tune best lambda_sweep --export best/")
def best(
    name: Stored,
    rule: Annotated[str, typer.Option(help="Rule that chooses: final or best_val.")] = "final",
    export: Annotated[
        Path | None, typer.Option(help="Write configuration, prompts, nearest words and a script here.")
    ] = None,
    format: Formats = Format.table,
) -> None:
    """The cell that validation chooses, and what it takes to repeat it."""
    from fpl_tune.cli import _manage as command

    command.best(name, rule, export, format.value)


@app.command(epilog="Example: fpl-tune verify lambda_sweep --rounds 3")
def verify(
    name: Stored,
    cell: Annotated[str | None, typer.Option(help="Id or label of a cell; default: the best one.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to run again.")] = 2,
    format: Formats = Format.table,
) -> None:
    """Run the first rounds of a cell again and compare figures; exit code 1 where they differ."""
    from fpl_tune.cli import _manage as command

    command.verify(name, cell, rounds, format.value)


@app.command(epilog="Example: fpl-tune diff lambda_sweep seeds=5")
def diff(name: StudyName, overrides: Overrides = None, format: Formats = Format.table) -> None:
    """What running a study now would do to each cell: new, stale (and why), partly done, done."""
    from fpl_tune.cli import _manage as command

    command.diff(name, overrides or [], format.value)


@app.command(epilog="Example: fpl-tune replay lambda_sweep confidence=0.5")
def replay(name: Stored, overrides: Overrides = None, format: Formats = Format.table) -> None:
    """What pruning, or random search, would have saved and lost on a finished study. KEY=VALUE are fields of prune."""
    from fpl_tune.cli import _manage as command

    command.replay(name, overrides or [], format.value)


@app.command(epilog="Example: fpl-tune stop lambda_sweep")
def stop(name: Stored) -> None:
    """Ask whoever runs a study to end after the round, with a checkpoint."""
    from fpl_tune.cli import _manage as command

    command.stop(name)


@app.command(epilog="Example: fpl-tune retry lambda_sweep")
def retry(name: Stored) -> None:
    """Forget failed and diverged seeds, so that the next run tries them again."""
    from fpl_tune.cli import _manage as command

    command.retry(name)


@app.command(epilog="Example: fpl-tune doctor --fix")
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Close dead runs, and send what MLflow lacks.")] = False,
    format: Formats = Format.table,
) -> None:
    """What this machine has, and whether MLflow holds what the studies hold."""
    from fpl_tune.cli import _manage as command

    command.doctor(fix, format.value)


@app.command("export", epilog="Example: fpl-tune export lambda_sweep ~/carry/lambda_sweep")
def export_(name: Stored, out: Annotated[Path, typer.Argument(help="New folder to write.")]) -> None:
    """Copy a study to one folder that can be carried to another machine."""
    from fpl_tune.cli import _manage as command

    command.export(name, out)


@app.command("import", epilog="Example: fpl-tune import ~/carry/lambda_sweep")
def import_(folder: Annotated[Path, typer.Argument(help="An exported study.")]) -> None:
    """Take an exported study into the outputs here, MLflow records included."""
    from fpl_tune.cli import _manage as command

    command.import_(folder)


class Bench(str, Enum):
    """What `bench` measures."""

    text = "text"
    round = "round"
    trial = "trial"
    study = "study"


@app.command(epilog="Example: fpl-tune bench text clip=rn50 clip.pretrained=null --format json")
def bench(
    kind: Annotated[Bench, typer.Argument(help="What to measure.")] = Bench.round,
    overrides: Overrides = None,
    format: Formats = Format.table,
) -> None:
    """Measure what a step, a round or a trial costs, beside the plain path in the same run."""
    from fpl_tune.cli import _bench as command

    command.bench(kind.value, overrides or [], format.value)


@data_app.command("ls", epilog="Example: fpl-tune data ls --root ~/data")
def data_ls(
    root: Annotated[str | None, typer.Option(help="Look which of them are there.")] = None,
    format: Formats = Format.table,
) -> None:
    """Data sets, and where their files are expected."""
    from fpl_tune.cli import _data as command

    command.ls(root, format.value)


@data_app.command("check", epilog="Example: fpl-tune data check data=pacs data.root=~/data")
def data_check(overrides: Overrides = None, format: Formats = Format.table) -> None:
    """Read every image: counts against the published sizes, duplicates, unreadable files."""
    from fpl_tune.cli import _data as command

    command.check(overrides or [], format.value)


@data_app.command("prepare", epilog="Example: fpl-tune data prepare data=pacs data.root=~/data clip=rn50")
def data_prepare(overrides: Overrides = None, format: Formats = Format.table) -> None:
    """Fill the feature cache before a study does."""
    from fpl_tune.cli import _data as command

    command.prepare(overrides or [], format.value)


@data_app.command(
    "show", epilog="Example: fpl-tune data show partition=dirichlet partition.alpha=0.1 --figure split.png"
)
def data_show(
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Seed of the run whose split is shown.")] = 1,
    figure: Annotated[Path | None, typer.Option(help="Draw clients by classes to this file (png, pdf, svg).")] = None,
    export: Annotated[Path | None, typer.Option(help="Write the split to this file, for partition=file.")] = None,
    format: Formats = Format.table,
) -> None:
    """What every client of a split holds, and the split's hash."""
    from fpl_tune.cli import _data as command

    command.show(overrides or [], seed, figure, export, format.value)


def main() -> None:
    """Entry point of the console script: errors the user can mend are one line and a documented exit code."""
    from fpl_tune.errors import FplTuneError

    try:
        app(standalone_mode=True)
    except FplTuneError as problem:
        if os.environ.get("FPL_TUNE_FULL_ERROR"):
            raise
        typer.secho(f"fpl-tune: {problem}", err=True, fg="red")
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
