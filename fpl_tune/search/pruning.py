"""Pruning in rounds, by validation figures and with their noise in mind.

`halving` is asynchronous successive halving (Li et al., 2020, https://arxiv.org/abs/1810.05934) with one change: a cell
is stopped only if it is behind the rung's cutoff by more than `confidence` standard errors of the difference, where
the error comes from seeds and clients. Cells are compared with those of the same data, partition and schedule only,
trials of a search with those of the same cell of the axes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fpl_tune.config import PruneSpec
from fpl_tune.errors import ConfigError, did_you_mean
from fpl_tune.study.cells import Cell
from fpl_tune.trial import Record, rounds_of

RULES = ("halving", "plateau")
METRIC = "val/acc_mean"


@dataclass(frozen=True)
class Score:
    """A smoothed validation figure of a cell and its standard error."""

    mean: float
    error: float


def check(spec: PruneSpec) -> None:
    """Raises `ConfigError` for a rule that cannot be."""
    if spec.rule is not None and spec.rule not in RULES:
        raise ConfigError(f"There is no prune.rule {spec.rule!r}. {did_you_mean(spec.rule, RULES)}")
    if spec.reduction < 2:
        raise ConfigError(f"prune.reduction must be >= 2 (one in so many goes on), but is {spec.reduction}.")
    for name in ("first_rung", "smoothing"):
        if getattr(spec, name) < 1:
            raise ConfigError(f"prune.{name} must be >= 1, but is {getattr(spec, name)}.")
    if spec.seeds is not None and spec.seeds < 1:
        raise ConfigError(f"prune.seeds must be >= 1 (seeds of a batch of the race) or null, but is {spec.seeds}.")
    if not 0 < spec.level < 1:
        raise ConfigError(f"prune.level must lie in (0, 1), but is {spec.level}.")
    if not spec.confidence >= 0:
        raise ConfigError(f"prune.confidence must be >= 0 standard errors, but is {spec.confidence}.")


def score(rounds: Sequence[Sequence[Record]], smoothing: int) -> Score | None:
    """Mean over the last `smoothing` evaluated rounds and over seeds; None before the first evaluation.

    The error is the larger of two estimates: from the spread over seeds, and from the spread over each seed's clients.
    """
    evaluated = [records for records in rounds if METRIC in records[0]][-smoothing:]
    if not evaluated:
        return None
    seeds = range(len(evaluated[0]))
    means = [math.fsum(records[i][METRIC] for records in evaluated) / len(evaluated) for i in seeds]
    n, mean = len(means), math.fsum(means) / len(means)
    over_seeds = math.sqrt(math.fsum((m - mean) ** 2 for m in means) / (n - 1) / n) if n > 1 else 0.0
    return Score(mean, max(over_seeds, math.sqrt(math.fsum(_client_variance(r) for r in evaluated[-1])) / n))


def standard_error(metric: str, over_seeds: float, histories: Sequence[Sequence[Record]]) -> float | None:
    """Standard error of a metric's mean over seeds; None where nothing tells it.

    Of validation accuracy it is the larger of two estimates: from the spread over seeds, and over each seed's clients.
    """
    found = [] if math.isnan(over_seeds) else [over_seeds]
    if metric == METRIC and (variance := math.fsum(_client_variance(history[-1]) for history in histories)):
        found.append(math.sqrt(variance) / len(histories))
    return max(found, default=None)


def _client_variance(record: Record) -> float:
    """Squared standard error of a mean over clients; 0 where the record lacks them."""
    values = [v for v in record.get("clients/val", []) if v is not None and not math.isnan(v)]
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)


class Pruner:
    """Decides after each round whether a cell goes on. References always do."""

    def __init__(self, spec: PruneSpec, axes: Sequence[str] = ()) -> None:
        check(spec)
        self.spec, self._axes = spec, tuple(axes)
        self._rungs: dict[tuple[str, int], dict[str, Score]] = defaultdict(dict)

    def keep(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> bool:
        """Whether the cell goes on after the last of `rounds` (one record per seed)."""
        total = rounds_of(cell.run) if self.spec.rule else 0
        if self.spec.rule is None or cell.role == "reference" or len(rounds) >= total:
            return True
        if self.spec.rule == "plateau":
            return not self._flat(rounds)
        return self._among_the_best(cell, rounds)

    def _among_the_best(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> bool:
        if not self._is_rung(len(rounds)):
            return True
        mine = score(rounds, self.spec.smoothing)
        if mine is None:
            return True
        rung = self._rungs[peers(cell, self._axes), len(rounds)]
        rung[cell.id] = mine
        places = len(rung) // self.spec.reduction
        if places == 0:
            return True
        cutoff = sorted(rung.values(), key=lambda s: -s.mean)[places - 1]
        return cutoff.mean - mine.mean <= self.spec.confidence * math.hypot(mine.error, cutoff.error)

    def _is_rung(self, number: int) -> bool:
        rung = self.spec.first_rung
        while rung < number:
            rung *= self.spec.reduction
        return rung == number

    def _flat(self, rounds: Sequence[Sequence[Record]]) -> bool:
        """No gain beyond the noise for `first_rung` · `reduction` rounds."""
        patience = self.spec.first_rung * self.spec.reduction
        if len(rounds) <= patience:
            return False
        before = [s for i in range(1, len(rounds) - patience + 1) if (s := score(rounds[:i], self.spec.smoothing))]
        since = [
            s
            for i in range(len(rounds) - patience + 1, len(rounds) + 1)
            if (s := score(rounds[:i], self.spec.smoothing))
        ]
        if not before or not since:
            return False
        old, new = max(before, key=lambda s: s.mean), max(since, key=lambda s: s.mean)
        return new.mean - old.mean <= self.spec.confidence * min(old.error, new.error)


def peers(cell: Cell, axes: Sequence[str] = ()) -> str:
    """Cells of the same key may be compared: same data, partition and schedule, and trials of one search.

    axes: names of the study's axes, in each cell of which a search has its own budget.
    """
    node = asdict(cell.run)
    inside = {name: cell.varied.get(name) for name in axes} if cell.role == "trial" else {}
    return json.dumps([inside, *(node[name] for name in ("clip", "data", "partition", "protocol"))], sort_keys=True)
