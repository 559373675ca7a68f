"""`fpl-tune study` and `fpl-tune plan`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import yaml

from fpl_tune import config
from fpl_tune.cli import output
from fpl_tune.cli._look import table
from fpl_tune.cli.live import Watcher
from fpl_tune.paths import output_root


def study(name: str, overrides: Sequence[str], format: str, cfg: bool) -> None:
    """Runs what is not done, then prints the table and says where report and records lie."""
    from fpl_tune.study.runner import run_study

    spec, node = config.compose_study(name, overrides)
    if cfg:
        print(yaml.safe_dump(node, sort_keys=False, allow_unicode=True), end="")
        return
    root = output_root()
    listeners: list[Any] = [Watcher(quiet=format != "table")]
    if spec.tracking.enabled:
        from fpl_tune.track import Recorder

        listeners.append(Recorder(spec.tracking.uri, root, seeds=spec.tracking.seeds))
    outcome = run_study(spec, node, root=root, listeners=listeners)
    from fpl_tune.report import build
    from fpl_tune.study.store import Store

    store = Store(root, spec.name)
    if outcome.done or outcome.skipped:
        page = build(store)
        table(store, spec.report.rule, format)
        if format == "table":
            talk = output.console()
            talk.print(f"report   {page}\ncells    {store.folder / 'results.csv'}\nMLflow   fpl-tune ui")
            talk.print(
                f"{outcome.done} cells run, {outcome.skipped} done before, {outcome.failed} failed, "
                f"{outcome.pending} left, in {output.duration(outcome.seconds)}"
            )
    sys.exit(outcome.exit_code)


def plan(name: str, overrides: Sequence[str], format: str) -> None:
    """What the study would run, and whether it can."""
    from fpl_tune.study.plan import make_plan

    spec, node = config.compose_study(name, overrides)
    found = make_plan(spec, node, root=output_root())
    if format == "json":
        output.emit_object(found.totals(), "json")
        return
    output.emit(found.rows(), format, title=f"Plan of {spec.name}")
    if format == "table":
        output.console().print(found.sentence())
    if not found.feasible:
        sys.exit(2)
