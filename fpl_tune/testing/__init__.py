"""For authors of plug-ins: contracts of methods, data sets and towers, and tiny towers and tasks for tests."""

from fpl_tune.testing.contract import CONTRACT, check_method
from fpl_tune.testing.extensions import check_dataset, check_towers
from fpl_tune.testing.rounds import Toy, assert_same, play, toy
from fpl_tune.testing.toys import EVERYONE, toy_task, toy_towers

__all__ = [
    "CONTRACT",
    "EVERYONE",
    "Toy",
    "assert_same",
    "check_dataset",
    "check_method",
    "check_towers",
    "play",
    "toy",
    "toy_task",
    "toy_towers",
]
