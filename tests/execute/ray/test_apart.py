"""A cluster whose nodes have addresses, names and mounts of their own, as if they were several machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

BODY = "axes: {optim: {lr: [0.01, 0.1, 0.3, 1.0]}}"
Make = Callable[..., Any]


def test_a_study_over_addresses_has_the_figures_of_inline(
    apart: Any, typed: Make, run: Make, figures: Make, tmp_path: Path
) -> None:
    """And what is wrong at a node, or with its address, is named in time."""
    on_head = {"address": apart.address, "within": apart.wires.on("head")}
    ended = typed(BODY, "execution.parallel=null", **on_head, FPL_TUNE_NODE_SECONDS="200")
    assert ended.code == 0, ended.said
    assert run(BODY, "execution.executor=inline", root="inline").done == 4
    pd.testing.assert_frame_equal(figures("typed"), figures("inline"), check_exact=True)
    for name in ("one", "two"):
        assert list((apart.folder / name / "cache").rglob("*.npy")), f"no trial ran at {name}"

    (tmp_path / "typed").rename(tmp_path / "first")
    (tmp_path / "typed").mkdir()
    apart.start("three", cpus=2, read_only=tmp_path / "typed")
    ended = typed(BODY, **on_head, FPL_TUNE_NODE_SECONDS="40")
    assert ended.code == 3, ended.said
    assert "three (10.87.0.5, " in ended.said
    assert "cannot be written ([Errno 30] Read-only file system" in ended.said
    assert "one (" not in ended.said
    assert ended.at_once

    nobody = "10.87.0.99:6379"
    ended = typed(BODY, address=nobody, within=apart.wires.on("head"))
    assert ended.code == 3, ended.said
    assert f"cannot join the Ray cluster at {nobody}: nothing answers" in ended.said
    assert ended.at_once
