"""`fpl-tune study`: run a study, or continue it."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli import answers, output
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
from fpl_tune.paths import output_folder, output_root
from fpl_tune.study.status import FAILURES

if TYPE_CHECKING:
    from pathlib import Path

    from fpl_tune.config import StudySpec
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
    words = with_options(overrides, budget=budget, seeds=seeds)
    asked = answers.Question(name, "study", *words, format, files=[output_folder() / "mlflow.db"])
    if not (retry or cfg) and asked.repeat():
        return
    if sys.stderr.isatty():  # before the imports, which take seconds
        print(f"{name}: loading", end="\r", file=sys.stderr, flush=True)
    from fpl_tune.plan.overrides import compose

    with output.captured() as said:
        spec, node = compose(name, words, output_folder())
        if cfg:
            output.emit_config(node)
            return
        outcome = _run(spec, node, retry, format)
    if outcome.exit_code == 0 and answers.lasting(node):
        again = replace(outcome, done=0, skipped=outcome.done + outcome.skipped)
        asked.keep([*said, ["timed", *_counts(again)]] if format is Format.table else said, changed=True)
        _prepare(spec.name, name, overrides, budget, seeds)
    if format is Format.table:
        output.timed(*_counts(outcome))
    sys.exit(outcome.exit_code)


def _prepare(stored: str, name: str, overrides: list[str] | None, budget: str | None, seeds: str | None) -> None:
    """Keeps the answers of the verbs that usually come next, while what they need is loaded."""
    from fpl_tune.cli.plan import plan
    from fpl_tune.cli.show import show
    from fpl_tune.cli.status import status
    from fpl_tune.evaluate import CHOICES, HABITS

    with output.captured(mute=True):
        for rule in (None, *CHOICES, *HABITS):
            show(stored, rule=rule)
        for rule in (None, *CHOICES):
            show(stored, best=True, rule=rule)
        for format in (Format.table, Format.json):
            status(stored, format=format)
            plan(name, overrides, budget, seeds, format)
        show(stored, format=Format.json)


def _run(spec: StudySpec, node: dict[str, Any], retry: bool, format: Format) -> Outcome:
    """Runs a composed study and prints how it ended."""
    from fpl_tune.api import start_study
    from fpl_tune.cli.live import ReportWriter, Watcher
    from fpl_tune.study.store import Store

    root, table = output_root(), format is Format.table
    reporter = ReportWriter()
    callbacks: list[Callback] = [Watcher(quiet=not table), reporter]
    if spec.tracking.enabled:
        from fpl_tune.track import Recorder

        callbacks.append(Recorder(spec.tracking.uri, warn=output.warn))
    if retry:
        retry_failed(Store(root, spec.name), quiet=not table)
    # Ray prints notices of nodes, which are no part of JSON or CSV.
    with nullcontext() if table else redirect_stdout(sys.stderr):
        outcome = start_study(spec, node, root=root, callbacks=callbacks)
    _summarise(Store(root, spec.name), outcome, reporter.page, format, spec.tracking.enabled)
    return outcome


def retry_failed(store: Store, states: Collection[str] = FAILURES, *, quiet: bool = False) -> None:
    """Deletes the results of seeds in these states, and prints the error of each."""
    from fpl_tune.execute import manage

    deleted = manage.retry_failed(store, states)
    if not quiet:
        lines = [f"retry {text}" for _, text in deleted] or ["No seed has failed or diverged: nothing to retry."]
        output.say("\n".join(lines))


def _summarise(store: Store, outcome: Outcome, page: Path | None, format: Format, tracked: bool) -> None:
    """Prints the table, the failures, and where report, results and records are."""
    from fpl_tune.cli.results_table import results_table
    from fpl_tune.formatting import counted

    table = format is Format.table
    if outcome.done or outcome.skipped:
        results_table(store, store.spec().report.rule, format)
        if table:
            report = page or f"fpl-tune report {store.name}"
            output.say(f"report   {report}\nresults  {store.folder / 'results.csv'}")
            if tracked:
                output.say("MLflow   fpl-tune ui")
    others = [cell for cell in store.left() if store.seeds(cell)]
    if others and table:
        output.say(
            f"{counted(len(others), 'cell')} with results of other settings {'is' if len(others) == 1 else 'are'} kept "
            "but not shown; the command that made them shows them again."
        )
    for failure in outcome.failures:
        output.warn(failure)


def _counts(outcome: Outcome) -> tuple[str, str]:
    """The last line of a study, before and after its time."""
    from fpl_tune.formatting import counted

    text = (
        f"{counted(outcome.done, 'cell')} run, {outcome.skipped} done before, {outcome.failed} failed, "
        f"{outcome.pending} left"
    )
    return text, ". The same command continues." if outcome.pending else ""
