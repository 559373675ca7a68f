"""Tiny studies on the embedded world: PromptFL, four clients, two rounds."""

from __future__ import annotations

import pytest


@pytest.fixture
def head() -> str:
    return """
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
