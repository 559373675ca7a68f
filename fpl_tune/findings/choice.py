"""The choice of the best cell, by the study's own objective. All choices of cells use this module.

A study with a search chooses by the search's objective, others by validation accuracy; test metrics never choose.
With several objectives there is no best cell but a front: the cells that no other equals or beats in all of them.

Cells compare if they share data, partition, protocol and clients, and so their test sets: a setting. Cells of different
settings are never ranked against each other: the best cell would be that of the easiest data set. Means are taken over
the seeds that all candidates have: no cell wins or drops out because the last command gave it other seeds.

In a study that searches, what is compared is each search's best point: confirmed on fresh seeds, once any is, else as
its trials are so far. One point of the space is never compared across searches that were made apart.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted, joined, listed
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES, comparable, metric
from fpl_tune.core.nested import flatten
from fpl_tune.core.pareto import layers
from fpl_tune.findings import limits
from fpl_tune.study.cells import SETTING, Cell, axes_of, is_setting
from fpl_tune.study.results import TEST, VAL, aggregate
from fpl_tune.study.standing import Row
from fpl_tune.study.table import StudyTable

if TYPE_CHECKING:
    from fpl_tune.config import StudySpec
    from fpl_tune.study.schema import StudyFile

TUNABLE = frozenset({
    "data.views",
    *(f"protocol.{name}" for name in ("rounds", "epochs", "participation", "sampling", "first_round_all")),
})  # fmt: skip
"""Fields of a setting that say how clients train. A search may tune them: clients, images and test sets stay equal."""
POINTS = 8
"""Points of a front that a search confirms on fresh seeds, and that a message names."""
BY_VALIDATION = "highest mean validation accuracy"
"""`Choice.by` if the study has no objective of its own, and all candidates have the same seeds."""


@dataclass(frozen=True)
class Choice:
    """The choice among cells by the study's objectives."""

    cells: tuple[Cell, ...]
    """The best cell, or one per setting in the study's order. With several objectives, the front, sorted by the first
    objective."""
    objectives: tuple[str, ...]
    """Metrics that choose."""
    values: tuple[tuple[float, ...], ...]
    """Means of the objectives for each of the cells."""
    by: str
    """The rule, as a phrase for messages."""
    seeds: tuple[int, ...]
    """Seeds that all candidates have, over which the objectives were compared."""
    test: float
    """Mean test accuracy of the chosen cells over their own seeds, and over settings; NaN for a front."""
    test_std: float
    """Standard deviation over seeds; with several settings, of the seeds' means."""
    tested: tuple[int, ...]
    """Seeds of the chosen cells over which the test accuracy is averaged."""

    @property
    def front(self) -> bool:
        """True if the cells are a front, of which none is the best."""
        return len(self.objectives) > 1

    @property
    def cell(self) -> Cell:
        """The chosen cell of the first setting."""
        return self.cells[0]

    @property
    def label(self) -> str:
        """The chosen cells' labels."""
        return "; ".join(cell.label for cell in self.cells)

    @property
    def value(self) -> float:
        """Mean of the first objective, also over settings."""
        return math.fsum(value for value, *_ in self.values) / len(self.values)


def objectives_of(spec: StudySpec | StudyFile) -> list[str]:
    """Metrics by which a study chooses: its search's objectives, else validation accuracy."""
    return list(spec.search.objectives) if spec.search.sampler is not None else [VAL]


def most_points(objectives: Sequence[str]) -> int:
    """The maximum number of points that a search chooses and confirms: the best one, or points of a front."""
    return 1 if len(objectives) == 1 else POINTS


def sign(name: str) -> int:
    """1 if higher values of a metric are better, -1 if lower ones are, 0 if it has no direction."""
    return {True: 1, False: -1, None: 0}[metric(name).maximize]


def setting_of(cell: Cell, axes: Collection[str] = ()) -> str:
    """A cell's setting (data, partition, protocol, clients) as JSON; cells of the same setting compare."""
    return _parts(cell, axes)[0]


def _parts(cell: Cell, axes: Collection[str], *, shared: bool = False) -> tuple[str, str]:
    """A cell's setting, and the rest of its configuration with the fields of the setting that a search tuned.

    The points of a search in one setting are one configuration; if settings share their trials, each is one.
    """
    node = dict(cell.node)
    setting = {name: dict(node.pop(name)) for name in SETTING}
    if not cell.searched:
        return json.dumps(setting, sort_keys=True), json.dumps(node, sort_keys=True)
    for name in TUNABLE & cell.varied.keys() - set(axes):
        group, _, field = name.partition(".")
        setting[group].pop(field, None)
    what = {name: cell.varied[name] for name in axes if not is_setting({name: cell.varied[name]})}
    what |= cell.suggestion.params if shared and cell.suggestion is not None else {}
    return json.dumps(setting, sort_keys=True), json.dumps(what, sort_keys=True)


def selecting_rule(rule: str) -> str:
    """Returns a reporting rule if it reads only validation metrics, else `final`."""
    return rule if rule in CHOICES else "final"


def choose(rows: Iterable[Row], rule: str, study: StudySpec | StudyFile, *, limited: bool = True) -> Choice | None:
    """Chooses by the means of the study's objectives on the seeds that all candidates have.

    With one objective and one setting: the cell with the best mean. With several settings: the configuration with the
    best mean over settings, among those that have a cell in each; in a study that searches, that of the axes, at the
    best point of each of its searches. If there is no such configuration, because settings are not finished: the best
    cell of each setting. Trials that settings share (`search.across`) are configurations like those of a grid, and
    nothing is chosen before one has completed in all of them. Ties are broken by the smaller values of the cell's
    fields, since numbers of cells depend on the axes that a command names.

    With several objectives, the front in the same sense: the cells that no other equals or beats in all of them.

    Args:
        rows: candidates. References, cells that are not compared (see `Row.compared`), and trials outside the present
            `search.space` are left out, as are trials once a search is confirmed.
        rule: the reporting rule. One that reads test metrics is replaced by `final`.
        study: the study as it is now. Fields that vary besides its axes are tuned, and not part of a setting.
        limited: False to choose outside of `search.limits` too, as among published points.

    Returns:
        None if there are no candidates within the limits, if no two of several share a setting, or if an objective has
        no direction because the method that adds it is not installed.
    """
    names, axes, rule = objectives_of(study), axes_of(study.axes), selecting_rule(rule)
    signs = [sign(name) for name in names]
    tried = [row for row in rows if row.cell.candidate and row.compared]
    tried = [row for row in tried if row.cell.role == "tuned"] or tried
    inside = [row for row in tried if row.cell.inside]
    candidates = {row.cell.id: row for row in inside if not limited or row.within(rule)}
    shares = study.search.across is not None and any(row.cell.role == "trial" for row in candidates.values())
    by_cell: dict[str, dict[int, list[float]]] = {}
    for key, row in candidates.items():
        figures = [row.values(name, rule) for name in names]
        if seeds := set[int].intersection(*({*own} for own in figures)):
            by_cell[key] = {seed: [own[seed] for own in figures] for seed in sorted(seeds)}
    seeds = common_seeds(by_cell)
    points: dict[tuple[str, str], dict[str, tuple[tuple[float, ...], Cell]]] = defaultdict(dict)
    for key, row in candidates.items():
        if key in by_cell and by_cell[key].keys() >= set(seeds):
            means = _means([by_cell[key][seed] for seed in seeds])
            points[_parts(row.cell, axes, shared=shares)][key] = means, row.cell
    if not points or 0 in signs:
        return None
    groups: dict[str, dict[str, tuple[tuple[float, ...], Cell]]] = defaultdict(dict)
    for (setting, configuration), own in points.items():
        best_of_search = _leaders([own], [*own], signs)
        for key in best_of_search:
            groups[setting][f"{configuration} {key}" if len(names) > 1 else configuration] = own[key]
    grid = not any(row.cell.searched for row in candidates.values())
    if grid and len(groups) > 1 and all(len(group) == 1 for group in groups.values()):
        return None
    first, *others = groups.values()
    shared = [name for name in first if all(name in other for other in others)]
    if shares and not shared:
        return None
    best = [
        group[configuration]
        for compared in ([[*groups.values()]] if shared else [[group] for group in groups.values()])
        for configuration in _leaders(compared, shared or list(compared[0]), signs)
        for group in compared
    ]
    if len(names) > 1:
        number = sum(map(len, points.values()))
        what = "confirmed point" if any(row.cell.role == "tuned" for row in tried) else "trial"
        by = f"{len(best)} of {counted(number, what)} {'is' if len(best) == 1 else 'are'} on the front of "
        by += joined(names)
    else:
        by = BY_VALIDATION if names == [VAL] else f"{'highest' if signs[0] > 0 else 'lowest'} mean {names[0]}"
    if others:
        where = f"{counted(len(groups), 'setting')} (data, partition, protocol, clients)"
        by += f" {'over' if shared else 'in each of'} {where}"
    if any(own.keys() != set(seeds) for own in by_cell.values()):
        by += f", compared on {listed('seed', seeds)}, which all cells have"
    if outside := len(tried) - len(inside):
        by += f", without {counted(outside, 'trial')} outside search.space"
    if limited and study.search.limits:
        by += f", within {limits.in_words(study)}"
    tested = [candidates[cell.id].values(TEST, rule) for _, cell in best] if len(names) == 1 else [{}]
    both = sorted(set[int].intersection(*({*by_seed} for by_seed in tested)))
    tests = {seed: math.fsum(by_seed[seed] for by_seed in tested) / len(tested) for seed in both}
    test = aggregate([*tests.values()])
    values, chosen = zip(*best, strict=True)
    return Choice(chosen, tuple(names), values, by, tuple(seeds), test["mean"], test["std"], tuple(sorted(tests)))


def _means(points: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(math.fsum(values) / len(values) for values in zip(*points, strict=True))


def _leaders(
    groups: Sequence[Mapping[str, tuple[Sequence[float], Cell]]], names: Sequence[str], signs: Sequence[int]
) -> list[str]:
    """The best configuration by its means over settings; with several objectives, those that no other equals or beats.

    Args:
        groups: for each setting, configuration -> means of the objectives, cell.
        names: configurations that all settings have.
        signs: directions of the objectives; see `sign`.
    """
    points = {
        name: [s * comparable(v) for s, v in zip(signs, _means([group[name][0] for group in groups]), strict=True)]
        for name in names
    }
    ordered = sorted(names, key=lambda name: points[name], reverse=True)
    front = [ordered[place] for place in layers([points[name] for name in ordered])[0]]
    return front if len(signs) > 1 else [min(front, key=lambda name: _values(groups[0][name][1]))]


def _values(cell: Cell) -> list[tuple[str, bool, float, str]]:
    """A cell's fields in a form that sorts: by name, numbers by size and before other values."""
    fields = sorted(flatten(cell.node).items())
    return [(n, False, float(v), "") if isinstance(v, int | float) else (n, True, 0.0, json.dumps(v))
            for n, v in fields]  # fmt: skip


def common_seeds(seeds: Mapping[str, Collection[int]]) -> list[int]:
    """The seeds that all cells have; if there are none, those that all cells with the most common seed have.

    Args:
        seeds: cell id -> its seeds.
    """
    having = Counter(seed for own in seeds.values() for seed in own)
    if not having:
        return []
    most = max(having, key=lambda seed: (having[seed], -seed))
    return sorted(set[int].intersection(*(set(own) for own in seeds.values() if most in own)))


def choose_finished(table: StudyTable, rule: str | None = None) -> Choice:
    """Chooses among a study's finished cells: the best, or the front of several objectives.

    Args:
        table: the study.
        rule: the reporting rule that chooses each seed's round by validation accuracy; None: the study's own if it
            reads only validation metrics, else `final`.

    Raises:
        ConfigError: the rule reads test metrics, no finished cell is within `search.space`, or no two cells compare.
    """
    study = table.study
    rule = rule or selecting_rule(study.report.rule)
    if rule not in CHOICES:
        raise ConfigError(
            f"The rule that chooses must be {' or '.join(CHOICES)}, but is {rule!r}"
            f"{', which reads test metrics' if rule in TEST_SELECTED_RULES else ''}."
        )
    choice = choose(table.rows.values(), rule, study)
    if choice is not None:
        return choice
    finished = [row.cell for row in table.rows.values() if row.cell.candidate and row.compared]
    if not finished:
        raise ConfigError(f"{study.name} has no finished cell yet. Run `fpl-tune study {study.name}`.")
    if not any(cell.inside for cell in finished):
        raise ConfigError(
            f"Only trials within search.space can be chosen, but all {len(finished)} of {study.name} are outside. "
            f"Run `fpl-tune study {study.name}`, or widen search.space."
        )
    if text := limits.nothing(table.rows.values(), rule, study):
        raise ConfigError(f"{text} Widen search.limits, or raise search.trials.")
    if unknown := [name for name in objectives_of(study) if not sign(name)]:
        raise ConfigError(
            f"The direction of {unknown[0]} is given by the method that adds it, which is not installed here. "
            f"Install it, or compare all cells: fpl-tune show {study.name}."
        )
    raise ConfigError(
        "Validation chooses among cells of the same data, partition, protocol and clients, but no two finished cells "
        f"of {study.name} share them. Compare all of them: fpl-tune show {study.name}."
    )


def best(table: StudyTable, rule: str | None = None) -> Choice:
    """The best of a study's finished cells; see `chosen`.

    Raises:
        ConfigError: there is none, or the study has several objectives and therefore a front instead of a best cell.
    """
    choice = choose_finished(table, rule)
    if choice.front:
        raise ConfigError(front_of(choice, "Choose one of them by its id, such as --cell"))
    return choice


def front_of(choice: Choice, remedy: str) -> str:
    """The error message if one best cell is needed but there is a front: its first cells, the remedy and an id."""
    named = [f"{cell.id} ({cell.label})" for cell in choice.cells[:POINTS]]
    more = f" and {len(choice.cells) - POINTS} more" if len(choice.cells) > POINTS else ""
    return f"{choice.by}: no cell is best. On the front: {', '.join(named)}{more}. {remedy} {choice.cell.id}."
