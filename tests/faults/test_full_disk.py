"""A disk that takes nothing more: checkpoints can wait, results cannot, and what was finished stays."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.study.store import Store

ONE = "axes: {optim: {lr: [0.1]}}"


class Ear(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.outcome: Outcome | None = None

    def on_warning(self, cell: Any, text: str) -> None:
        self.warnings.append(text)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.outcome = outcome


@pytest.mark.parametrize("limit", [100, 6000])
def test_no_room_for_results_is_exit_code_3_and_the_same_command_continues(
    compose: Any, left: Any, whole: Any, tmp_path: Path, limit: int
) -> None:
    """The system itself refuses: 100 bytes stop the first file, 6,000 the prompts."""
    made, root = compose(ONE), tmp_path / "full"
    undisturbed = whole(made)  # first, so that features are in the cache already
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(EnvironmentProblem) as refused:
            run_study(made, root=root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.exit_code == 3
    for words in ("The disk refuses to store results", "File too large", "name another folder in FPL_TUNE_OUTPUT"):
        assert words in str(refused.value)
    assert not list(root.rglob("result.json"))
    assert not list(root.rglob("*.part"))
    assert run_study(made, root=root).exit_code == 0
    assert left(root) == undisturbed


def test_a_checkpoint_that_cannot_be_written_is_told_and_the_study_goes_on(
    compose: Any, left: Any, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, write, ear = compose(ONE), checkpoint.write, Ear()

    def full(folder: Path, snapshot: Snapshot) -> Path:
        if snapshot.meta["round"] == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return write(folder, snapshot)

    monkeypatch.setattr(checkpoint, "write", full)
    assert run_study(made, root=tmp_path / "full", callbacks=[ear]).exit_code == 0
    assert len(ear.warnings) == 1
    assert "A checkpoint after round 2 could not be written (No space left on device)" in ear.warnings[0]
    assert left(tmp_path / "full") == whole(made)


def test_listeners_hear_the_end_when_a_result_cannot_be_stored(compose, left, whole, tmp_path, monkeypatch) -> None:
    """No record of the study stays open; the cell that was finished before is not run again."""
    made, ear, put, stored = compose(), Ear(), Store.put, []

    def full(self: Store, *args: Any, **kwargs: Any) -> None:
        if len(stored) == 3:  # the second cell's second seed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "result.json")
        stored.append(args[1])
        put(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", full)
        with pytest.raises(EnvironmentProblem, match="No space left on device: result"):
            run_study(made, root=tmp_path / "full", callbacks=[ear])
    assert ear.outcome is not None
    assert (ear.outcome.done, ear.outcome.pending) == (1, 1)
    outcome = run_study(made, root=tmp_path / "full")
    assert (outcome.done, outcome.skipped, outcome.exit_code) == (1, 1, 0)
    assert left(tmp_path / "full") == whole(made)
