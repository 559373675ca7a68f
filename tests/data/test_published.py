"""Data sets without files, as they are published."""

import numpy as np
import pytest

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import DataSpec, outline
from fpl_tune.data.sources import SOURCES

NAMES = [(name, classes) for name, entry in SOURCES.items() if entry.outline for classes in entry.sizes]


@pytest.mark.parametrize(("name", "classes"), NAMES)
def test_an_outline_has_the_published_sizes(name: str, classes: str) -> None:
    data, entry = outline(DataSpec(name, classes=classes)), SOURCES[name]
    sizes = [sum([size] if isinstance(size, int) else size) for size in entry.sizes[classes].values()]
    assert sum(sizes) - len(data.domains) < len(data.train) + len(data.test) <= sum(sizes)
    for pool in (data.train, data.test):
        counts = np.bincount(pool.domain * len(data.classes) + pool.label)
        per_domain = counts.reshape(len(data.domains), -1)
        assert (np.ptp(per_domain, axis=1) <= 1).all(), "classes of a domain have as many images as each other"
    with pytest.raises(EnvironmentProblem, match="not on this machine"):
        data.train.read(0)
