"""The runs of a study in MLflow as plain data, made only from its store: equal stores give equal runs."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from fpl_tune.core.files import digest
from fpl_tune.core.formatting import percent, plain, titles
from fpl_tune.core.nested import get_field
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import FAILURES, TEST, VAL, Run, aggregate
from fpl_tune.study.schema import Place, StudyFile
from fpl_tune.study.standing import OVER, CellState, Row
from fpl_tune.study.store import Store
from fpl_tune.study.table import varied_names

FORMAT = 10
"""Version of the runs: increased if the same store gives other runs than before, so that all are logged again."""

STUDY_KEY = "study"
"""Key of the study's own run, the parent of its cells' runs."""

ASKED = "fpl.asked"
"""Tag that tells the runs of the cells that the study asks for, `yes`, from those of others with results, `no`."""

NAME_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 5000
"""Limits of MLflow's stores, in characters: of names, of parameters, and of tags (in its oldest supported server)."""

_DIGITS = 4
"""Decimals of accuracies, which are fractions of 1: hundredths of a point. MLflow's tables do not round."""

_DESCRIBING = ("method", "data", "seeds")
"""Parameters that every cell gets, even if they do not vary."""

_HEADLINES = {TEST: "test_acc", VAL: "val_acc"}
"""Names of the metrics that MLflow shows first."""

_NO_CURVE = re.compile(
    r"(val|test)/(.+/)?(acc_std|acc_min|acc_worst10|macro_f1(_present)?|ece)"  # results have them for each accuracy
    r"|test/(domain|cross)/.+/\w+"  # a part of the test images
    r"|test/.+/loss"
    r"|train/clients|time/train_seconds|(val|test)/(.+/)?images"  # what tables are made from
)
"""Metrics by round that are only in the artifact metrics.jsonl, since MLflow draws a chart of each logged one."""


class Point(NamedTuple):
    """A value of a metric."""

    key: str
    step: int
    value: float
    timestamp: int
    """Milliseconds since 1970, from the store: a run that is logged again equals the first one."""


@dataclass(frozen=True)
class LoggedRun:
    """A run of MLflow."""

    key: str
    """Unique in the study: `STUDY`, or a cell's id."""
    name: str
    status: str
    """FINISHED, FAILED, KILLED or RUNNING"""
    start: int
    end: int
    digest: str
    """Changes if and only if the content of the run changes."""
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[Point] = field(default_factory=list)
    files: list[tuple[str, Path]] = field(default_factory=list)
    """Artifacts that are files of the store: the folder within the run's artifacts, and the file."""
    documents: dict[str, Any] = field(default_factory=dict)
    """JSON artifacts that are not files of the store: name -> content."""


@dataclass(frozen=True)
class Columns:
    """Settings that the runs of a study's cells share."""

    rule: str
    """The reporting rule."""
    metric: str
    """The metric of the study's report."""
    fields: dict[str, str]
    """Dotted field (or group) in which cells vary -> its name as a parameter."""
    objectives: tuple[str, ...] = ()
    """Metrics that a search trades against each other; empty with a single one."""

    @classmethod
    def of(cls, study: StudyFile, cells: Sequence[Cell]) -> Columns:
        """The columns of a study, which may change with its cells."""
        names = varied_names(cells)
        taken = titles((name for name in names if name not in _DESCRIBING), _DESCRIBING)
        fields = {name: mlflow_name(taken.get(name, name)) for name in names}
        objectives = study.search.objectives if study.search.sampler is not None else []
        several = tuple(objectives) if len(objectives) > 1 else ()
        return cls(study.report.rule, study.report.metric, fields, several)

    @property
    def headline(self) -> str:
        """The name of the mean of the report's metric over seeds; see `headline_of`."""
        return headline_of(self.metric)

    @property
    def compared(self) -> list[str]:
        """The names of the means that parallel coordinates show: the objectives, if there are several, and the report's
        metric."""
        return list(dict.fromkeys(map(headline_of, [*self.objectives, self.metric])))


def headline_of(metric: str) -> str:
    """The name of a metric's mean over seeds: short, and unlike the names of curves by round."""
    name = _HEADLINES.get(metric, mlflow_name(metric.replace("/", "_")))
    return "test_acc_std_of_clients" if name == "test_acc_std" else name  # test_acc_std is over seeds


def mlflow_name(name: str) -> str:
    """Replaces characters that MLflow rejects: names have letters, digits, `_ - . /` and spaces, at most 250."""
    clean = re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
    cut = "/".join(part for part in clean.split("/") if part)[:NAME_LENGTH].strip("/ ")
    parts = (part.replace(".", "_") if set(part) == {"."} else part for part in cut.split("/"))
    return "/".join(parts) or "_"


def study_entry(store: Store, *, running: bool = False, began: int = 0) -> LoggedRun:
    """The parent run: note, tags and files; no parameters or metrics, so it can be updated as the study grows.

    It lasts from the start of the first seed, or from `began` if there is none yet, to the end of the last one.
    """
    spec, table = store.spec(), store.table()
    every = [*table.rows.values()]
    cells = [dict(Place.of(row.cell)) for row in every]
    times = [_times(run) for row in every for run in row.results.values()]
    failed = any(
        row.state is CellState.FAILED or (row.state is CellState.DIVERGED and row.cell.role != "trial") for row in every
    )
    whole = all(row.state in OVER for row in every)
    status = "RUNNING" if running else "KILLED" if not whole else "FAILED" if failed else "FINISHED"
    note = f"## {spec.title or spec.name}\n\n{spec.note}\n\nThe artifact `report.html` shows curves and tables.\n"
    if (store.folder / "table.md").is_file():
        note += "\n" + (store.folder / "table.md").read_text()
    tags = {"mlflow.note.content": note[:TAG_LENGTH], "fpl.status": status.lower()}
    names = ("study.yaml", "report.html", "table.md", "table.tex", "table.csv", "results.csv", "rules.csv")
    return LoggedRun(
        key=STUDY_KEY,
        name=spec.name,
        status=status,
        start=min((start for start, _ in times), default=began),
        end=max((end for _, end in times), default=0),
        digest=_digest(status, store.node(), cells, [*map(_results, every)]),
        tags=tags,
        files=[] if running else [("", store.folder / name) for name in names],
    )


def cell_digest(row: Row, columns: Columns) -> str:
    """The digest of a cell's entry, from its results: a history only changes together with its result.

    It is empty until the cell is over, since its means still change.
    """
    if row.state not in OVER:
        return ""
    cell = row.cell
    return _digest(
        *(cell.id, cell.label, cell.role, row.state, _rungs(row), columns.rule, columns.metric, *columns.objectives),
        *(_parameters(row, columns), [*_results(row).values()]),
    )


def cell_entry(row: Row, folder: Path, columns: Columns) -> LoggedRun:
    """The run of a cell that is over.

    A pruned trial's run is also finished, with the tag `fpl.status` and the round that it has reached, `fpl.round`.

    Args:
        row: the cell with its results.
        folder: the study's folder.
        columns: the settings that the study's runs share.
    """
    cell, results, state = row.cell, row.results, row.state
    counted = {s: run for s, run in results.items() if run.status not in FAILURES}
    start, end = min(_times(run)[0] for run in results.values()), max(_times(run)[1] for run in results.values())
    tags = {
        ASKED: "yes",
        "fpl.role": cell.role,
        "fpl.partition_hash": ",".join(sorted({run.split_hash for run in results.values()}))[:TAG_LENGTH],
        "fpl.status": state.value,
    }
    if state is CellState.PRUNED:
        tags["fpl.round"] = str(max(run.rounds for run in results.values()))
    if errors := [f"seed {s}: {run.error}" for s, run in results.items() if run.error]:
        tags["fpl.error"] = "; ".join(errors)[:TAG_LENGTH]
    path, histories = folder / "cells" / cell.id, {s: run.records() for s, run in counted.items()}
    return LoggedRun(
        key=cell.id,
        name=cell.label,
        status="FAILED" if state.value in FAILURES else "FINISHED",
        start=start,
        end=end,
        digest=cell_digest(row, columns),
        tags=tags,
        params=_parameters(row, columns),
        metrics=[
            *(Point(name, 0, value, end) for name, value in _headlines(row, columns).items()),
            *(Point(name, 0, value, end) for name, value in _rungs(row).items()),
            *_curves(histories, start, columns.metric),
        ],
        files=[("", path / "cell.json")]
        + [(f"seed={s}", path / f"seed={s}" / n) for s in results for n in ("metrics.jsonl", "prompts.safetensors")],
        documents={"rules.json": plain(_by_rule(counted))} if counted else {},
    )


def _results(row: Row) -> dict[int, dict[str, Any]]:
    """A cell's results as they are logged, with the status that tables show."""
    return {seed: {**run.as_dict(), "status": row.status(seed)} for seed, run in row.results.items()}


def _digest(*parts: Any) -> str:
    return digest(json.dumps([FORMAT, *parts]))


def _parameters(row: Row, columns: Columns) -> dict[str, str]:
    """A run's parameters: fields that vary in the study and that the cell has, its method, data and seeds.

    The artifact cell.json has the whole configuration.
    """
    texts = {name: _text(row.cell, field) for field, name in columns.fields.items()}
    for name in ("method", "data"):
        texts.setdefault(name, _text(row.cell, name))
    parameters = {name: text[:PARAM_LENGTH] for name, text in texts.items() if text is not None}
    return parameters | {"seeds": json.dumps(list(row.results))}


def _text(cell: Cell, dotted: str) -> str | None:
    """A field of a cell as text in a label, a group by its name; None if the cell has no such field."""
    absent = object()
    value = cell.varied[dotted] if dotted in cell.varied else get_field(cell.node, dotted, absent)
    if isinstance(value, Mapping) and dotted not in cell.varied:
        value = value.get("name", absent)
    return None if value is absent else shown(value)


def _rungs(row: Row) -> dict[str, float]:
    """The first objective at the rungs that a trial has reached, with four digits; also for trials that were pruned."""
    values = sorted((number, values[0]) for number, values in row.rung_values.items())
    return {f"rung_{number}": float(f"{value:.{_DIGITS}g}") for number, value in values if math.isfinite(value)}


def _curves(histories: Mapping[int, Sequence[Record]], start: int, metric: str) -> list[Point]:
    """Metrics by round, averaged over the seeds that have them, always including `metric`; `step` is the round."""
    import pandas as pd

    records = [record for history in histories.values() for record in history]
    if not records:
        return []
    numbers = pd.DataFrame(records).select_dtypes("number").drop(columns="seed")
    rounds = numbers.replace([math.inf, -math.inf], math.nan).groupby("round")
    means, elapsed = rounds.mean(), rounds["time/seconds"].max()
    return [
        _point(name, int(number), value, start + round(1000 * elapsed[number]))
        for name in sorted(means)
        if name == metric or not _NO_CURVE.fullmatch(name)
        for number, value in means[name].dropna().items()
    ]


def _by_rule(results: Mapping[int, Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Reporting rule -> metric -> mean, std and the like over seeds."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in results.values():
        for rule, chosen in run.rules.items():
            for name in sorted(chosen.keys() - {"round"}):
                values[rule][name].append(math.nan if (value := chosen[name]) is None else float(value))
    return {rule: {name: aggregate(seen) for name, seen in by_name.items()} for rule, by_name in values.items()}


def _headlines(row: Row, columns: Columns) -> dict[str, float]:
    """Statistics over seeds under the study's reporting rule, including the report's metric.

    They are logged at step 0, so MLflow draws bars by run, not curves. It lists metrics in the order of logging.
    """
    own, test, val = (row.over_seeds(name, columns.rule) for name in (columns.metric, TEST, VAL))
    figures = list[tuple[str, str, float]]()
    if columns.metric not in _HEADLINES:
        name = columns.headline
        figures += [(name, columns.metric, own["mean"]), (f"{name}_std", columns.metric, own["std"])]
    others = [name for name in columns.objectives if name not in (*_HEADLINES, columns.metric)]
    figures += [(headline_of(name), name, row.over_seeds(name, columns.rule)["mean"]) for name in others]
    if test["n"]:
        figures += [("test_acc", TEST, test["mean"]), ("test_acc_std", TEST, test["std"])]
        figures += [("val_acc", VAL, val["mean"]), ("n_seeds", "", test["n"])]
    return {name: _rounded(metric, value) for name, metric, value in figures if math.isfinite(value)}


def _point(metric: str, step: int, value: float, timestamp: int) -> Point:
    return Point(mlflow_name(metric), step, _rounded(metric, value), timestamp)


def _rounded(metric: str, value: float) -> float:
    return round(float(value), _DIGITS) if percent(metric) else float(value)


def _times(run: Run) -> tuple[int, int]:
    """Start and end of a seed, in milliseconds since 1970."""
    end = round(1000 * datetime.fromisoformat(run.finished).timestamp())
    return end - round(1000 * float(run.costs["time/seconds"])), end
