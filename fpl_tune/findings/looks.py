"""Seeds that are added until comparisons are decided: looks at numbers of seeds that are declared beforehand.

With `seeds=until_decided` every cell runs the seeds of the first look. When all have, the two cells of every undecided
comparison with the reference run the seeds of the next look; the others are done. Each look has its share of the error,
so the verdicts of all looks hold together; see `analysis.compare`. A look stores nothing but the results: its decisions
follow from the first seeds of each cell, and so does what is left to run after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.core.spec import UNTIL_DECIDED
from fpl_tune.study.schema import DamagedFile

if TYPE_CHECKING:
    from fpl_tune.config import StudySpec
    from fpl_tune.study.store import Store


@dataclass(frozen=True)
class Look:
    """A look at the results of a number of seeds."""

    seeds: int
    compared: int
    """Comparisons with the reference."""
    decided: int
    goes_on: tuple[str, ...] = ()
    """Ids of the cells of undecided comparisons."""
    further: tuple[int, ...] = ()
    """The additional seeds of the next look; empty after the last look."""

    def __str__(self) -> str:
        text = f"{self.decided} of {counted(self.compared, 'comparison')} decided after {counted(self.seeds, 'seed')}"
        if self.goes_on and self.further:
            text += f"; {counted(len(self.goes_on), 'cell')} run on to {counted(self.further[-1], 'seed')}"
        return text


def check(spec: StudySpec) -> None:
    """Checks that looks fit the study.

    Raises:
        ConfigError: the study searches, prunes or has claims.
    """
    if spec.declared_looks():
        fixed = "Set a number of seeds."
        if spec.search.sampler is not None:
            raise ConfigError(f"seeds={UNTIL_DECIDED} compares the cells of a grid, but {spec.name} searches. {fixed}")
        if spec.prune.rule not in (None, "auto"):
            raise ConfigError(f"seeds={UNTIL_DECIDED} runs cells whole. Set prune.rule=null, or a number of seeds.")
        if spec.report.claims:
            raise ConfigError(
                f"seeds={UNTIL_DECIDED} decides comparisons with a reference, but {spec.name} has claims. {fixed}"
            )


def check_declared(spec: StudySpec, store: Store) -> None:
    """Checks that looks were declared before the first result.

    Raises:
        ConfigError: the store has results, and they were made with other looks.
    """
    looks = spec.declared_looks()
    if not store.exists or not any(map(store.runs, store.files())):
        return
    try:
        before = store.study().declared_looks()
    except DamagedFile:  # it is written again, and the declared looks are lost
        return
    if before == looks:
        return
    was, now = (f"looks={numbers}" if numbers else "a fixed number of seeds" for numbers in (before, looks))
    raise ConfigError(
        f"Looks are declared before the first result, but {store.name} has results with {was} and is asked for {now}. "
        f"Run it under another name: name={store.name}_2."
    )
