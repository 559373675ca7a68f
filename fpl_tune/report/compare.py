"""Two studies side by side: cells paired by configuration or label, seeds paired, splits checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fpl_tune import analysis
from fpl_tune.errors import ConfigError
from fpl_tune.evaluate import check_rule
from fpl_tune.formatting import listed, percent
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
    """Compares the cells that two studies have in common, paired by seed; see `analysis.compare`.

    Args:
        a: the study that is the reference; its `report.rope` is the region of practical equivalence.
        b: the other study.
        rule: reporting rule.
        metric: what is compared.
        progress: receives (cells compared, cells in all).

    Returns:
        Rows with the means of both, the difference b - a with its interval, p values and verdict.

    Raises:
        ConfigError: there is no such rule, the studies are one, or they share no cell and seed.
    """
    if a.folder == b.folder:
        raise ConfigError(f"A study is compared with another one, but both are {a.name}. See `fpl-tune status`.")
    check_rule(rule)
    rows: list[dict[str, Any]] = []
    values: list[dict[str, Any]] = []
    warnings: list[str] = []
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
                f"{mine.label}: partitions differ in {listed('seed', strange)}; the difference is not of the methods "
                "alone."
            )
        name = mine.label if mine.label == theirs.label else f"{mine.label} | {theirs.label}"
        for seed, x, y in kept:
            values.append({"cell": f"a{len(rows)}", "seed": seed, "value": x})
            values.append({"cell": f"b{len(rows)}", "seed": seed, "value": y})
        rows.append(
            {
                "cell": name,
                a.name: aggregate([x for _, x, _ in kept])["mean"],
                b.name: aggregate([y for _, _, y in kept])["mean"],
                "sem": aggregate([y - x for _, x, y in kept])["sem"],
                "same_split": not strange,
            }
        )
    if not rows:
        raise ConfigError(
            f"Studies are compared where they share cells and seeds, but {a.name} and {b.name} share none. "
            "Cells are paired by configuration, then by label."
        )
    names = {f"{side}{i}": f"{row['cell']} of {store.name}" for i, row in enumerate(rows)
             for side, store in (("a", a), ("b", b))}  # fmt: skip
    found = analysis.compare(
        pd.DataFrame(values), {f"b{i}": f"a{i}" for i in range(len(rows))}, rope=a.spec().report.rope / 100,
        names=names, shares=percent(metric),
    )  # fmt: skip
    judged = pd.DataFrame(found, columns=pd.Index(_SHOWN)).to_dict("records")
    merged = [{**row, **{str(k): v for k, v in more.items()}} for row, more in zip(rows, judged, strict=True)]
    return Comparison(tuple(merged), tuple(warnings), (len(a.cells()) - len(rows), len(b.cells()) - len(rows)))


_SHOWN = ["difference", "low", "high", "p", "p_signs", "p_signs_least", "p_equal", "seeds", "verdict", "sentence"]


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
