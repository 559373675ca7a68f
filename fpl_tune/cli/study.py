"""`fpl-tune study`: run a study, or continue it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import ConfigOption, Format, FormatOption, Overrides, StudyName, app
from fpl_tune.core.formatting import counted, duration
from fpl_tune.core.paths import output_root, study_file

if TYPE_CHECKING:
    from fpl_tune.execute.callback import Callback, Outcome
    from fpl_tune.study.store import Store


@app.command(epilog="Example: fpl-tune study lambda_sweep method.experts=5 seeds=5", rich_help_panel="Run")
def study(
    name: StudyName,
    overrides: Overrides = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run diverged seeds again too; failed seeds always run again.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress on standard error: results, warnings and errors alone.")
    ] = False,
    format: FormatOption = "table",
    cfg: ConfigOption = False,
) -> None:
    """Run a study, or continue it: finished cells never run again."""
    if sys.stderr.isatty() and not quiet:  # before the imports, which take seconds
        print(f"{name}: loading", end="\r", file=sys.stderr, flush=True)
    from fpl_tune.search.compose import compose

    study = compose(name, overrides or [])
    spec = study.spec
    if cfg:
        output.emit_config(spec.node)
        return
    from fpl_tune.api import start_study
    from fpl_tune.cli.live import ReportWriter, Watcher
    from fpl_tune.execute import manage
    from fpl_tune.study.export import EXPECTED, compared
    from fpl_tune.study.store import Store

    store = Store(output_root(), spec.name)
    callbacks: list[Callback] = [Watcher(quiet), ReportWriter()]
    if spec.tracking.enabled:
        from fpl_tune.track import MLflowCallback

        callbacks.append(MLflowCallback(output.warn))
    with redirect_stdout(sys.stderr):  # with the output of plug-ins: results alone are on standard output
        if retry and not quiet:
            again = [f"retry {text}" for text in manage.failed_seeds(store)]
            print("\n".join(again) or "No seed has failed or diverged: nothing to retry.")
        outcome = start_study(study, root=store.root, callbacks=callbacks, retry=retry)
    _summarise(store, outcome, format)
    expected = study_file(name).parent / EXPECTED
    if expected.is_file() and (outcome.done or outcome.skipped):
        print(compared(store, expected), file=None if format == "table" else sys.stderr)
    for failure in outcome.failures:
        output.warn(failure)
    if not quiet:
        print(_counts(outcome), file=sys.stderr)
    sys.exit(outcome.exit_code)


def _summarise(store: Store, outcome: Outcome, format: Format) -> None:
    """Prints the answer, the table, and the paths of report and results."""
    from fpl_tune.cli.show import print_results
    from fpl_tune.study import tracking

    table, whole, stored = format == "table", outcome.exit_code < 128, store.table()
    if outcome.done or outcome.skipped:
        if table and whole:
            from fpl_tune import report

            output.console().print(f"\n{report.sentence(store)}\n", style="bold")
        print_results(store, stored.study.report.rule, format)
        if table:
            page = store.folder / "report.html" if whole else f"fpl-tune report {store.name}"
            print(f"report   {page}")
            if tracking.links(store.folder):
                print(f"MLflow   fpl-tune ui {store.name}   (comparison, table, charts)")
            print(f"results  {store.folder / 'results.csv'}")


def _counts(outcome: Outcome) -> str:
    """The number of cells that ran, and how to go on."""
    more = ". The same command continues." if outcome.pending else ""
    return (
        f"{counted(outcome.done, 'cell')} run, {outcome.skipped} done before, {outcome.failed} failed, "
        f"{outcome.pending} left, in {duration(outcome.seconds)}{more}"
    )
