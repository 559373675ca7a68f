"""The partition of a study's images over clients, drawn again from a cell's configuration; reads labels only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fpl_tune.config import RunSpec
from fpl_tune.data import load, split


class ClassCounts(NamedTuple):
    """Training images of every client by class."""

    counts: np.ndarray
    """[N, K] training images by client and class."""
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    """Per client, the domain that nearly all (90 %) of its images come from, else "mixed"."""
    hash: str
    """Hash of the split, as in results."""


def class_counts(run: RunSpec, seed: int) -> ClassCounts:
    """The partition of one seed.

    Raises:
        ConfigError, EnvironmentProblem: the data are missing, or differ from those of the study.
    """
    dataset = load(run.data, run.partition.file)
    drawn = split(dataset, run.data, run.partition, seed)
    counts = np.stack([np.bincount(labels, minlength=len(dataset.classes)) for labels in drawn.train_label])
    domains = tuple(
        dataset.domains[int(d)] if np.mean(dataset.train.domain[held] == d) >= 0.9 else "mixed"
        for d, held in zip(drawn.domain, drawn.train, strict=True)
    )
    return ClassCounts(counts, dataset.classes, domains, drawn.hash)
