"""Writes the optimiser settings that the study `tune_defaults` chose to fpl_tune/config/conf/tuned.yaml.

    fpl-tune study tune_defaults
    python benchmarks/write_defaults.py

The choice is the point with the highest mean validation accuracy over the study's splits and seeds. Other studies with
an axis `variant` may be named instead, also several.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict

import yaml

from fpl_tune.cli.common import stored
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.paths import shipped
from fpl_tune.study.results import VAL


def settings(optim: OptimSpec, groups: list[str]) -> dict[str, object]:
    """The fields of a row: groups only where they were searched."""
    sgd = {"momentum": optim.momentum} if optim.name == "sgd" else {}
    own = {"groups": {name: optim.groups[name] for name in groups}} if groups else {}
    return {"name": optim.name, "lr": optim.lr, **sgd, "weight_decay": optim.weight_decay, "batch": optim.batch, **own}


def main(studies: list[str]) -> None:
    """Write one row per method; rows of methods that the studies do not have stay."""
    table = shipped("conf", "tuned.yaml")
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    head = [line for line in lines if line.startswith("#")]
    rows = {line.partition(":")[0]: line for line in lines if not line.startswith("#")}
    points: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for store in map(stored, studies):
        means = {row["cell"]: row[VAL] for row in store.table().summary()}
        for cell in store.cells():
            variant = cell.varied["variant"]
            fields = {**cell.varied, **variant}
            groups = [name.rpartition(".")[2] for name in fields if name.startswith("optim.groups.")]
            text = yaml.safe_dump(
                settings(cell.run.optim, groups), sort_keys=False, default_flow_style=True, width=math.inf
            ).strip()
            points[variant["method"]][text].append(float(means[cell.id]))
    for name, found in sorted(points.items()):
        splits = max(map(len, found.values()))
        mean = {text: sum(values) / splits for text, values in found.items() if len(values) == splits}
        mean = {text: value for text, value in mean.items() if not math.isnan(value)}
        best = max(mean, key=lambda text: mean[text])
        rows[name] = f"{name}: {best}  # {100 * mean[best]:.1f} %, the best of {len(mean)}\n"
        print(rows[name], end="")
    table.write_text("".join([*head, *(rows[name] for name in sorted(rows))]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or ["tune_defaults"])
