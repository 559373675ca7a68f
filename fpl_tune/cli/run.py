"""`fpl-tune run`: one simulation in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpl_tune.cli import output
from fpl_tune.cli.common import ConfigOption, FormatOption, Overrides, app
from fpl_tune.core.formatting import counted
from fpl_tune.core.paths import usable_cache

if TYPE_CHECKING:
    from fpl_tune.simulation.simulation import Record


@app.command(epilog="Example: fpl-tune run method=pfedmoap method.d_gating=32 protocol=quick", rich_help_panel="Run")
def run(
    overrides: Overrides = None,
    format: FormatOption = "table",
    cfg: ConfigOption = False,
) -> None:
    """Run one federated simulation in the terminal; nothing is recorded."""
    from fpl_tune import config
    from fpl_tune.api import round_line

    given, chosen = config.take_seeds(overrides or [])
    spec = config.compose_run(given)
    if cfg:
        output.emit_config(config.as_dict(spec))
        return
    from fpl_tune.core.device import resolve
    from fpl_tune.execute.plan import preflight
    from fpl_tune.simulation.simulation import Simulation
    from fpl_tune.study.results import TEST, VAL, rules_of

    preflight.check([spec])
    with output.progress("encoding images") as progress:
        trial = Simulation(spec, chosen, cache_dir=usable_cache(), device=resolve("auto"), progress=progress)
    history: list[Record] = []
    while not trial.done:
        records = trial.step()
        history += records
        if format == "table" and TEST in records[0]:
            print(round_line(records, trial), flush=True)
    others = output.other_sets(name for record in history for name in record)
    titles = {VAL: "validation", TEST: "test", **others}
    rows = []
    for seed in chosen:
        mine = {record["round"]: record for record in history if record["seed"] == seed}
        for rule, result in rules_of(list(mine.values())).items():
            # The mean over rounds belongs to no single round, and so has no metrics on other test sets.
            at = mine[int(result["round"])] if rule != "mean_last5" else {}
            figures = {name: at.get(name) for name in others}
            rows.append({"seed": seed, "rule": rule, **result, **figures})
    if format == "table":
        rows = [{titles.get(k, k): output.percent(v) if k in titles else v for k, v in row.items()} for row in rows]
    title = "Accuracies in % by reporting rule; best_test and mean_last5 select on test figures"
    output.emit(rows, format, title=title)
    if format == "table" and len(chosen) > 1:
        print(f"mean of {counted(len(chosen), 'seed')} after round {trial.round}: {_over_seeds(history, trial.round)}")


def _over_seeds(history: list[Record], last: int) -> str:
    """Validation and test accuracy in the last round, mean ± standard deviation over seeds."""
    from fpl_tune.study.results import TEST, VAL, aggregate

    texts = []
    for name, title in ((VAL, "validation"), (TEST, "test")):
        if values := [record[name] for record in history if record["round"] == last and name in record]:
            over = aggregate(values)
            texts.append(f"{title} {output.percent(over['mean'], over['std'])} %")
    return ", ".join(texts)
