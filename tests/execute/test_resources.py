"""What a trial gets on this machine."""

from pathlib import Path

import pytest
import torch

from fpl_tune.config import compose_run
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute import resources
from fpl_tune.execute.resources import setup_of
from fpl_tune.simulation.worlds import threads_of
from fpl_tune.study.grid import expand

from ..conftest import Compose


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(resources, "cores", lambda: 8)


@pytest.mark.usefixtures("two_gpus")
def test_a_trial_on_a_gpu_takes_one_core_and_the_share_that_it_needs(compose: Compose, tmp_path: Path) -> None:
    spec = compose("axes: {}", "execution.executor=ray")
    setup = setup_of(spec, tmp_path, [spec])
    assert (setup.device, setup.threads, setup.parallel, setup.gpus) == ("cuda", 1, 8, None)
    spec = compose("axes: {}", "execution.executor=ray", "execution.gpus=0.25", "execution.threads=3")
    setup = setup_of(spec, tmp_path, [spec])
    assert (setup.gpus, setup.threads) == (0.25, 3)
    spec = compose("axes: {}", "execution.executor=ray", "execution.device=cpu")
    setup = setup_of(spec, tmp_path, [spec])
    assert (setup.device, setup.gpus) == ("cpu", 0.0)


@pytest.mark.usefixtures("two_gpus")
def test_more_than_one_gpu_for_a_trial_is_refused(compose: Compose, tmp_path: Path) -> None:
    spec = compose("axes: {}", "execution.gpus=1.5")
    with pytest.raises(ConfigError, match=r"share of one GPU, at most 1, but is 1.5; a trial trains on one GPU"):
        setup_of(spec, tmp_path, [spec])


def test_gpus_for_trials_on_the_cpu_are_refused(compose: Compose, tmp_path: Path) -> None:
    spec = compose("axes: {}", "execution.gpus=0.5", "execution.device=cpu")
    with pytest.raises(EnvironmentProblem, match=r"gpus=0.5 asks for GPUs, but trials run on the CPU"):
        setup_of(spec, tmp_path, [spec])


def test_an_empty_address_is_none(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `export RAY_ADDRESS=` leaves it."""
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert setup_of(compose("axes: {}", "execution.executor=ray"), tmp_path, []).address is None


def test_trials_have_the_threads_of_the_largest_towers(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all cells, not of the study's own fields; else parallel trials would share cores and slow each other down."""
    monkeypatch.setattr(resources, "cores", lambda: 8)
    large = threads_of(compose_run(["clip=rn50"]))
    assert large > 1
    for towers, threads in (("[compact]", 1), ("[compact, rn50]", large)):
        spec = compose(f"axes: {{clip: {towers}}}", "execution.executor=ray", "execution.device=cpu")
        setup = setup_of(spec, tmp_path, [cell.run for cell in expand(spec)])
        assert (setup.threads, setup.parallel) == (threads, 8 // threads)
