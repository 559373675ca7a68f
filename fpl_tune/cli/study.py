"""`fpl-tune study`: run a study, or continue it."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from fpl_tune.cli import output
from fpl_tune.cli.common import (
    ConfigOption,
    Format,
    FormatOption,
    Overrides,
    SeedsOption,
    StudyName,
    app,
    print_config,
    with_options,
)
from fpl_tune.core.paths import output_root

if TYPE_CHECKING:
    from fpl_tune.config import Study
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
    seeds: SeedsOption = None,
    format: FormatOption = "table",
    cfg: ConfigOption = False,
) -> None:
    """Run a study, or continue it: finished cells never run again."""
    if dry_run:
        from fpl_tune.cli.plan import plan

        plan(name, overrides, seeds, format=format, cfg=cfg)
        return
    words, table = with_options(overrides, seeds=seeds), format == "table"
    if sys.stderr.isatty():  # before the imports, which take seconds
        print(f"{name}: loading", end="\r", file=sys.stderr, flush=True)
    from fpl_tune.execute.plan.overrides import compose
    from fpl_tune.study.store import Store

    spec = compose(name, words)
    if cfg:
        print_config(spec)
        return
    store = Store(output_root(), spec.name)
    outcome = _run(spec, store, retry, table)
    _summarise(store, outcome, format, spec.tracking.enabled)
    sys.exit(outcome.exit_code)


def _run(spec: Study, store: Store, retry: bool, table: bool) -> Outcome:
    """Runs a composed study."""
    from fpl_tune.api import start_study
    from fpl_tune.cli.live import ReportWriter, Watcher
    from fpl_tune.execute import manage
    from fpl_tune.execute.eta import Eta

    eta = Eta()
    callbacks: list[Callback] = [eta, Watcher(eta, quiet=not table), ReportWriter()]
    if spec.tracking.enabled:
        from fpl_tune.track import Recorder

        callbacks.append(Recorder(spec.tracking.uri, warn=output.warn))
    if retry:
        deleted = [f"retry {text}" for text in manage.retry_failed(store)]
        if table:
            print("\n".join(deleted) or "No seed has failed or diverged: nothing to retry.")
    # Ray prints notices of nodes, which are no part of JSON or CSV.
    with nullcontext() if table else redirect_stdout(sys.stderr):
        return start_study(spec, root=store.root, callbacks=callbacks)


def _summarise(store: Store, outcome: Outcome, format: Format, tracked: bool) -> None:
    """Prints the table, where report, results and records are, the failures, and how many cells ran."""
    from fpl_tune.cli.show import print_results
    from fpl_tune.core.formatting import counted

    table = format == "table"
    if outcome.done or outcome.skipped:
        print_results(store, store.study().report.rule, format)
        if table:
            page = store.folder / "report.html" if outcome.exit_code < 128 else f"fpl-tune report {store.name}"
            print(f"report   {page}\nresults  {store.folder / 'results.csv'}")
            if tracked:
                print("MLflow   fpl-tune ui")
    others = [cell for cell in store.earlier_cells() if store.seeds(cell)]
    if others and table:
        print(
            f"{counted(len(others), 'cell')} with results of other settings {'is' if len(others) == 1 else 'are'} kept "
            "but not shown; the command that made them shows them again."
        )
    for failure in outcome.failures:
        output.warn(failure)
    if table:
        more = ". The same command continues." if outcome.pending else ""
        print(
            f"{counted(outcome.done, 'cell')} run, {outcome.skipped} done before, {outcome.failed} failed, "
            f"{outcome.pending} left, in {output.elapsed()}{more}"
        )
