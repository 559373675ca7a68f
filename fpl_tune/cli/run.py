"""`fpl-tune run`: one simulation in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpl_tune.cli.common import ConfigOption, Format, FormatOption, Overrides, app

if TYPE_CHECKING:
    from fpl_tune.trial import Record, Trial


@app.command(epilog="Example: fpl-tune run method=pfedmoap method.d_gating=32 protocol=quick", rich_help_panel="Run")
def run(
    overrides: Overrides = None,
    seeds: Annotated[str, typer.Option(help="Number of seeds, or a list such as 1,2,5.")] = "1",
    format: FormatOption = Format.table,
    cfg: ConfigOption = False,
) -> None:
    """One federated simulation in the terminal; nothing is recorded."""
    from fpl_tune import config
    from fpl_tune.cli import output

    spec = config.compose_run(overrides or [])
    if cfg:
        output.emit_config(config.as_dict(spec))
        return
    from fpl_tune.device import resolve
    from fpl_tune.paths import cache_root
    from fpl_tune.plan import preflight
    from fpl_tune.study.results import rules_of
    from fpl_tune.trial import Trial

    chosen = seed_list(seeds)
    preflight.check([spec])
    with output.progress("encoding images") as progress:
        trial = Trial(spec, chosen, cache_dir=cache_root(), device=resolve("auto"), progress=progress)
    history: dict[int, list[dict[str, Any]]] = {seed: [] for seed in chosen}
    while not trial.done:
        records = trial.step()
        for record in records:
            history[record["seed"]].append(record)
        if format is Format.table and "test/acc_mean" in records[0]:
            output.console().print(_round(records, trial))
    rows = [
        {"seed": seed, "rule": rule, **figures}
        for seed, records in history.items()
        for rule, figures in rules_of(records).items()
    ]
    if format is Format.table:
        shown = {"val/acc_mean": "validation %", "test/acc_mean": "test %"}
        rows = [{shown.get(k, k): output.percent(v) if k in shown else v for k, v in row.items()} for row in rows]
    output.emit(rows, format, title="By reporting rule; best_test and mean_last5 select on test figures")


def seed_list(text: str) -> list[int]:
    """Parses `--seeds`: "3" is seeds 1, 2, 3; "4,7" is seeds 4 and 7.

    Raises:
        ConfigError: not a number or a list of different non-negative numbers.
    """
    from fpl_tune.errors import ConfigError

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds is a number of seeds or a list such as 1,2,5, but is {text!r}.") from None
    if "," not in text and numbers[0] < 1:
        raise ConfigError(f"--seeds must be >= 1, but is {text!r}.")
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ConfigError(f"--seeds must name different seeds, none below 0, but is {text!r}.")
    return numbers if "," in text else list(range(1, numbers[0] + 1))


def _round(records: list[Record], trial: Trial) -> str:
    """The line of a round: accuracies averaged over seeds, time spent, and the ETA."""
    from fpl_tune.formatting import duration

    shown = [
        f"{name} {100 * sum(r[field] for r in records) / len(records):.1f} %"
        for name, field in (("validation", "val/acc_mean"), ("test", "test/acc_mean"))
        if field in records[0]
    ]
    spent = sum(r["time/seconds"] for r in records)
    left = spent / trial.round * (trial.rounds - trial.round)
    return (
        f"round {trial.round}/{trial.rounds}  {'  '.join(shown)}  "
        f"{duration(spent)}{f', about {duration(left)} left' if left > 2 else ''}"
    )
