"""`fpl-tune study` and `fpl-tune plan`. Reports draw: what they import, a second of it, waits until there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from fpl_tune import config
from fpl_tune.api import start_study
from fpl_tune.cli import output
from fpl_tune.cli.live import Watcher
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.formatting import counted, duration
from fpl_tune.paths import output_root
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.trial import Record


class _Reporter(Callback):
    """Builds the report page when the study ends, before the recorder attaches it."""

    def __init__(self) -> None:
        self.page: Path | None = None

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        if outcome.done or outcome.skipped:
            from fpl_tune import report

            with output.progress("writing the report") as progress:
                self.page = report.build(store, progress=progress)


def cell_figure(cell: Cell, history: Mapping[int, Sequence[Record]]) -> bytes:
    """A cell's learning curve as PNG, for its MLflow run."""
    from fpl_tune.report import figures

    image = BytesIO()
    figures.cell_curve(history, cell.label).savefig(image, format="png", dpi=110)
    return image.getvalue()


def study(name: str, overrides: Sequence[str], format: str, cfg: bool) -> None:
    """Runs what is not done, then prints the table and says where report and records lie."""
    spec, node = config.compose_study(name, overrides)
    if cfg:
        output.emit_config(node)
        return
    root = output_root()
    reporter = _Reporter()
    callbacks: list[Callback] = [Watcher(quiet=format != "table"), reporter]
    if spec.tracking.enabled:
        from fpl_tune.track import Recorder

        recorder = Recorder(spec.tracking.uri, root, seeds=spec.tracking.seeds, draw=cell_figure, warn=output.warn)
        callbacks.append(recorder)
    outcome = start_study(spec, node, root=root, callbacks=callbacks)
    if reporter.page is not None:
        from fpl_tune.cli._look import table

        store = Store(root, spec.name)
        table(store, spec.report.rule, format)
        if format == "table":
            talk = output.console()
            talk.print(f"report   {reporter.page}\nresults  {store.folder / 'results.csv'}")
            if spec.tracking.enabled:
                talk.print("MLflow   fpl-tune ui")
    for failure in outcome.failures:
        output.warn(failure)
    if format == "table":
        output.console().print(
            f"{counted(outcome.done, 'cell')} run, {outcome.skipped} done before, {outcome.failed} failed, "
            f"{outcome.pending} left, in {duration(outcome.seconds)}"
            f"{'. The same command continues.' if outcome.pending else ''}"
        )
    sys.exit(outcome.exit_code)


def plan(name: str, overrides: Sequence[str], format: str, cfg: bool) -> None:
    """What the study would run, and whether it can."""
    from fpl_tune.plan.plan import make_plan

    spec, node = config.compose_study(name, overrides)
    if cfg:
        output.emit_config(node)
        return
    with output.progress("measuring") as progress:
        found = make_plan(spec, node, root=output_root(), progress=progress)
    if format == "json":
        output.emit_object(found.totals(), "json")
        return
    output.emit(found.rows(), format, title=f"Plan of {spec.name}")
    if format == "table":
        output.console().print(found.sentence(), soft_wrap=True)
    if not found.feasible:
        sys.exit(2)
