"""Two studies side by side: cells paired by configuration or label, seeds paired, splits checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fpl_tune.analysis import paired_t
from fpl_tune.errors import ConfigError
from fpl_tune.evaluate import check_rule
from fpl_tune.formatting import listed
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import aggregate
from fpl_tune.study.store import Store


@dataclass(frozen=True)
class Comparison:
    """Rows of paired cells, and what speaks against reading them."""

    rows: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    alone: tuple[int, int] = (0, 0)
    """Cells of either study that are not in the rows."""


def compare(
    a: Store,
    b: Store,
    *,
    rule: str = "final",
    metric: str = "test/acc_mean",
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Differences b - a of all cells that both studies have, paired by seed; p by a paired t test over seeds.

    `progress` hears (cells compared, cells in all).

    Raises:
        ConfigError: there is no such rule, they are one, or have no cell and seed in common.
    """
    if a.folder == b.folder:
        raise ConfigError(f"A study is compared with another one, but both are {a.name}. `fpl-tune status` lists them.")
    check_rule(rule)
    rows, warnings = [], []
    pairs = _pairs(a, b)
    for done, (mine, theirs) in enumerate(pairs):
        if progress is not None:
            progress(done, len(pairs))
        seeds = sorted(set(a.seeds(mine)) & set(b.seeds(theirs)))
        both = [(_value(a, mine, s, rule, metric), _value(b, theirs, s, rule, metric)) for s in seeds]
        kept = [(s, x, y) for s, (x, y) in zip(seeds, both, strict=True) if x is not None and y is not None]
        if not kept:
            continue
        strange = [s for s, _, _ in kept if _split(a, mine, s) != _split(b, theirs, s)]
        if strange:
            warnings.append(
                f"{mine.label}: partitions differ in {listed('seed', strange)}, so that the difference is not the "
                "methods' alone."
            )
        differences = [y - x for _, x, y in kept]
        spread = aggregate(differences)
        rows.append(
            {
                "cell": mine.label if mine.label == theirs.label else f"{mine.label} | {theirs.label}",
                a.name: aggregate([x for _, x, _ in kept])["mean"],
                b.name: aggregate([y for _, _, y in kept])["mean"],
                "difference": spread["mean"],
                "sem": spread["sem"],
                "p": paired_t(differences),
                "seeds": len(kept),
                "same_split": not strange,
            }
        )
    if not rows:
        raise ConfigError(
            f"Studies are compared where they share cells and seeds, but {a.name} and {b.name} share none. "
            "Cells are paired by configuration, then by label."
        )
    return Comparison(tuple(rows), tuple(warnings), (len(a.cells()) - len(rows), len(b.cells()) - len(rows)))


def _pairs(a: Store, b: Store) -> list[tuple[Cell, Cell]]:
    theirs = b.cells()
    by_id, by_label = {c.id: c for c in theirs}, {c.label: c for c in theirs}
    found = [(cell, by_id.get(cell.id) or by_label.get(cell.label)) for cell in a.cells()]
    return [(mine, other) for mine, other in found if other is not None]


def _value(store: Store, cell: Cell, seed: int, rule: str, metric: str) -> float | None:
    result = store.result(cell, seed)
    if result is None or result["status"] != "done":
        return None
    return result["rules"].get(rule, {}).get(metric)


def _split(store: Store, cell: Cell, seed: int) -> str:
    return str((store.result(cell, seed) or {}).get("split_hash", ""))
