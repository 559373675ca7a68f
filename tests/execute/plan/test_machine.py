"""Plans for another machine."""

from pathlib import Path

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.execute.plan.machine import Machine
from fpl_tune.execute.plan.plan import StudyPlan
from fpl_tune.execute.plan.plan import make_plan as planned
from fpl_tune.search.compose import ComposedStudy

from ...conftest import Compose

GRID = "axes: {optim: {lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}}"


def test_more_and_faster_gpus_take_less_time(compose: Compose, tmp_path: Path) -> None:
    study = ComposedStudy.of(compose(GRID, "execution.gpus=1", "protocol.rounds=1000"))

    def plan(*machine: str | int) -> StudyPlan:
        return planned(study, root=tmp_path, machine=Machine(*machine))  # pyright: ignore[reportArgumentType]

    one, two, four = plan("h200"), plan("h200", 2), plan("h200", 2, 2)
    assert [each.parallel for each in (one, two, four)] == [1, 2, 4]
    assert (one.seconds - 15) == pytest.approx(2 * (two.seconds - 15)) == pytest.approx(4 * (four.seconds - 15))
    assert plan("l4").seconds > one.seconds
    assert "An estimate for 2 nodes with 2 GPUs (h200) each, 1 trial on a GPU at a time. " in four.sentence()


def test_trials_that_share_a_gpu_slow_each_other_down(compose: Compose, tmp_path: Path) -> None:
    alone, shared = (
        planned(ComposedStudy.of(compose(GRID, f"execution.gpus={share}")), root=tmp_path, machine=Machine("a100"))
        for share in (1, 0.25)
    )
    assert (alone.parallel, shared.parallel) == (1, 4)
    assert (alone.seconds - 15) == pytest.approx(1.5 * (shared.seconds - 15))


def test_the_measured_steps_come_back() -> None:
    """pFedMoAP on RN50 in bfloat16, 10 clients: a replayed step of 100 classes, whose clients keep 47 MB each."""
    assert Machine("h200").step_seconds(1, 10, 46_660_818, "bfloat16") == pytest.approx(4.3e-3, rel=0.05)


def test_encoded_images_are_not_counted_again(compose: Compose, tmp_path: Path) -> None:
    study = ComposedStudy.of(compose(GRID, "data=dtd", "data.root=/not/here"))
    plan = planned(study, root=tmp_path, machine=Machine("h100"))
    assert plan.images == 2820 + 1692
    assert "Before that, 4,512 images are encoded once" in plan.sentence()


def test_a_gpu_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'h100'"):
        Machine("h10")
