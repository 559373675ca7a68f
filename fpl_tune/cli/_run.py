"""`fpl-tune run`: one simulation in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fpl_tune import config
from fpl_tune.cli import output
from fpl_tune.errors import ConfigError
from fpl_tune.evaluate import report_rules
from fpl_tune.formatting import duration
from fpl_tune.paths import cache_root
from fpl_tune.plan import preflight
from fpl_tune.trial import Trial, device_of


def seed_list(text: str) -> list[int]:
    """ "3" is seeds 1, 2, 3; "4,7" is those."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds is a number of seeds or a list such as 1,2,5, but is {text!r}.") from None
    if "," not in text and numbers[0] < 1:
        raise ConfigError(f"--seeds must be >= 1, but is {text!r}.")
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ConfigError(f"--seeds must name different seeds, none below 0, but is {text!r}.")
    return numbers if "," in text else list(range(1, numbers[0] + 1))


def _left(spent: float, trial: Trial) -> str:
    """The time that the rounds to come take at the pace so far."""
    seconds = spent / trial.round * (trial.rounds - trial.round)
    return f", about {duration(seconds)} left" if seconds > 2 else ""


def run(overrides: Sequence[str], seeds: str, format: str, cfg: bool) -> None:
    """Composes, simulates, prints a line a round and the figures by reporting rule."""
    spec = config.compose_run(overrides)
    if cfg:
        output.emit_config(config.as_dict(spec))
        return
    config.check(spec)
    chosen = seed_list(seeds)
    preflight.check([spec])
    with output.progress("encoding images") as progress:
        trial = Trial(spec, chosen, cache_dir=cache_root(), device=device_of("auto"), progress=progress)
    history: dict[int, list[dict[str, Any]]] = {seed: [] for seed in chosen}
    talk = output.console()
    while not trial.done:
        records = trial.step()
        for record in records:
            history[record["seed"]].append(record)
        if format == "table" and "val/acc_mean" in records[0]:
            n = len(records)
            val, test = (sum(r[f"{room}/acc_mean"] for r in records) / n for room in ("val", "test"))
            spent = sum(r["time/seconds"] for r in records)
            talk.print(
                f"round {trial.round}/{trial.rounds}  validation {100 * val:.1f} %  test {100 * test:.1f} %  "
                f"{duration(spent)}{_left(spent, trial)}"
            )
    rows = [
        {"seed": seed, "rule": rule, **figures}
        for seed, records in history.items()
        for rule, figures in report_rules([r for r in records if "val/acc_mean" in r]).items()
    ]
    if format == "table":
        shown = {"val/acc_mean": "validation %", "test/acc_mean": "test %"}
        rows = [{shown.get(k, k): output.percent(v) if k in shown else v for k, v in row.items()} for row in rows]
    output.emit(rows, format, title="By reporting rule; best_test and mean_last5 are the papers' habits")
