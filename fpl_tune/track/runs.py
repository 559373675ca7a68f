"""The runs that MLflow holds of a study, as plain data from its store alone: equal stores give equal runs."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from fpl_tune import config, methods
from fpl_tune.config import StudySpec
from fpl_tune.core.files import digest
from fpl_tune.core.formatting import percent
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, shown
from fpl_tune.study.results import TEST, VAL, aggregate
from fpl_tune.study.status import COUNTED, FAILURES, cell_status
from fpl_tune.study.store import Store
from fpl_tune.track.artifacts import Files, cell_files, study_files

FORMAT = 5
"""Increased when the same store gives other runs than before: all runs are then written anew."""

STUDY = "study"
"""Key of the study's own run, below which the runs of its cells are nested."""

HEADLINES = ("test_acc", "test_acc_std", "val_acc", "n_seeds")
"""Metrics over seeds that a cell's run lists first."""

NAME_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 5000
"""Limits of MLflow's stores: characters of a name, of a parameter's value, and of a tag's value (its oldest server)."""

_DIGITS = 4
"""Decimals of accuracies, which are shares of 1: hundredths of a point."""


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
    """Unique in the study: `STUDY`, a cell's id, or "<id>/<seed>"."""
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
    files: Files = field(default_factory=dict)


def kind_of(key: str) -> str:
    """study, cell or seed"""
    return STUDY if key == STUDY else "seed" if "/" in key else "cell"


def parent_of(key: str) -> str | None:
    """Key of the run that a run is nested below; None: the study's run."""
    return None if key == STUDY else key.rpartition("/")[0] or STUDY


def mlflow_name(name: str) -> str:
    """Replaces what MLflow refuses in a name: it takes letters, digits, `_ - . /` and spaces, 250 at most."""
    clean = re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
    parts = (part.replace(".", "_") if set(part) == {"."} else part for part in clean.split("/") if part)
    return "/".join(parts)[:NAME_LENGTH].strip("/ ") or "_"


def axes(cells: Iterable[Cell]) -> list[str]:
    """Names of the parameters in which a study's own cells may differ."""
    own = [cell for cell in cells if cell.candidate]
    return list(dict.fromkeys(mlflow_name(name) for cell in own for name in cell.varied if name != "label"))


def study_entry(store: Store, spec: StudySpec, status: str) -> Entry:
    """The parent run: note, tags and files, no parameters or metrics, so that it can grow with the study."""
    ends = [_times(result)[1] for cell in store.cells() for result in store.seed_results(cell).values()]
    note = f"## {spec.title or spec.name}\n\n{spec.note}\n\nThe artifact `report.html` shows curves and tables.\n"
    if (store.folder / "table.md").is_file():
        note += "\n" + (store.folder / "table.md").read_text()
    tags = {"mlflow.note.content": note[:TAG_LENGTH], "fpl.status": status.lower()}
    files = {} if status == "RUNNING" else study_files(store)
    return Entry(
        STUDY, spec.name, status, min(ends, default=0), max(ends, default=0), _digest(status, tags), tags, files=files
    )


def cell_digest(store: Store, cell: Cell, seeds: Sequence[int], rule: str) -> str:
    """The digest of a cell's entry, from results alone: a history is written with its result and never without."""
    return _digest(cell.id, cell.label, cell.role, list(seeds), rule, [store.result(cell, seed) for seed in seeds])


def cell_entry(store: Store, cell: Cell, seeds: Sequence[int], rule: str, *, nested: bool = False) -> Entry:
    """The run of a cell over the given seeds, all of which have results; `nested`: the run of its one seed below it."""
    results = {s: r for s in seeds if (r := store.result(cell, s)) is not None}
    counted = {s: r for s, r in results.items() if r["status"] in COUNTED} or results
    start, end = min(_times(r)[0] for r in results.values()), max(_times(r)[1] for r in results.values())
    metrics = [*_aggregates(counted, rule, end), *_curves({s: store.history(cell, s) for s in counted}, start)]
    tags = {**_tags(store, cell, results), "fpl.seeds": _text(list(results))}
    if errors := [f"seed {s}: {r['error']}" for s, r in results.items() if r.get("error")]:
        tags["fpl.error"] = "; ".join(errors)[:TAG_LENGTH]
    if nested:
        metrics = [point for point in metrics if not point.key.endswith(("_std", "_sem", "n_seeds"))]
        tags["fpl.seed"] = str(seeds[0])
    return Entry(
        key=f"{cell.id}/{seeds[0]}" if nested else cell.id,
        name=f"{cell.label}, seed {seeds[0]}" if nested else cell.label,
        status="FAILED" if FAILURES & {r["status"] for r in results.values()} else "FINISHED",
        start=start,
        end=end,
        digest=cell_digest(store, cell, seeds, rule),
        tags=tags,
        params=_parameters(cell, list(results)),
        metrics=metrics,
        files={} if nested else cell_files(store, cell, seeds),
    )


def _digest(*parts: Any) -> str:
    return digest(json.dumps([FORMAT, *parts]))


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def _parameters(cell: Cell, seeds: Sequence[int]) -> dict[str, str]:
    """A run's parameters by dotted name: groups and bundles that vary, then all fields but `data.root`."""
    flat = {name: value for name, value in config.flatten(config.as_dict(cell.run)).items() if value != []}
    flat.pop("data.root", None)
    groups = {name: shown(value) for name, value in cell.varied.items() if name not in flat and name != "label"}
    groups = {name: value for name, value in groups.items() if value != flat.get(f"{name}.name")}
    return {mlflow_name(k): _text(v)[:PARAM_LENGTH] for k, v in {**groups, **flat, "seeds": list(seeds)}.items()}


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
        Point(mlflow_name(name), int(number), _rounded(name, value), start + round(1000 * elapsed[number]))
        for name in sorted(means)
        for number, value in means[name].dropna().items()
    ]


def _aggregates(results: Mapping[int, Mapping[str, Any]], rule: str, end: int) -> list[Point]:
    """Metrics over seeds: `HEADLINES` and the sems under the study's rule, then `<rule>/<metric>` means of every rule.

    Their step is 0, so that MLflow draws bars by run, not curves. It lists metrics in the order of their logging.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for result in results.values():
        for name, chosen in result["rules"].items():
            for metric in chosen.keys() - {"round"}:
                values[name, metric].append(math.nan if (value := chosen[metric]) is None else float(value))
    over_seeds = {key: aggregate(values[key]) for key in sorted(values)}
    found: dict[str, float] = {}
    if (rule, TEST) in over_seeds:
        val, test = over_seeds[rule, VAL], over_seeds[rule, TEST]
        headlines = zip(HEADLINES, (test["mean"], test["std"], val["mean"], test["n"]), strict=True)
        found = dict(headlines) | {"test_acc_sem": test["sem"], "val_acc_sem": val["sem"]}
    found |= {"/".join(names): each["mean"] for names, each in over_seeds.items()}
    return [
        Point(mlflow_name(name), 0, _rounded(name, value), end) for name, value in found.items() if math.isfinite(value)
    ]


def _rounded(metric: str, value: float) -> float:
    """A metric's value as MLflow's tables show it, which round nothing."""
    return round(float(value), _DIGITS) if percent(metric) else float(value)


def _tags(store: Store, cell: Cell, results: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    prints = store.fingerprints(cell)
    return {
        "fpl.cell": cell.id,
        "fpl.role": cell.role,
        "fpl.method": methods.name_of(cell.run.method),
        "fpl.dataset": cell.run.data.name,
        "fpl.partition_hash": ",".join(sorted({str(r["split_hash"]) for r in results.values()}))[:TAG_LENGTH],
        "fpl.code_fingerprint": str(prints.get("method", "")),
        "fpl.status": str(cell_status([r["status"] for r in results.values()], len(results))),
        "mlflow.source.name": "fpl-tune",
        "mlflow.source.type": "LOCAL",
    }


def _times(result: Mapping[str, Any]) -> tuple[int, int]:
    """Start and end of a seed, in milliseconds since 1970."""
    end = round(1000 * datetime.fromisoformat(result["finished"]).timestamp())
    return end - round(1000 * float(result["time/seconds"])), end
