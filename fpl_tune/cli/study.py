"""`fpl-tune study`: run a study, or continue it."""

from __future__ import annotations

import sys
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
from fpl_tune.core.paths import output_folder, output_root

if TYPE_CHECKING:
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
    format: FormatOption = "table",
    cfg: ConfigOption = False,
) -> None:
    """Run a study, or continue it: finished cells never run again."""
    if dry_run:
        from fpl_tune.cli.plan import plan

        plan(name, overrides, budget, seeds, format, cfg)
        return
    words, table = with_options(overrides, budget=budget, seeds=seeds), format == "table"
    question = answers.Question(name, "study", words, format, files=[output_folder() / "mlflow.db"])
    if not (retry or cfg) and (text := question.answer()) is not None:
        print(text, end=_took() if table else "")
        return
    if sys.stderr.isatty():  # before the imports, which take seconds
        print(f"{name}: loading", end="\r", file=sys.stderr, flush=True)
    from fpl_tune.execute.plan.overrides import compose
    from fpl_tune.study.store import Store

    spec, node = compose(name, words, output_folder())
    if cfg:
        output.emit_config(node)
        return
    store = Store(output_root(), spec.name)
    outcome = _run(spec, node, store, retry, table)
    with output.captured() as printed:
        _summarise(store, outcome, format, spec.tracking.enabled)
    if outcome.exit_code == 0 and not output.momentary and answers.lasting(spec, node):
        again = _counts(replace(outcome, done=0, skipped=outcome.done + outcome.skipped)) if table else ""
        question.keep(printed.getvalue() + again, changed=True)
        _prepare(spec.name, name, words)
    if table:
        more = ". The same command continues." if outcome.pending else ""
        print(_counts(outcome), end=_took(more))
    sys.exit(outcome.exit_code)


def _prepare(stored: str, name: str, words: list[str]) -> None:
    """Keeps the answers of the verbs that usually come next, while what they need is loaded."""
    from fpl_tune.cli.plan import KEPT_SECONDS, print_plan
    from fpl_tune.cli.show import print_results
    from fpl_tune.cli.status import print_status

    with redirect_stdout(output.Copy()):
        formats: tuple[Format, ...] = ("table", "json")
        for format in formats:
            answers.repeat(print_results, stored, False, False, None, format)
            answers.repeat(print_status, stored, format)
            answers.repeat(print_plan, name, words, format, seconds=KEPT_SECONDS)


def _run(spec: StudySpec, node: dict[str, Any], store: Store, retry: bool, table: bool) -> Outcome:
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
        deleted = [f"retry {text}" for _, text in manage.retry_failed(store)]
        if table:
            print("\n".join(deleted) or "No seed has failed or diverged: nothing to retry.")
    # Ray prints notices of nodes, which are no part of JSON or CSV.
    with nullcontext() if table else redirect_stdout(sys.stderr):
        return start_study(spec, node, root=store.root, callbacks=callbacks)


def _summarise(store: Store, outcome: Outcome, format: Format, tracked: bool) -> None:
    """Prints the table, the failures, and where report, results and records are."""
    from fpl_tune.cli.results_table import results_table
    from fpl_tune.core.formatting import counted

    table = format == "table"
    if outcome.done or outcome.skipped:
        results_table(store, store.spec().report.rule, format)
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


def _counts(outcome: Outcome) -> str:
    """The cells of a study by how they ended."""
    from fpl_tune.core.formatting import counted

    return (
        f"{counted(outcome.done, 'cell')} run, {outcome.skipped} done before, {outcome.failed} failed, "
        f"{outcome.pending} left"
    )


def _took(more: str = "") -> str:
    """The end of the last line of a study."""
    return f", in {output.elapsed()}{more}\n"
