"""The oracle: what must be said of a study, computed plainly from its raw files, without a line of the package.

It reads study.yaml, cells.json, cells/<id>/cell.json and cells/<id>/seed=<n>/{result.json,metrics.jsonl}, nothing else,
and knows nothing of runs, kills or edits: whatever happened, these files and today's study file decide.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

VAL, TEST = "val/acc_mean", "test/acc_mean"
LESS_IS_BETTER = (
    "loss",
    "ece",
    "acc_std",
    "up_bytes",
    "down_bytes",
    "total_bytes",
    "seconds",
    "test_seconds",
    "train_seconds",
)
"""Last parts of the names of metrics that are better the lower they are."""
FIXED = ("up_bytes", "down_bytes", "total_bytes", "seconds", "test_seconds", "train_seconds", "clients", "learned")
"""Last parts of the names of metrics that do not vary by chance: they have no deviation, and nothing is tested."""
TOTALS = ("comm/up_bytes", "comm/down_bytes", "time/seconds", "cost/learned")
"""Metrics that are read from the last record, whatever the rule."""
SETTING = ("data", "partition", "protocol", "clients")
"""Groups of fields that say where a cell ran."""
TUNABLE = (
    "data.views",
    *(f"protocol.{n}" for n in ("rounds", "epochs", "participation", "sampling", "first_round_all")),
)
"""Fields of a setting that a search may tune without making another setting of it."""


@dataclass
class Cell:
    """A cell with its seeds."""

    id: str
    number: int
    label: str
    role: str
    reference: str
    step: bool
    """Whether it is a step of an ablation, too."""
    search: str
    """The label of its search, as in `effective.spaces`; empty for what is not searched."""
    first: str
    inside: bool
    varied: dict[str, Any]
    run: dict[str, Any]
    suggestion: dict[str, Any] | None
    results: dict[int, dict[str, Any]]
    """result.json by seed, of the seeds that the study asks for, without those of which a file is damaged."""
    histories: dict[int, list[dict[str, Any]]]
    """Records by seed."""
    wanted: list[int]
    """Seeds that the cell is to have."""

    @property
    def searched(self) -> bool:
        """Whether it is a point of a search."""
        return self.role in ("trial", "tuned", "published")

    def having(self, *statuses: str) -> list[int]:
        """Seeds whose result has one of these statuses."""
        return [seed for seed, result in self.results.items() if result["status"] in statuses]

    @cached_property
    def state(self) -> str:
        """Done, failed, diverged, pruned, or queued.

        One failure ends a trial of a search. One that misses seeds in a study that is at its end was pruned, while a
        cell of a grid is to run them.
        """
        found = [self.results[seed]["status"] for seed in self.wanted if seed in self.results]
        missing = len(found) < len(self.wanted)
        for bad in ("failed", "diverged"):
            if bad in found and (self.role == "trial" or not missing):
                return bad
        if "partial" in found or (missing and self.role == "trial"):
            return "pruned"
        return "queued" if missing else "done"

    @property
    def compared(self) -> bool:
        """Whether it is compared with others: it has results, and all of them are of seeds that ran to the end."""
        return bool(self.results) and self.state != "pruned" and len(self.having("done")) == len(self.results)

    @cached_property
    def counting(self) -> list[int]:
        """Seeds over which means are taken: all that ran to the end.

        A cell without any, such as one that was pruned, is described by what it has if that ran equally long.
        """
        if self.state != "pruned" and (done := self.having("done")):
            return done
        rest = [] if self.state in ("failed", "diverged") else self.having("done", "partial")
        rest = [seed for seed in rest if seed in self.wanted]
        return rest if len({self.results[seed]["rounds"] for seed in rest}) == 1 else []


@dataclass
class Facts:
    """A study as its files have it."""

    study: dict[str, Any]
    cells: list[Cell]
    """In the study's order."""
    looks: list[int]
    """Numbers of seeds after which comparisons are looked at; empty where the seeds are fixed."""
    less: tuple[str, ...] = ()
    """Metrics of methods that are better the lower they are, as their files say."""

    def direction(self, metric: str) -> int:
        """1 where more of a metric is better, -1 where less is."""
        less = metric in self.less or metric.startswith("cost/") or metric.rpartition("/")[2] in LESS_IS_BETTER
        return -1 if less else 1

    @property
    def confirmed(self) -> list[Cell]:
        """What is compared in a search once any of its choices is confirmed; empty before."""
        points = [cell for cell in self.cells if cell.role in ("tuned", "published")]
        if not any(cell.role == "tuned" and cell.compared for cell in points):
            return []
        return [*points, *(c for c in self.cells if c.role == "reference" or (c.reference and c not in points))]

    def cell(self, key: str) -> Cell:
        """The cell of an id."""
        return next(cell for cell in self.cells if cell.id == key)

    @property
    def searches(self) -> list[list[Cell]]:
        """The trials of each search; if settings share their trials, of each search in all of them."""
        shared = self.study["search"].get("across") is not None
        axes = [name for name in dict(leaves(self.study["axes"])) if name.partition(".")[0] not in SETTING]
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            if cell.role == "trial":
                part = json.dumps([cell.varied.get(name) for name in axes]) if shared else cell.search
                found.setdefault(part, []).append(cell)
        return [*found.values()]


@dataclass
class Expected:
    """What must be said of a study under a metric and a rule. Values are by the cell's id; NaN where there is none."""

    n: dict[str, int]
    mean: dict[str, float]
    std: dict[str, float]
    min: dict[str, float]
    max: dict[str, float]
    val: dict[str, float]
    """Mean validation accuracy."""
    bytes: dict[str, float]
    seconds: dict[str, float]
    values: dict[str, dict[int, float]]
    """The metric by seed, of the seeds that count."""
    state: dict[str, str]
    states: Counter[str]
    """Number of cells by state."""
    seeds: int
    """Seeds of the study that have a result."""
    best: list[str]
    """The chosen cell, or one for each setting, or the front of several objectives; empty where nothing is chosen."""
    best_value: float
    """Mean of the first objective of the chosen cells over the seeds that all candidates have."""
    ties: list[str]
    """Candidates of the chosen cell's setting whose objective equals its own."""
    front: bool
    """Whether there are several objectives."""


def load(folder: Path, less: Sequence[str] = ()) -> Facts:
    """Reads a study's folder. A damaged file costs its seed or cell. `less`: see `Facts.less`."""
    study = yaml.load((folder / "study.yaml").read_text(), yaml.CSafeLoader)
    looks, cells = study["looks"] if study["seeds"] == "until_decided" else [], list[Cell]()
    for place in places(folder):
        own = folder / "cells" / place["id"]
        if (node := read_json(own / "cell.json")) is None:
            continue
        asked = seeds_of(place, study)
        runs = {
            seed: found
            for seed in sorted(asked)
            if (found := _seed(own / f"seed={seed}")) is not None
            and _version(found[0].get("fingerprints")) in (None, _version(node.get("prints")))
        }
        results = {seed: result for seed, (result, _) in runs.items()}
        histories = {seed: history for seed, (_, history) in runs.items()}
        wanted = [seed for seed in asked if not looks or seed in results or seed <= looks[0]]
        facts = {**place, **{name: node[name] for name in ("varied", "run", "suggestion")}}
        cells.append(Cell(**facts, results=results, histories=histories, wanted=wanted))
    return Facts(study, cells, looks, tuple(less))


def places(folder: Path) -> list[dict[str, Any]]:
    """What cells.json says of each cell, in the study's order."""
    return (read_json(folder / "cells.json") or {"cells": []})["cells"]


def seeds_of(place: Mapping[str, Any], study: Mapping[str, Any]) -> list[int]:
    """The seeds that a cell may have: those that confirm a search, or the study's, up to its last look."""
    confirm = study.get("effective", {}).get("confirm", [])
    if confirm and place["role"] in ("tuned", "published", "reference"):
        return confirm
    seeds = study["looks"][-1] if study["seeds"] == "until_decided" else study["seeds"]
    return seeds if isinstance(seeds, list) else [*range(1, seeds + 1)]


def _version(prints: Mapping[str, Any] | None) -> list[Any] | None:
    """Of the method, data and weights. Results of others than those of the last start say nothing of the cell."""
    return [prints[name] for name in ("method", "data", "weights")] if prints else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file; None where it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _seed(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Result and history of a seed; None where one is missing or damaged."""
    result = read_json(folder / "result.json")
    try:
        content = (folder / "metrics.jsonl").read_bytes()
        history = [json.loads(line) for line in content.splitlines()]
    except (OSError, ValueError):
        return None
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return None if result is None or result["history"] != digest else (result, history)


def varies(metric: str) -> bool:
    """Whether seeds draw a metric."""
    return metric.rpartition("/")[2] not in FIXED


def chosen(history: Sequence[Mapping[str, Any]], rule: str) -> Sequence[Mapping[str, Any]]:
    """The records of one seed that a reporting rule reads; empty where there is no such rule."""
    tested = [record for record in history if TEST in record]
    if not tested or (rule == "best_val" and any(VAL not in record for record in tested)):
        return []  # without validation images there is no such rule
    if rule == "best_val":
        return [max(tested, key=lambda record: record[VAL])]  # of equal ones the first
    if rule == "best_test":
        return [max(tested, key=lambda record: record[TEST])]
    return tested[-5:] if rule == "mean_last5" else tested[-1:]


def value(history: Sequence[Mapping[str, Any]], metric: str, rule: str) -> float:
    """A metric of one seed under a reporting rule; NaN where its records do not hold it."""
    if not (records := chosen(history, rule)):
        return math.nan
    if metric == "comm/total_bytes":
        return float(history[-1]["comm/up_bytes"] + history[-1]["comm/down_bytes"])
    if metric in TOTALS:
        return float(history[-1].get(metric, math.nan))
    return float(np.mean([record.get(metric, math.nan) for record in records]))


def by_seed(cell: Cell, metric: str, rule: str) -> dict[int, float]:
    """A metric by seed, of the seeds that count and have it."""
    found = {seed: value(cell.histories[seed], metric, rule) for seed in cell.counting}
    return {seed: number for seed, number in found.items() if not math.isnan(number)}


def mean(numbers: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return float(np.mean(numbers)) if len(numbers) else math.nan


def difference(
    one: Cell, other: Cell, metric: str, rule: str, *, last: float = math.inf, level: float = 0.95
) -> tuple[float, float, int]:
    """Mean difference of two cells over paired seeds, half width of Student's interval, and number of pairs.

    A pair is a seed up to `last` that both have on the same split of the data. The product pools variances over cells
    and corrects for their number, and shows the widest of its intervals: so this one is a bound from below.
    """
    mine, theirs = by_seed(one, metric, rule), by_seed(other, metric, rule)
    gaps = [
        mine[seed] - theirs[seed]
        for seed in sorted(mine.keys() & theirs.keys())
        if seed <= last and one.results[seed]["split_hash"] == other.results[seed]["split_hash"]
    ]
    n = len(gaps)
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * np.std(gaps, ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return mean(gaps), half, n


def identical(one: Cell, other: Cell, metric: str, rule: str, *, last: float = math.inf) -> bool:
    """Whether two cells have the same values on every paired seed, of each client if records have them."""
    seeds = by_seed(one, metric, rule).keys() & by_seed(other, metric, rule).keys()
    seeds = {s for s in seeds if s <= last and one.results[s]["split_hash"] == other.results[s]["split_hash"]}

    def values(cell: Cell, seed: int) -> list[float]:
        records = chosen(cell.histories[seed], rule)
        if metric.endswith("/acc_mean") and all(f"clients/{metric.split('/')[-2]}" in each for each in records):
            return [*np.mean([each[f"clients/{metric.split('/')[-2]}"] for each in records], axis=0)]
        return [value(cell.histories[seed], metric, rule)]

    return len(seeds) > 1 and all(values(one, seed) == values(other, seed) for seed in seeds)


def expected(facts: Facts, metric: str = TEST, rule: str = "final") -> Expected:
    """Computes what must be said of a study under a metric and a rule."""
    cells = facts.cells
    values = {cell.id: by_seed(cell, metric, rule) for cell in cells}
    numbers = {key: [*found.values()] for key, found in values.items()}
    shown = {cell.id: [s for s in cell.counting if rule != "best_val" or by_seed(cell, VAL, rule)] for cell in cells}

    def over_seeds(name: str) -> dict[str, float]:
        return {c.id: mean([v for s in shown[c.id] if (v := value(c.histories[s], name, rule)) == v]) for c in cells}

    best, best_value, ties, several = choose(facts, rule)
    sent = over_seeds("comm/total_bytes")
    return Expected(
        n={key: len(found) for key, found in numbers.items()},
        mean={key: mean(found) for key, found in numbers.items()},
        std={
            key: float(np.std(v, ddof=1)) if len(v) > 1 and varies(metric) else math.nan for key, v in numbers.items()
        },
        min={key: min(found, default=math.nan) for key, found in numbers.items()},
        max={key: max(found, default=math.nan) for key, found in numbers.items()},
        val=over_seeds(VAL),
        bytes=sent,
        seconds=over_seeds("time/seconds"),
        values=values,
        state={cell.id: cell.state for cell in cells},
        states=Counter(cell.state for cell in cells),
        seeds=sum(len(cell.results) - len(cell.having("failed", "diverged")) for cell in cells),
        best=best,
        best_value=best_value,
        ties=ties,
        front=several,
    )


# -- the choice ----------------------------------------------------------------------------------------------


def choose(
    facts: Facts, rule: str = "final", only: Sequence[Cell] | None = None, *, limited: bool = True
) -> tuple[list[str], float, list[str], bool]:
    """The best cells, the mean of the first objective, cells that tie with the best, and whether there is a front.

    Candidates (`only`, or all) are cells and trials that are compared, trials inside of the present search space; or
    what confirms searches, once there is any. They are compared on the seeds that all have, within a setting (data,
    partition, protocol). Of each search its best point competes.
    """
    roles = ("tuned",) if only is None and facts.confirmed else ("cell", "trial")
    candidates = [cell for cell in only or facts.cells if cell.role in roles and cell.compared]
    search = facts.study["search"]
    objectives = search["objectives"] if search["sampler"] is not None else [VAL]
    rule = rule if rule in ("final", "best_val") else "final"
    points: dict[str, dict[int, list[float]]] = {}
    for cell in candidates:
        if inside(cell, facts.study) and (not limited or _within(cell, facts, rule)):
            found = {s: [value(cell.histories[s], name, rule) for name in objectives] for s in cell.having("done")}
            points[cell.id] = {seed: row for seed, row in found.items() if not any(map(math.isnan, row))}
    points = {key: found for key, found in points.items() if found}
    seeds = _common(points)
    settings: dict[str, dict[str, str]] = {}  # setting -> rest of the configuration -> cell
    means: dict[str, list[float]] = {}
    searched = any(facts.cell(key).searched for key in points)
    together = search.get("across") is not None and any(facts.cell(key).role == "trial" for key in points)
    best, ties = list[str](), list[str]()
    for key, found in points.items():
        if seeds <= found.keys():
            signs = [facts.direction(name) for name in objectives]
            means[key] = [sign * mean([found[s][i] for s in seeds]) for i, sign in enumerate(signs)]
            setting, rest = _setting(facts.cell(key), facts.study)
            if searched and len(objectives) > 1:
                rest = key
            elif together:
                axes = {name for name, _ in leaves(facts.study["axes"])}
                point = {name: v for name, v in facts.cell(key).varied.items() if name not in axes}
                rest += json.dumps(point, sort_keys=True)
            elif searched and (other := settings.get(setting, {}).get(rest)) is not None:
                scores = [round(means[each][0], 9) for each in (key, other)]
                ties += [key, other] if scores[0] == scores[1] else []
                order = min((key, other), key=lambda each: _fields(facts.cell(each)))
                if scores[0] < scores[1] or (scores[0] == scores[1] and order == other):
                    continue
            settings.setdefault(setting, {})[rest] = key
    if not settings or (not searched and len(settings) > 1 and all(len(own) == 1 for own in settings.values())):
        return [], math.nan, [], len(objectives) > 1
    shared = set.intersection(*({*own} for own in settings.values()))
    if together and not shared:  # no point has completed in all settings
        return [], math.nan, [], False
    groups = [[[own[rest] for own in settings.values()] for rest in shared]] if shared else (
        [[[key] for key in own.values()] for own in settings.values()]
    )  # fmt: skip
    for rows in groups:  # rows of cells, one for each setting, of which the means over settings are compared
        scores = [tuple(round(mean([means[key][i] for key in row]), 9) for i in range(len(objectives))) for row in rows]
        if len(objectives) > 1:
            ahead = [any(beats(other, score) for other in scores) for score in scores]
            best += [key for row, beaten in zip(rows, ahead, strict=True) if not beaten for key in row]
            continue
        leading = [row for row, score in zip(rows, scores, strict=True) if score == max(scores)]
        first = min(leading, key=lambda row: _fields(facts.cell(row[0])))
        best += first
        ties += [key for row in leading if row is not first for key in row]
    value_of = facts.direction(objectives[0]) * mean([means[key][0] for key in best])
    return best, value_of, ties, len(objectives) > 1


def _common(points: Mapping[str, Mapping[int, Any]]) -> set[int]:
    """Seeds that all candidates have which share the most widespread seed."""
    having = Counter(seed for found in points.values() for seed in found)
    most = min(having, key=lambda seed: (-having[seed], seed), default=0)
    return set[int].intersection(*({*found} for found in points.values() if most in found)) if having else set()


def beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def _setting(cell: Cell, study: Mapping[str, Any]) -> tuple[str, str]:
    """Where a cell ran, and its other fields, with those that a search tuned."""
    node = json.loads(json.dumps(cell.run))
    setting = {name: node.pop(name) for name in SETTING}
    axes = {name for name, _ in leaves(study["axes"])}
    for name in TUNABLE:
        if cell.searched and name in cell.varied and name not in axes:
            group, _, field = name.partition(".")
            setting[group].pop(field, None)
    if cell.searched:  # what is compared is each search's best point
        node = {name: v for name, v in cell.varied.items() if name in axes and name.partition(".")[0] not in setting}
    return json.dumps(setting, sort_keys=True), json.dumps(node, sort_keys=True)


def _within(cell: Cell, facts: Facts, rule: str) -> bool:
    """Whether a cell's means are within the limits of the search."""
    search = facts.study["search"]
    for name, limit in search.get("limits", {}).items() if search["sampler"] is not None else ():
        reached = mean([value(cell.histories[seed], name, rule) for seed in cell.having("done")])
        if not facts.direction(name) * (reached - limit) > -1e-7:
            return False
    return True


def inside(cell: Cell, study: Mapping[str, Any]) -> bool:
    """Whether a cell lies in the present search space. What is not searched does."""
    if not cell.searched or cell.suggestion is None:
        return True
    space = space_of(cell.search, study)
    return all(name in space and holds(space[name], value) for name, value in cell.suggestion["params"].items())


def space_of(search: str, study: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a search varies: those of its file and of the study, or those that the study names of them."""
    file, stated = study["effective"]["spaces"].get(search, {}), study["search"]
    space = {**file.get("space", {}), **dict(_entries(stated["space"]))}
    return {name: entry for name, entry in space.items() if name in (stated["only"] or space)}


def holds(entry: Any, value: Any) -> bool:
    """Whether an entry of a space, a range or choices, has a value."""
    choices = entry.get("choices") if isinstance(entry, dict) else entry
    if choices is not None:
        return value in choices
    low, high, step = entry["low"], entry["high"], entry.get("step")
    steps = (value - low) / step if step else 0.0
    return low <= value <= high and math.isclose(steps, round(steps), abs_tol=1e-8)


def first(cell: Cell, study: Mapping[str, Any]) -> str:
    """Whether a searched cell is at a published point of today or, where none is known, at the run's own values."""
    if not cell.searched or cell.suggestion is None:
        return ""
    space, base = space_of(cell.search, study), dict(leaves(study))
    points = study["search"].get("published")
    if points is None:
        points = study["effective"]["spaces"].get(cell.search, {}).get("published", [])
    points = [{name: value for name, value in leaves(point) if name in space} for point in points]
    kind = "published" if any(points) else "default"
    points = [point for point in points if point] or [{name: base[name] for name in space if name in base}]
    run = dict(leaves(cell.run))
    for point in points:
        names = {*point, *space, *cell.suggestion["params"]}
        at = all(run.get(name) == point.get(name, base.get(name)) for name in names)
        if at and all(holds(space[name], value) for name, value in point.items()):
            return kind
    return ""


def _entries(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in space.items():
        if isinstance(entry, dict) and not entry.keys() & {"low", "high", "choices"}:
            yield from _entries(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in node.items():
        if isinstance(entry, dict):
            yield from leaves(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def _fields(cell: Cell) -> list[tuple[str, bool, float, str]]:
    """A cell's fields as ties order them: by name, numbers by size and before other values."""
    return [
        (name, False, float(found), "") if isinstance(found, (int, float)) else (name, True, 0.0, json.dumps(found))
        for name, found in sorted(leaves(cell.run))
    ]
