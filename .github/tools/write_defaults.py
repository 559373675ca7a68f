"""Writes the optimiser settings that the study `tune_defaults` chose to fpl_tune/conf/optim/shapes_<method>.yaml.

    fpl-tune study tune_defaults
    python .github/tools/write_defaults.py

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
    """The fields of a file: groups only where they were searched."""
    sgd = {"momentum": optim.momentum} if optim.name == "sgd" else {}
    own = {"groups": {name: optim.groups[name] for name in groups}} if groups else {}
    return {"name": optim.name, "lr": optim.lr, **sgd, "weight_decay": optim.weight_decay, "batch": optim.batch, **own}


def main(studies: list[str]) -> None:
    """Write one file per method."""
    points: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for store in map(stored, studies):
        means = store.summary().set_index("cell")[VAL]
        for cell in store.cells():
            groups = [name.rpartition(".")[2] for name in cell.varied if name.startswith("optim.groups.")]
            text = yaml.safe_dump(settings(cell.run.optim, groups), sort_keys=False)
            points[cell.varied["variant"]["label"]][text].append(float(means[cell.id]))
    for name, found in sorted(points.items()):
        splits = max(map(len, found.values()))
        mean = {text: sum(values) / splits for text, values in found.items() if len(values) == splits}
        mean = {text: value for text, value in mean.items() if not math.isnan(value)}
        best = max(mean, key=lambda text: mean[text])
        said = (
            f"# {name} on the embedded world: {100 * mean[best]:.1f} % of validation images, the best of {len(mean)} "
            "points\n# of the studies tune_defaults and tune_towers (.github/tools/write_defaults.py).\n"
        )
        path = shipped("conf", "optim") / f"shapes_{name}.yaml"
        path.write_text(said + best, encoding="utf-8")
        print(f"{path.name}: {' '.join(best.split())}, {100 * mean[best]:.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:] or ["tune_defaults"])
