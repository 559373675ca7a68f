"""Writes the optimiser settings that the study `tune_defaults` chose to fpl_tune/config/conf/tuned.yaml.

    fpl-tune study tune_defaults
    python benchmarks/write_defaults.py

The choice is the point with the highest mean validation accuracy over the study's splits and seeds. Other studies with
an axis `variant` may be named instead, also several. A method's row is that of the last study that has it, with the
data, towers, rounds and local epochs of that study.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from typing import Any

import yaml

from fpl_tune.cli.common import stored
from fpl_tune.config.specs import OptimSpec, RunSpec
from fpl_tune.core.paths import shipped
from fpl_tune.study.results import VAL
from fpl_tune.study.store import Store


def settings(optim: OptimSpec) -> dict[str, object]:
    """The fields of a row, with the rates of all groups under which the method was measured, searched or not."""
    sgd = {"momentum": optim.momentum} if optim.name == "sgd" else {}
    own = {"groups": optim.groups} if optim.groups else {}
    return {"name": optim.name, "lr": optim.lr, **sgd, "weight_decay": optim.weight_decay, "batch": optim.batch, **own}


def under(run: RunSpec) -> dict[str, object]:
    """What readers of a row must know of the study that chose it."""
    return {"data": run.data.name, "clip": run.clip.name, "rounds": run.protocol.rounds, "epochs": run.protocol.epochs}


def text_of(node: Any) -> str:
    """A mapping on one line."""
    return yaml.safe_dump(node, sort_keys=False, default_flow_style=True, width=math.inf).strip()


def chosen(store: Store) -> dict[str, str]:
    """The lines of a study's methods."""
    points: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    means = {row["cell"]: row[VAL] for row in store.table().summary()}
    for cell in store.cells():
        points[cell.varied["variant"]["method"]][text_of(settings(cell.run.optim))].append(float(means[cell.id]))
    rows = {}
    for name, found in points.items():
        splits = max(map(len, found.values()))
        mean = {text: sum(values) / splits for text, values in found.items() if len(values) == splits}
        mean = {text: value for text, value in mean.items() if not math.isnan(value)}
        best = max(mean, key=lambda text: mean[text])
        rows[name] = f"    {name}: {best}  # {100 * mean[best]:.1f} %, the best of {len(mean)}\n"
    return rows


def main(studies: list[str]) -> None:
    """Write one row per method; rows of methods that the studies do not have stay."""
    path = shipped("conf", "tuned.yaml")
    text = path.read_text(encoding="utf-8")
    lines, tables = text.splitlines(keepends=True), yaml.safe_load(text)
    head = [line for line in lines if line.startswith("#")]
    written = {line.strip().partition(":")[0]: line for line in lines if line.startswith("    ")}
    protocols = {study: table["under"] for study, table in tables.items()}
    rows = {study: {name: written[name] for name in table["rows"]} for study, table in tables.items()}
    for study in studies:
        store = stored(study)
        new = chosen(store)
        print(*new.values(), sep="", end="")
        rows = {name: {m: line for m, line in own.items() if m not in new} for name, own in rows.items()}
        rows[study] = {**rows.get(study, {}), **new}
        protocols[study] = under(next(cell.run for cell in store.cells()))
    for study in filter(rows.get, rows):
        head += [f"{study}:\n", f"  under: {text_of(protocols[study])}\n", "  rows:\n"]
        head += [line for _, line in sorted(rows[study].items())]
    path.write_text("".join(head), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or ["tune_defaults"])
