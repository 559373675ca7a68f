"""Confirmation: the found and published points of a search run again on seeds that it did not use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import report
from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.execute.plan.plan import make_plan
from fpl_tune.search.gains import gains
from fpl_tune.study.store import Store

Compose = Callable[..., Any]

BODY = """
axes: {method: [promptfl, coop]}
search: {sampler: random, seed: 1, trials: 3, only: [optim.lr]}
references: [{method: zeroshot}]
tracking: {enabled: false}
"""
ASK = ("confirm=tiny", "seeds=[5,6]")


def improve_last(store: Store) -> None:
    """Makes the last trial, a random one, the best of its search."""
    cell = max((c for c in store.cells() if c.role == "trial"), key=lambda c: c.number)
    for seed in (1, 2):
        result = store.result(cell, seed)
        assert result is not None
        for rule in result["rules"].values():
            rule["val/acc_mean"] = 1.5
        store.put(cell, seed, store.history(cell, seed), result)


def test_found_and_published_points_run_again_on_fresh_seeds(compose: Compose, tmp_path: Path) -> None:
    for overrides, message in (
        (ASK, "confirm=tiny needs a study whose search has results. Run fpl-tune study tiny first"),
        ((), None),
        ((*ASK, "seeds=[2,3]"), r"seeds that tiny did not use, but both have \[2\]"),
    ):
        spec = compose(BODY, *overrides, name="tiny" if not overrides else "again")
        if message is None:
            run_study(spec, root=tmp_path)
            improve_last(Store.open(tmp_path, "tiny"))
            continue
        for call in (run_study, make_plan):
            with pytest.raises(ConfigError, match=message):
                call(spec, root=tmp_path)
    spec = compose(BODY, *ASK, name="again")
    wanted: dict[str, str] = {}
    for gain in gains(Store.open(tmp_path, "tiny")):
        assert gain.published is not None
        wanted.setdefault(gain.published.id, f"{gain.part}, published")
        wanted.setdefault(gain.best.id, f"{gain.part}, found")
    assert len(wanted) > 2
    plan = make_plan(spec, root=tmp_path)
    assert run_study(spec, root=tmp_path).done == len(wanted) + 1 == plan.totals()["cells"]
    store = Store.open(tmp_path, "again")
    assert {cell.id: cell.label for cell in store.cells() if cell.role == "cell"} == wanted
    assert [cell.label for cell in store.cells() if cell.role == "reference"] == ["zeroshot"]
    assert all(store.seeds(cell) == [5, 6] for cell in store.cells())
    assert set(store.frame()["seed"]) == {5, 6}
    page = report.build(store).read_text(encoding="utf-8")
    assert all(label in page for label in wanted.values())
