"""Two studies side by side: cells paired by configuration or label, seeds paired, splits checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import listed
from fpl_tune.core.metrics import check_rule
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import TEST, aggregate
from fpl_tune.study.store import Store


@dataclass(frozen=True)
class Comparison:
    """Rows of paired cells, and what speaks against reading them."""

    rows: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    alone: tuple[int, int] = (0, 0)
    """Cells of either study that are not in the rows."""


def compare(
    a: Store, b: Store, *, rule: str = "final", progress: Callable[[int, int], None] | None = None
) -> Comparison:
    """Compares the test accuracies of the cells that two studies have in common, by seed; see `analysis.compare`.

    Args:
        a: the study that is the reference; its `report.rope` is the region of practical equivalence.
        b: the other study.
        rule: reporting rule.
        progress: receives (cells compared, cells in all).

    Returns:
        Rows with the means of both, the difference b - a with its interval and verdict.

    Raises:
        ConfigError: there is no such rule, the studies are one, or they share no cell and seed.
    """
    if a.folder == b.folder:
        raise ConfigError(f"A study is compared with another one, but both are {a.name}. See `fpl-tune status`.")
    check_rule(rule)
    rows: list[dict[str, Any]] = []
    values: list[tuple[str, int, float]] = []
    warnings: list[str] = []
    names: dict[str, str] = {}
    pairs = _pairs(a, b)
    for done, (mine, theirs) in enumerate(pairs):
        if progress is not None:
            progress(done, len(pairs))
        one, other = _values(a, mine, rule), _values(b, theirs, rule)
        seeds = sorted(one.keys() & other.keys())
        if not seeds:
            continue
        strange = [seed for seed in seeds if one[seed][1] != other[seed][1]]
        if strange:
            warnings.append(
                f"{mine.label}: partitions differ in {listed('seed', strange)}; the difference is not of the methods "
                "alone."
            )
        name = mine.label if mine.label == theirs.label else f"{mine.label} | {theirs.label}"
        row: dict[str, Any] = {"cell": name}
        for side, store, found in (("a", a, one), ("b", b, other)):
            names[f"{side}{len(rows)}"] = f"{name} of {store.name}"
            values += [(f"{side}{len(rows)}", seed, found[seed][0]) for seed in seeds]
            row[store.name] = aggregate([found[seed][0] for seed in seeds])["mean"]
        row["sem"] = aggregate([other[seed][0] - one[seed][0] for seed in seeds])["sem"]
        rows.append({**row, "same_split": not strange})
    if not rows:
        raise ConfigError(
            f"Studies are compared where they share cells and seeds, but {a.name} and {b.name} share none. "
            "Cells are paired by configuration, then by label."
        )
    judged = analysis.compare(
        pd.DataFrame(values, columns=pd.Index(["cell", "seed", "value"])),
        {f"b{i}": f"a{i}" for i in range(len(rows))}, rope=a.spec().report.rope / 100, names=names,
    )  # fmt: skip
    table = pd.DataFrame(rows).join(judged[_SHOWN].reset_index(drop=True))
    alone = len(a.cells()) - len(rows), len(b.cells()) - len(rows)
    return Comparison(tuple(dict(row) for row in table.to_dict("records")), tuple(warnings), alone)


_SHOWN = ["difference", "low", "high", "seeds", "verdict", "sentence"]


def _pairs(a: Store, b: Store) -> list[tuple[Cell, Cell]]:
    theirs = b.cells()
    by_id, by_label = {c.id: c for c in theirs}, {c.label: c for c in theirs}
    found = [(cell, by_id.get(cell.id) or by_label.get(cell.label)) for cell in a.cells()]
    return [(mine, other) for mine, other in found if other is not None]


def _values(store: Store, cell: Cell, rule: str) -> dict[int, tuple[float, str]]:
    """Test accuracy and partition of a cell's seeds that are done, by seed."""
    found = {}
    for seed, result in store.seed_results(cell).items():
        value = result["rules"].get(rule, {}).get(TEST) if result["status"] == "done" else None
        if value is not None:
            found[seed] = value, str(result.get("split_hash", ""))
    return found
