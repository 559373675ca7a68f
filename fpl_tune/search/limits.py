"""Limits of a search by costs that are known before a run: points outside of them are not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import RandomSampler

from fpl_tune.config import RunSpec, SearchSpec
from fpl_tune.core.errors import ConfigError, FplTuneError
from fpl_tune.core.formatting import counted, joined, percent, with_unit, words
from fpl_tune.core.metrics import check_chosen_by, excess, known_before, metric
from fpl_tune.simulation.costs import known_costs
from fpl_tune.simulation.dummy import cost_key

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch

_DRAWN, _MEASURED = 1000, 60
"""Points of a space that are drawn to find out what it can cost, and those of different sizes that are measured."""


class OutsideLimits(ConfigError):
    """A point whose costs are known to be outside of `search.limits`."""


def check_names(search: SearchSpec) -> None:
    """Checks the metrics of `search.limits`.

    Raises:
        ConfigError: one is a test metric, unknown, or without a direction; or an accuracy is limited to more than 1.
    """
    for name, limit in search.limits.items():
        check_chosen_by(name, "search.limits")
        if percent(name) and not 0 <= limit <= 1:
            raise ConfigError(
                f"search.limits: {name} is a share between 0 and 1, but its limit is {limit:g}. Write {limit / 100:g}."
            )


def rejection(limits: Mapping[str, float]) -> Callable[[RunSpec], None]:
    """Returns a function that raises `OutsideLimits` for a run whose costs are known to be outside of the limits."""
    known = {name: limit for name, limit in limits.items() if known_before(name)}

    def check(run: RunSpec) -> None:
        costs = _costs_of(run) if known else {}
        over = {name: costs[name] for name, limit in known.items() if excess(name, costs.get(name, limit), limit) > 0}
        if over:
            has = joined([f"{words(name)} {with_unit(value, name)}" for name, value in over.items()])
            raise OutsideLimits(f"It has {has}, outside of search.limits.")

    return check


def check_space(searches: Sequence[CellSearch]) -> None:
    """Checks the known costs of the points of each space, of which a sample is drawn.

    Raises:
        ConfigError: no point of a search is within the limits, or an objective is the same everywhere in all searches.
    """
    search = searches[0].search
    known = [name for name in search.limits if known_before(name)]
    constant = [name for name in search.objectives if known_before(name) and len(search.objectives) > 1]
    for part in searches if known else ():
        tried = list[dict[str, float]]()
        for costs in _costs(part):
            if not costs or all(excess(name, costs[name], search.limits[name]) <= 0 for name in known):
                break
            tried.append(costs)
        else:
            raise ConfigError(_none_within(part, known, tried))
    for name in constant:
        if not any(_varies(costs.get(name) for costs in _costs(part)) for part in searches):
            raise ConfigError(
                f"search.objectives: {words(name)} ({name}) is the same at all points of the space. Remove it, or "
                "search a field that it depends on."
            )


def _varies(values: Iterable[float | None]) -> bool:
    first = next(values := iter(values), None)
    return any(value != first for value in values)


def _costs(part: CellSearch) -> Iterator[dict[str, float]]:
    """Known costs of points of a space, each size once; see `_runs`."""
    seen = set[tuple[str, int]]()

    def fresh() -> Iterator[dict[str, float]]:
        for run in _runs(part):
            key = cost_key(run), run.rounds
            if key not in seen:
                seen.add(key)
                yield _costs_of(run)

    return islice(fresh(), _MEASURED)


def _costs_of(run: RunSpec) -> dict[str, float]:
    """What is known of a run; nothing of a method that fails, whose trial reports that with its place."""
    try:
        return known_costs(run)
    except FplTuneError:
        raise
    except Exception:
        return {}


def _runs(part: CellSearch) -> Iterator[RunSpec]:
    """Runs of the published points, of both ends of all ranges, and of random points, as far as they can run."""
    space, node, given = part.space, part.node, part.varied
    ends = (space.fill(node, given, choose) for choose in (lambda p: p.ends[0], lambda p: p.ends[-1]))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    random = (space.suggest(study.ask(), node, given) for _ in range(_DRAWN))
    for point in chain(part.points, ends, random):
        with suppress(ConfigError):
            yield part.at(point)


def _none_within(part: CellSearch, known: Sequence[str], tried: Sequence[Mapping[str, float]]) -> str:
    limits = part.search.limits
    best = {name: (max if metric(name).maximize else min)(costs[name] for costs in tried) for name in known}
    over = [f"{words(name)} {with_unit(value, name)}, limited to {with_unit(limits[name], name)}"
            for name, value in best.items() if excess(name, value, limits[name]) > 0]  # fmt: skip
    reach = joined(over) if over else "within each of them, but not within all"
    return (
        f"search.limits: no point of {part.name} is within the limits; the best of {counted(len(tried), 'size')} "
        f"is {reach}. Widen search.limits, or widen search.space."
    )
