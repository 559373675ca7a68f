"""Nodes that join during a study are asked what those of its start were; one that cannot do its part gets no trials."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ray.exceptions import RayError

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.ray import nodes as survey

if TYPE_CHECKING:  # the actor of shares must not load torch
    from fpl_tune.execute.job import Setup

AGAIN_SECONDS = 60.0
"""A node that failed is asked again after so long: it may have been mended."""


class NodeRefused(UserWarning):
    """A node joined that cannot run trials."""


class Newcomers:
    """Which nodes may run trials.

    Args:
        setup: of the study, as the nodes at its start allow it.
        known: ids of those nodes.
    """

    def __init__(self, setup: Setup, known: Sequence[str]) -> None:
        self._setup = setup
        self._fit = set(known)
        self._refused: dict[str, float] = {}
        """When each was asked last."""
        self._asking: threading.Thread | None = None

    @property
    def refused(self) -> list[str]:
        """Ids of the living nodes that are to get no trials."""
        return sorted(self._refused)

    def fit(self, alive: Sequence[str]) -> set[str]:
        """Those of the living nodes that may run trials; asks, without waiting, those that nobody has asked."""
        self._refused = {node: when for node, when in self._refused.items() if node in alive}
        late = time.monotonic() - AGAIN_SECONDS
        open_ = [node for node in alive if node not in self._fit and self._refused.get(node, late) <= late]
        if open_ and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(open_,), name="newcomers", daemon=True)
            self._asking.start()
        return self._fit.intersection(alive)

    def _ask(self, ids: Sequence[str]) -> None:
        """Runs beside the study. What breaks while it asks is asked again."""
        setup, storage = self._setup, survey.storage_of(self._setup)
        with suppress(EnvironmentProblem, RayError):
            nodes = survey.survey(storage, setup.cache_dir, setup.data_roots, only=ids)
            wrong = {node.id: (node, finding, remedy) for node, finding, remedy in survey.findings(nodes, storage)}
            for node in nodes:
                if node.id not in wrong or not node.carries(setup.threads, setup.gpus or 0.0):
                    self._refused.pop(node.id, None)
                    self._fit.add(node.id)
                    continue
                _, finding, remedy = wrong[node.id]
                self.refuse(node.id, node.name, finding, remedy)

    def refuse(self, node: str, name: str, finding: str, remedy: str) -> None:
        """A node is to get no trials; said once."""
        if node not in self._refused:
            text = f"{name} has joined, but gets no trials: it {finding}. {remedy}"
            warnings.warn(NodeRefused(text), stacklevel=2)
        self._refused[node] = time.monotonic()
        self._fit.discard(node)

    def close(self) -> None:
        """Waits until nobody is asked any more."""
        if self._asking is not None:
            self._asking.join(survey.ANSWER_SECONDS + 5)
