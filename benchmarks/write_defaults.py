"""Writes the optimiser settings that the study `tune_defaults` chose to fpl_tune/config/conf/tuned.yaml.

    fpl-tune study tune_defaults
    python benchmarks/write_defaults.py

The choice is the point with the highest mean validation accuracy over the study's splits and seeds, or in each setting
the one that a search chose. Other studies with an axis `variant` may be named instead, also several. For towers and a
data set, a method's row is that of the last study that has it, with the rounds and local epochs of that study.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fpl_tune import methods
from fpl_tune.cli.common import stored
from fpl_tune.config.specs import OptimSpec, RunSpec
from fpl_tune.core.paths import shipped
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import VAL
from fpl_tune.study.store import Store


def settings(optim: OptimSpec) -> dict[str, object]:
    """The fields of a row, with the rates, to three digits, of all groups under which the method was measured, searched
    or not."""
    rate, groups = _rounded(optim.lr), {name: _rounded(value) for name, value in optim.groups.items()}
    sgd = {"momentum": optim.momentum} if optim.name == "sgd" else {}
    own = {"groups": groups} if groups else {}
    return {"name": optim.name, "lr": rate, **sgd, "weight_decay": optim.weight_decay, "batch": optim.batch, **own}


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else float(f"{rate:.3g}")


def under(run: RunSpec) -> dict[str, object]:
    """What readers of a row must know of the study that chose it."""
    return {"data": run.data.name, "clip": run.clip.name, "rounds": run.protocol.rounds, "epochs": run.protocol.epochs}


def text_of(node: Any) -> str:
    """A mapping on one line."""
    return yaml.safe_dump(node, sort_keys=False, default_flow_style=True, width=math.inf).strip()


def chosen(store: Store) -> dict[str, tuple[dict[str, object], dict[str, str]]]:
    """The tables of a study, by name: what readers must know of them, and the lines of methods."""
    cells, means = store.cells(), {row["cell"]: row[VAL] for row in store.table().summary()}
    tables = dict[str, tuple[dict[str, object], dict[str, str]]]()
    for cell in cells:
        name = methods.name_of(cell.run.method)
        has_row = cell.run.learns and name == cell.varied["variant"]["method"]  # a wrapper takes that of what it wraps
        if cell.role == "tuned" and has_row:
            trials = sum(other.role == "trial" and other.search == cell.search for other in cells)
            said = f"{100 * means[cell.id]:.1f} % on fresh seeds, the choice among {trials}"
            _, rows = tables.setdefault(f"{store.name}, {cell.varied['setting']['label']}", (under(cell.run), {}))
            rows[name] = f"    {name}: {text_of(settings(cell.run.optim))}  # {said}\n"
    return tables or {store.name: (under(cells[0].run), _best(cells, means))}


def _best(cells: Sequence[Cell], means: Mapping[str, float]) -> dict[str, str]:
    """The lines of a grid's methods."""
    points: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
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
    protocols = {name: table["under"] for name, table in tables.items()}
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        if not line.startswith(("#", " ")):
            rows[line.partition(":")[0]] = {}
        elif line.startswith("    "):
            rows[next(reversed(rows))][line.strip().partition(":")[0]] = line
    for study in studies:
        for table, (protocol, new) in chosen(stored(study)).items():
            print(*new.values(), sep="", end="")
            for name, own in rows.items():
                if all(protocols[name][key] == protocol[key] for key in ("clip", "data")):
                    rows[name] = {method: line for method, line in own.items() if method not in new}
            rows[table], protocols[table] = {**rows.get(table, {}), **new}, protocol
    for table in filter(rows.get, rows):
        head += [f"{table}:\n", f"  under: {text_of(protocols[table])}\n", "  rows:\n"]
        head += [line for _, line in sorted(rows[table].items())]
    path.write_text("".join(head), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or ["tune_defaults"])
