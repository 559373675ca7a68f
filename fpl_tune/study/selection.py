"""The choice of the best cell, by validation accuracy alone. All choices of cells use this module.

Validation accuracies compare where cells share data, partition and protocol, and so their test sets: a setting.
Cells of different settings are never ranked against each other: the best cell would be that of
the easiest data set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpl_tune import config
from fpl_tune.config import StudySpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.core.metrics import CHOICES, TEST_SELECTED_RULES
from fpl_tune.study import results
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import TEST, VAL, aggregate
from fpl_tune.study.status import Status
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    import pandas as pd

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

    @property
    def cell(self) -> Cell:
        """The chosen cell of the first setting."""
        return self.cells[0]

    @property
    def label(self) -> str:
        """The chosen cells' labels."""
        return "; ".join(cell.label for cell in self.cells)


@dataclass(frozen=True)
class Best(Choice):
    """A choice with its test accuracy."""

    rule: str
    test: float
    """Mean over seeds, and over settings."""
    test_std: float
    """Standard deviation over seeds; over several settings, of the seeds' means."""
    seeds: int


class Candidates:
    """Finished cells to choose from; references are left out.

    Args:
        axes: names of the study's axes. What varies besides is tuned, and so not part of a setting.
    """

    def __init__(self, axes: Collection[str] = ()) -> None:
        self._axes = frozenset(axes)
        self._settings: dict[str, dict[str, tuple[float, Cell]]] = {}

    def add(self, cell: Cell, val: float) -> None:
        """Adds a cell with its mean validation accuracy over seeds, a share; NaN adds nothing."""
        if cell.candidate and not math.isnan(val):
            setting, configuration = _parts(cell, self._axes)
            self._settings.setdefault(setting, {})[configuration] = val, cell

    def choice(self) -> Choice | None:
        """Chooses by mean validation accuracy, the first of equals.

        In one setting, the cell with the highest mean. In several, the configuration with the highest mean over
        settings, among those that have a cell in each. If there is no such configuration, because each setting was
        searched alone or is not finished, the best cell of each setting.

        Returns:
            None without cells, or if there are several and no two share a setting.
        """
        groups = list(self._settings.values())
        if not groups or (len(groups) > 1 and all(len(group) == 1 for group in groups)):
            return None
        shared = [name for name in groups[0] if all(name in group for group in groups)]
        if shared:
            means = {name: math.fsum(group[name][0] for group in groups) / len(groups) for name in shared}
            chosen = max(shared, key=lambda name: means[name])
            pairs = [group[chosen] for group in groups]
        else:
            pairs = [max(group.values(), key=lambda pair: pair[0]) for group in groups]
        by = "highest mean validation accuracy"
        if len(groups) > 1:
            where = f"{counted(len(groups), 'setting')} (data, partition, protocol)"
            by += f" over {where}" if shared else f" in each of {where}"
        mean = math.fsum(val for val, _ in pairs) / len(pairs)
        return Choice(tuple(cell for _, cell in pairs), mean, by)


def select(cells: Sequence[Cell], val: Mapping[str, float], axes: Collection[str] = ()) -> Choice | None:
    """Chooses among cells; see `Candidates`.

    Args:
        cells: the cells, finished or not.
        val: cell id -> mean validation accuracy over seeds, of finished cells.
        axes: names of the study's axes.
    """
    candidates = Candidates(axes)
    for cell in cells:
        candidates.add(cell, val.get(cell.id, math.nan))
    return candidates.choice()


def setting_of(cell: Cell, axes: Collection[str] = ()) -> str:
    """A cell's setting (data, partition, protocol) as JSON; cells of the same setting compare. See `Candidates`."""
    return _parts(cell, axes)[0]


def _parts(cell: Cell, axes: Collection[str]) -> tuple[str, str]:
    """A cell's setting, and the rest of its configuration with what a search tuned."""
    node = config.as_dict(cell.run)
    setting = {name: node.pop(name) for name in _SETTING}
    for name in cell.varied if cell.role == "trial" else ():
        group, _, field = name.partition(".")
        if group in _SETTING and name not in axes and field in setting[group]:
            node[name] = setting[group].pop(field)
    return json.dumps(setting, sort_keys=True), json.dumps(node, sort_keys=True)


def selecting_rule(rule: str) -> str:
    """A reporting rule if it reads validation figures alone, else `final`."""
    return rule if rule in CHOICES else "final"


def choose(table: pd.DataFrame, cells: Sequence[Cell], spec: StudySpec, rule: str = "final") -> Choice | None:
    """Chooses among a study's finished cells from its result table; see `select`.

    Args:
        table: the result table, `results.frame`.
        cells: candidates.
        spec: the study: its axes, and its number of seeds.
        rule: the reporting rule. One that reads test metrics is replaced by `final`.
    """
    rule, how, axes = selecting_rule(rule), spec.report.select, list(axes_of(spec.axes))
    rows = results.summary(table, cells, spec.seed_list(), rule).set_index("cell")
    val: dict[str, float] = rows.loc[rows["status"] == Status.DONE.value, VAL].astype(float).to_dict()
    if how == "mean":
        return select(cells, val, axes)
    finished = [cell for cell in cells if cell.id in val and cell.candidate]
    found = select(finished, _scores(results.values(table, rule), finished, axes, how), axes)
    if found is None:
        return None
    mean = math.fsum(val[cell.id] for cell in found.cells) / len(found.cells)
    return replace(found, val=mean, by=found.by.replace("mean validation accuracy", _BY[how]))


_BY = {"lower_bound": "lower bound of the validation accuracy"}


def _scores(values: pd.DataFrame, cells: Sequence[Cell], axes: Collection[str], rule: str) -> dict[str, float]:
    """The scores by which a rule of selection other than the mean ranks cells: cell id -> score."""
    from fpl_tune import analysis
    from fpl_tune.analysis.selection import ranking

    settings: dict[str, list[str]] = {}
    for cell in cells:
        settings.setdefault(setting_of(cell, axes), []).append(cell.id)
    alike = (analysis.scores(values.loc[values["cell"].isin(ids)]) for ids in settings.values())
    return {str(key): float(score) for found in alike for key, score in ranking(found, rule).items()}


def best(store: Store, rule: str = "final") -> Best:
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
    table = store.frame()
    choice = choose(table, store.cells(), store.spec(), rule)
    if choice is None:
        own = table[table["role"].isin(["cell", "trial"]) & (table["status"] == Status.DONE.value)]
        if own.empty:
            raise ConfigError(f"{store.name} has no finished cell yet. Run `fpl-tune study {store.name}`.")
        raise ConfigError(
            "Validation chooses among cells of the same data, partition and protocol, but no two finished cells of "
            f"{store.name} share them. Compare all of them: fpl-tune show {store.name}."
        )
    chosen = table[(table["rule"] == rule) & table["cell"].isin([cell.id for cell in choice.cells])]
    by_seed = chosen.groupby("seed")[TEST]
    means = by_seed.mean()[by_seed.count() == len(choice.cells)]
    test = aggregate([float(mean) for mean in means])
    return Best(choice.cells, choice.val, choice.by, rule, test["mean"], test["std"], int(test["n"]))
