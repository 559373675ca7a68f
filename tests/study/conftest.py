"""Tiny studies on the embedded world: PromptFL, four clients, two rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fpl_tune import config
from fpl_tune.config import StudySpec

HEAD = """
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 2, epochs: 1}
execution: {executor: inline, checkpoint_every: 2}
seeds: 2
"""

Composed = tuple[StudySpec, dict[str, Any]]
Compose = Callable[..., Composed]


@pytest.fixture(autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path_factory.getbasetemp().parent / "features"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def compose(tmp_path: Path) -> Compose:
    """compose(body, *overrides): the head above, then `body`."""

    def make(body: str = "axes: {optim: {lr: [0.01, 0.1]}}", *overrides: str, name: str = "tiny") -> Composed:
        path = tmp_path / f"{name}.yaml"
        path.write_text(HEAD + body)
        return config.compose_study(str(path), overrides)

    return make
