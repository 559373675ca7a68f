"""The runs that MLflow holds of a study, as plain data from its store alone: equal stores give equal runs."""

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

from fpl_tune import config
from fpl_tune.core.files import digest
from fpl_tune.core.formatting import percent
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import TEST, VAL, aggregate
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store
from fpl_tune.study.trial import State

FORMAT = 7
"""Increased when the same store gives other runs than before: all runs are then written anew."""

STUDY = "study"
"""Key of the study's own run, below which the runs of its cells are nested."""

NAME_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 5000
"""Limits of MLflow's stores: characters of a name, of a parameter's value, and of a tag's value (its oldest server)."""

_DIGITS = 4
"""Decimals of accuracies, which are shares of 1: hundredths of a point. MLflow's tables round nothing."""


class Point(NamedTuple):
    """A value of a metric."""

    key: str
    step: int
    value: float
    timestamp: int
    """Milliseconds since 1970, taken from the store, so that a run that is written anew equals the first one."""


@dataclass(frozen=True)
class Entry:
    """A run of MLflow."""

    key: str
    """Unique in the study: `STUDY`, or a cell's id."""
    name: str
    status: str
    """FINISHED, FAILED, KILLED or RUNNING"""
    start: int
    end: int
    digest: str
    """Changes exactly if what is written changes."""
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[Point] = field(default_factory=list)
    files: list[tuple[str, Path]] = field(default_factory=list)
    """Folder below the run's artifacts, and a file."""


def mlflow_name(name: str) -> str:
    """Replaces what MLflow refuses in a name: it takes letters, digits, `_ - . /` and spaces, 250 at most."""
    clean = re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
    parts = (part.replace(".", "_") if set(part) == {"."} else part for part in clean.split("/") if part)
    return "/".join(parts)[:NAME_LENGTH].strip("/ ") or "_"


def study_entry(store: Store, seeds: Sequence[int], *, running: bool = False) -> Entry:
    """The parent run: note, tags and files, no parameters or metrics, so that it can grow with the study."""
    spec, cells = store.spec(), store.cells()
    trials = [store.trial(cell) for cell in cells]
    shown = [store.shown_results(cell) for cell in cells]
    ends = [_times(result)[1] for results in shown for result in results.values()]
    failed = any(trial.state in (State.FAILED, State.DIVERGED) for trial in trials)
    whole = all(trial.over for trial in trials)
    status = "RUNNING" if running else "KILLED" if not whole else "FAILED" if failed else "FINISHED"
    note = f"## {spec.title or spec.name}\n\n{spec.note}\n\nThe artifact `report.html` shows curves and tables.\n"
    if (store.folder / "table.md").is_file():
        note += "\n" + (store.folder / "table.md").read_text()
    tags = {"mlflow.note.content": note[:TAG_LENGTH], "fpl.status": status.lower()}
    names = ("study.yaml", "report.html", "table.md", "table.tex", "table.csv", "results.csv")
    return Entry(
        key=STUDY,
        name=spec.name,
        status=status,
        start=min(ends, default=0),
        end=max(ends, default=0),
        digest=_digest(status, spec.title, spec.note, spec.report.rule, list(seeds), shown),
        tags=tags,
        files=[] if running else [("", store.folder / name) for name in names],
    )


def cell_digest(store: Store, cell: Cell, seeds: Sequence[int], rule: str) -> str:
    """The digest of a cell's entry, from results alone: a history is written with its result and never without."""
    found, state = store.shown_results(cell), store.trial(cell).state
    return _digest(cell.id, cell.label, cell.role, state, list(seeds), rule, [found[seed] for seed in seeds])


def cell_entry(store: Store, cell: Cell, seeds: Sequence[int], rule: str) -> Entry:
    """The run of a cell whose trial is over, over the given seeds, all of which have results.

    That of a pruned trial is finished too, with the tag `fpl.status` and the round that it reached, `fpl.round`.
    """
    results, trial = {s: r for s, r in store.shown_results(cell).items() if s in seeds}, store.trial(cell)
    counted = {s: r for s, r in results.items() if r["status"] not in FAILURES}
    start, end = min(_times(r)[0] for r in results.values()), max(_times(r)[1] for r in results.values())
    status = trial.state.value
    tags = {
        "fpl.role": cell.role,
        "fpl.partition_hash": ",".join(sorted({str(r["split_hash"]) for r in results.values()}))[:TAG_LENGTH],
        "fpl.status": status,
    }
    if trial.state is State.PRUNED:
        tags["fpl.round"] = str(max(int(r["rounds"]) for r in results.values()))
    if errors := [f"seed {s}: {r['error']}" for s, r in results.items() if r.get("error")]:
        tags["fpl.error"] = "; ".join(errors)[:TAG_LENGTH]
    return Entry(
        key=cell.id,
        name=cell.label,
        status="FAILED" if status in FAILURES else "FINISHED",
        start=start,
        end=end,
        digest=cell_digest(store, cell, seeds, rule),
        tags=tags,
        params=_parameters(cell, list(results)),
        metrics=[*_aggregates(counted, rule, end), *_curves({s: store.history(cell, s) for s in counted}, start)],
        files=[("", store.folder / "cells" / cell.id / "cell.json")]
        + [
            (f"seed={s}", store.seed_folder(cell, s) / n)
            for s in seeds
            for n in ("metrics.jsonl", "prompts.safetensors")
        ],
    )


def _digest(*parts: Any) -> str:
    return digest(json.dumps([FORMAT, *parts]))


def _parameters(cell: Cell, seeds: Sequence[int]) -> dict[str, str]:
    """A run's parameters by dotted name: groups and bundles that vary, then all fields but `data.root`."""
    flat = {name: value for name, value in config.flatten(config.as_dict(cell.run)).items() if value != []}
    flat.pop("data.root", None)
    groups = {name: shown(value) for name, value in cell.varied.items() if name not in flat and name != "label"}
    groups = {name: value for name, value in groups.items() if value != flat.get(f"{name}.name")}
    texts = {n: json.dumps(v) if isinstance(v, list | dict) else str(v) for n, v in (groups | flat).items()}
    return {mlflow_name(n): text[:PARAM_LENGTH] for n, text in texts.items()} | {"seeds": json.dumps(seeds)}


def _curves(histories: Mapping[int, Sequence[Record]], start: int) -> list[Point]:
    """Every metric by round, averaged over the seeds that have it; `step` is the round."""
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
        for number, value in means[name].dropna().items()
    ]


def _aggregates(results: Mapping[int, Mapping[str, Any]], rule: str, end: int) -> list[Point]:
    """Metrics over seeds: headlines under the study's rule, then `<rule>/<metric>`, the means under every rule.

    Their step is 0, so that MLflow draws bars by run, not curves. It lists metrics in the order of their logging.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for result in results.values():
        for name, chosen in result["rules"].items():
            for metric in chosen.keys() - {"round"}:
                values[f"{name}/{metric}"].append(math.nan if (value := chosen[metric]) is None else float(value))
    over_seeds = {name: aggregate(values[name]) for name in sorted(values)}
    found: dict[str, float] = {}
    if f"{rule}/{TEST}" in over_seeds:
        test, val = over_seeds[f"{rule}/{TEST}"], over_seeds[f"{rule}/{VAL}"]
        found = {"test_acc": test["mean"], "test_acc_std": test["std"], "val_acc": val["mean"], "n_seeds": test["n"]}
    found |= {name: each["mean"] for name, each in over_seeds.items()}
    return [_point(name, 0, value, end) for name, value in found.items() if math.isfinite(value)]


def _point(metric: str, step: int, value: float, timestamp: int) -> Point:
    value = round(float(value), _DIGITS) if percent(metric) else float(value)
    return Point(mlflow_name(metric), step, value, timestamp)


def _times(result: Mapping[str, Any]) -> tuple[int, int]:
    """Start and end of a seed, in milliseconds since 1970."""
    end = round(1000 * datetime.fromisoformat(result["finished"]).timestamp())
    return end - round(1000 * float(result["time/seconds"])), end
