"""The choice of the best cell, by validation accuracy alone. All choices of cells use this module.

Validation accuracies compare where cells share data, partition and protocol, and so their test sets: a setting.
Cells of different settings are never ranked against each other: the best cell would be that of
the easiest data set. Means are taken over the seeds that all candidates have, so that no cell wins or drops out because
the last command gave it other seeds.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted, listed
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES
from fpl_tune.study.records import Cell, axes_of
from fpl_tune.study.results import TEST, VAL, Row, aggregate
from fpl_tune.study.status import Status

if TYPE_CHECKING:
    from fpl_tune.config import StudySpec
    from fpl_tune.study.schema import StudyFile
    from fpl_tune.study.store import Store

_SETTING = ("data", "partition", "protocol")


@dataclass(frozen=True)
class Choice:
    """The choice among cells by validation."""

    cells: tuple[Cell, ...]
    """One cell per setting, in the study's order; one cell where all cells share their setting."""
    val: float
    """Mean validation accuracy, over settings too."""
    by: str
    """The rule, as a phrase for messages."""
    seeds: tuple[int, ...]
    """Seeds that all candidates have, over which validation was compared."""
    uneven: bool
    """Whether some candidate has more seeds than those."""
    test: float
    """Mean test accuracy of the chosen cells over their own seeds, and over settings."""
    test_std: float
    """Standard deviation over seeds; over several settings, of the seeds' means."""
    tested: int
    """Seeds of the chosen cells, over which the test accuracy is the mean."""

    @property
    def cell(self) -> Cell:
        """The chosen cell of the first setting."""
        return self.cells[0]

    @property
    def label(self) -> str:
        """The chosen cells' labels."""
        return "; ".join(cell.label for cell in self.cells)


def setting_of(cell: Cell, axes: Collection[str] = ()) -> str:
    """A cell's setting (data, partition, protocol) as JSON; cells of the same setting compare."""
    return _parts(cell, axes)[0]


def _parts(cell: Cell, axes: Collection[str]) -> tuple[str, str]:
    """A cell's setting, and the rest of its configuration with what a search tuned."""
    node = dict(cell.node)
    setting = {name: dict(node.pop(name)) for name in _SETTING}
    for name in cell.varied if cell.role == "trial" else ():
        group, _, field = name.partition(".")
        if group in _SETTING and name not in axes and field in setting[group]:
            node[name] = setting[group].pop(field)
    return json.dumps(setting, sort_keys=True), json.dumps(node, sort_keys=True)


def selecting_rule(rule: str) -> str:
    """A reporting rule if it reads validation figures alone, else `final`."""
    return rule if rule in CHOICES else "final"


def choose(
    table: Sequence[Row], cells: Sequence[Cell], spec: StudySpec | StudyFile, rule: str = "final"
) -> Choice | None:
    """Chooses by mean validation accuracy, the first of equals, on the seeds that all candidates have.

    In one setting, the cell with the highest mean. In several, the configuration with the highest mean over settings,
    among those that have a cell in each. If there is no such configuration, because each setting was searched alone or
    is not finished, the best cell of each setting.

    Args:
        table: the result table; see `Store.rows`.
        cells: candidates. References, cells without a finished seed, and those with a seed that failed or was stopped
            are left out.
        spec: the study. What varies besides its axes is tuned, and so not part of a setting.
        rule: the reporting rule. One that reads test metrics is replaced by `final`.

    Returns:
        None without candidates, or if there are several and no two share a setting.
    """
    rule = selecting_rule(rule)
    stopped = {row["cell"] for row in table if row["status"] != Status.DONE}
    candidates = {cell.id: cell for cell in cells if cell.candidate and cell.id not in stopped}
    val: dict[str, dict[int, float]] = defaultdict(dict)
    for row in table:
        if row["rule"] == rule and row["cell"] in candidates and row[VAL] is not None and not math.isnan(row[VAL]):
            val[row["cell"]][int(row["seed"])] = row[VAL]
    seeds = common_seeds(val)
    axes = axes_of(spec.axes)
    groups: dict[str, dict[str, tuple[float, Cell]]] = defaultdict(dict)
    for key, cell in candidates.items():
        if key in val and val[key].keys() >= set(seeds):
            setting, configuration = _parts(cell, axes)
            groups[setting][configuration] = math.fsum(val[key][seed] for seed in seeds) / len(seeds), cell
    if not groups or (len(groups) > 1 and all(len(group) == 1 for group in groups.values())):
        return None
    first, *others = groups.values()
    by, where = "highest mean validation accuracy", f"{counted(len(groups), 'setting')} (data, partition, protocol)"
    if shared := [name for name in first if all(name in other for other in others)]:
        chosen = max(shared, key=lambda name: math.fsum(group[name][0] for group in groups.values()))
        best = [group[chosen] for group in groups.values()]
        by += f" over {where}" if others else ""
    else:
        best = [max(group.values(), key=lambda pair: pair[0]) for group in groups.values()]
        by += f" in each of {where}"
    if uneven := any(own.keys() != set(seeds) for own in val.values()):
        by += f", compared on {listed('seed', seeds)}, which all cells have"
    ids, by_seed = {cell.id for _, cell in best}, defaultdict[int, list[float]](list)
    for row in table:
        if row["rule"] == rule and row["cell"] in ids:
            by_seed[row["seed"]].append(row[TEST])
    test = aggregate([math.fsum(found) / len(found) for found in by_seed.values() if len(found) == len(best)])
    mean = math.fsum(value for value, _ in best) / len(best)
    return Choice(
        tuple(cell for _, cell in best), mean, by, tuple(seeds), uneven, test["mean"], test["std"], int(test["n"])
    )


def common_seeds(seeds: Mapping[str, Collection[int]]) -> list[int]:
    """The seeds that all cells have; where there is none, that cells have which share the most widespread seed.

    Args:
        seeds: cell id -> its seeds.
    """
    having = Counter(seed for own in seeds.values() for seed in own)
    if not having:
        return []
    most = max(having, key=lambda seed: (having[seed], -seed))
    return sorted(set[int].intersection(*(set(own) for own in seeds.values() if most in own)))


def best(store: Store, rule: str = "final") -> Choice:
    """Chooses the best of a study's finished cells.

    Args:
        store: the study's store.
        rule: the reporting rule that chooses each seed's round, from validation accuracies.

    Raises:
        ConfigError: the rule reads test metrics, no cell is finished, or no two cells compare.
    """
    if rule not in CHOICES:
        raise ConfigError(
            f"The rule that chooses must be {' or '.join(CHOICES)}, but is {rule!r}"
            f"{', which reads test metrics' if rule in TEST_SELECTED_RULES else ''}."
        )
    table = store.rows()
    choice = choose(table, store.cells(), store.study(), rule)
    if choice is None:
        if not any(row["role"] in ("cell", "trial") and row["status"] == Status.DONE for row in table):
            raise ConfigError(f"{store.name} has no finished cell yet. Run `fpl-tune study {store.name}`.")
        raise ConfigError(
            "Validation chooses among cells of the same data, partition and protocol, but no two finished cells of "
            f"{store.name} share them. Compare all of them: fpl-tune show {store.name}."
        )
    return choice
