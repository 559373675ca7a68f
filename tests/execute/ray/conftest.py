"""A cluster of a head and two workers on one machine, each a Ray node of its own with its own feature cache."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from hosts import PATIENCE, Cluster

from fpl_tune.execute.callback import Callback, Outcome

from ...conftest import Compose, figures_of
from ...conftest import start_study as run_study


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "dying_method,elsewhere_method")


Run = Callable[..., Outcome]


@pytest.fixture
def run(compose: Compose, tmp_path: Path) -> Run:
    """run(body, *overrides, root=..., callbacks=...): a tiny study, its results below `tmp_path / root`."""

    def go(body: str, *overrides: str, callbacks: Sequence[Callback] = (), root: str = "out") -> Outcome:
        made = compose(body, "execution.executor=ray", "execution.parallel=2", "protocol.rounds=3", *overrides)
        return run_study(made, root=tmp_path / root, callbacks=callbacks)

    return go


@pytest.fixture
def figures(tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """figures(root): what a study found, without what depends on the clock."""
    return lambda root: figures_of(tmp_path / root)


@contextmanager
def started() -> Iterator[Cluster]:
    """A head that runs no trials, and two workers of two cores."""
    folder = Path(tempfile.mkdtemp(prefix="fpl-", dir="/tmp"))
    made = Cluster(folder)
    try:
        made.start("head", cpus=0)
        made.start("one", cpus=2)
        made.start("two", cpus=2)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def _nodes() -> Iterator[Cluster]:
    """On one address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setattr("fpl_tune.execute.ray.nodes.ANSWER_SECONDS", PATIENCE)
        with started() as made:
            yield made


@pytest.fixture
def cluster(_nodes: Cluster) -> Iterator[Cluster]:
    """The nodes head, one and two, which the next test finds again whatever happens in this one."""
    try:
        yield _nodes
    finally:
        _nodes.restore(("head", "one", "two"))
