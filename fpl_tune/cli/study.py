"""`fpl-tune study`: run a study, or continue it."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from fpl_tune.cli.common import (
    BudgetOption,
    ConfigOption,
    Format,
    FormatOption,
    Overrides,
    SeedsOption,
    StudyName,
    app,
    with_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fpl_tune.execute.callback import Callback, Outcome
    from fpl_tune.study.store import Store


@app.command(epilog="Example: fpl-tune study lambda_sweep method.experts=5 seeds=5", rich_help_panel="Run")
def study(
    name: StudyName,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as fpl-tune plan: nothing is started.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run diverged seeds again too; failed seeds always run again.")
    ] = False,
    budget: BudgetOption = None,
    seeds: SeedsOption = None,
    format: FormatOption = Format.table,
    cfg: ConfigOption = False,
) -> None:
    """Run a study, or continue it: finished cells never run again."""
    if dry_run:
        from fpl_tune.cli.plan import plan

        plan(name, overrides, budget, seeds, format, cfg)
        return
    began = time.monotonic()
    if sys.stderr.isatty():  # before the imports, which take seconds
        print(f"{name}: loading", end="\r", file=sys.stderr, flush=True)
    from fpl_tune.cli import output
    from fpl_tune.paths import output_folder
    from fpl_tune.plan.overrides import compose

    spec, node = compose(name, with_options(overrides, budget=budget, seeds=seeds), output_folder())
    if cfg:
        output.emit_config(node)
        return
    from fpl_tune.api import start_study
    from fpl_tune.cli.live import ReportWriter, Watcher
    from fpl_tune.paths import output_root
    from fpl_tune.study.store import Store

    root, table = output_root(), format is Format.table
    if retry:
        _retry(Store(root, spec.name), quiet=not table)
    reporter = ReportWriter()
    callbacks: list[Callback] = [Watcher(quiet=not table), reporter]
    if spec.tracking.enabled:
        from fpl_tune.track import Recorder

        recorder = Recorder(spec.tracking.uri, root, seeds=spec.tracking.seeds, warn=output.warn)
        callbacks.append(recorder)
    # Ray prints notices of nodes, which are no part of JSON or CSV.
    with nullcontext() if format == Format.table else redirect_stdout(sys.stderr):
        outcome = start_study(spec, node, root=root, callbacks=callbacks)
    _summarise(Store(root, spec.name), outcome, reporter.page, format, spec.tracking.enabled, began)
    sys.exit(outcome.exit_code)


def _retry(store: Store, *, quiet: bool) -> None:
    """Deletes the results of failed and diverged seeds, and prints why each had none."""
    from fpl_tune.cli import output
    from fpl_tune.execute import manage

    deleted = manage.retry_failed(store)
    if not quiet:
        lines = [f"retry {text}" for _, text in deleted] or ["No seed has failed or diverged: nothing to retry."]
        output.console().print("\n".join(lines), soft_wrap=True)


def _summarise(store: Store, outcome: Outcome, page: Path | None, format: Format, tracked: bool, began: float) -> None:
    """Prints the table, the failures, where report, results and records are, and the time since `began`."""
    from fpl_tune.cli import output
    from fpl_tune.cli.results_table import results_table
    from fpl_tune.formatting import counted, duration

    talk, table = output.console(), format is Format.table
    if outcome.done or outcome.skipped:
        results_table(store, store.spec().report.rule, format)
        if table:
            report = page or f"fpl-tune report {store.name}"
            talk.print(f"report   {report}\nresults  {store.folder / 'results.csv'}", soft_wrap=True)
            if tracked:
                talk.print("MLflow   fpl-tune ui")
    others = [cell for cell in store.left() if store.seeds(cell)]
    if others and table:
        talk.print(
            f"{counted(len(others), 'cell')} with results of other settings {'is' if len(others) == 1 else 'are'} kept "
            "but not shown; the command that made them shows them again.", soft_wrap=True,
        )  # fmt: skip
    for failure in outcome.failures:
        output.warn(failure)
    if table:
        talk.print(
            f"{counted(outcome.done, 'cell')} run, {outcome.skipped} done before, {outcome.failed} failed, "
            f"{outcome.pending} left, in {duration(time.monotonic() - began)}"
            f"{'. The same command continues.' if outcome.pending else ''}"
        )
