"""What a study asks of each cell: its seeds, looks and halving."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import listed
from fpl_tune.core.metrics import VAL
from fpl_tune.study.cells import Cell


@dataclass(frozen=True)
class Design:
    """The seeds, looks and halving that a study asks of each cell."""

    seeds: tuple[int, ...]
    """All seeds; with looks, those of the last one."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds after which comparisons are looked at; empty: the seeds are fixed."""
    objectives: tuple[str, ...] = (VAL,)
    """The metrics by which halving compares trials."""
    reduction: int | None = None
    """Reduction factor of halving; None: no trial is stopped early."""
    first_rung: int | None = None
    confirm: tuple[int, ...] = ()
    """The seeds of cells that confirm a search, and of its references; empty: nothing is confirmed."""
    limits: tuple[tuple[str, float], ...] = ()
    """Limits of the search by metric; see `config.SearchSpec.limits`."""

    @classmethod
    def of(cls, study: Any, *, halved: bool, confirm: Sequence[int] = ()) -> Design:
        """The design of a composed or a stored study.

        Args:
            study: the study.
            halved: True if halving stops its trials early.
            confirm: see `confirming_seeds`.
        """
        searched, prune = study.search.sampler is not None and study.search.objectives, study.prune
        return cls(
            tuple(study.seed_list()),
            tuple(study.declared_looks()),
            tuple(searched or [VAL]),
            prune.reduction if halved else None,
            prune.first_rung if halved else None,
            tuple(confirm),
            tuple(study.search.limits.items()) if searched else (),
        )

    def seeds_of(self, cell: Cell) -> tuple[int, ...]:
        """All seeds of a cell; with looks, those of the last one."""
        return self.confirm if self.confirm and cell.role in ("tuned", "published", "reference") else self.seeds

    def first_seeds_of(self, cell: Cell) -> tuple[int, ...]:
        """The seeds that a cell runs in any case: with looks, those of the first one."""
        return self.seeds[: self.looks[0]] if self.looks else self.seeds_of(cell)

    def most_together(self) -> int:
        """The maximum number of seeds that a cell trains together."""
        if self.looks:
            return max(b - a for a, b in zip((0, *self.looks), self.looks, strict=False))
        return max(len(self.seeds), len(self.confirm))

    def halves(self, cell: Cell) -> bool:
        """True if halving may stop a cell. A trial that others are compared with always completes."""
        return self.reduction is not None and cell.role == "trial" and not cell.completes and bool(self.rungs(cell))

    def rungs(self, cell: Cell) -> tuple[int, ...]:
        """Rounds after which halving compares trials; see `rungs_of`."""
        if self.reduction is None:
            return ()
        return rungs_of(self.reduction, self.first_rung, cell.eval_every, cell.rounds)


def confirming_seeds(study: Any, used: Collection[int]) -> tuple[int, ...]:
    """The seeds that confirm the searches of a study: see `config.SearchSpec.confirm`.

    Args:
        study: a composed study.
        used: seeds whose results its samplers have seen.

    Raises:
        ConfigError: a given seed is one of the search's.
    """
    search, taken = study.search, {*study.seed_list(), *used}
    if search.sampler is None or not search.confirm:
        return ()
    if isinstance(search.confirm, list):
        if again := sorted(taken & {*search.confirm}):
            raise ConfigError(
                f"search.confirm needs seeds that the search has not used, but it has used {listed('seed', again)}. "
                "Name others, or a number of seeds."
            )
        return tuple(search.confirm)
    number = len(study.seed_list()) if search.confirm == "auto" else search.confirm
    return tuple(itertools.islice((seed for seed in itertools.count(1) if seed not in taken), number))


@cache
def rungs_of(reduction: int, first_rung: int | None, eval_every: int, rounds: int) -> tuple[int, ...]:
    """The first evaluated rounds from `first_rung` · `reduction`^k on, before the last one."""
    rungs, number = list[int](), first_rung or math.ceil(rounds / reduction)
    while (evaluated := math.ceil(number / eval_every) * eval_every) < rounds:
        rungs.append(evaluated)
        number *= reduction
    return tuple(dict.fromkeys(rungs))
