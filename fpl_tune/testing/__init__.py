"""For tests: tiny towers of the true architecture, contracts of methods, data sets and towers, and traces of runs."""

from fpl_tune.testing.contract import CONTRACT, check_method
from fpl_tune.testing.extensions import check_dataset, check_towers
from fpl_tune.testing.parity import Comparison, compare_trace, export_world, read_trace, trace_of, write_trace
from fpl_tune.testing.rounds import Toy, assert_same, play, toy
from fpl_tune.testing.toys import EVERYONE, toy_task, toy_towers

__all__ = [
    "CONTRACT",
    "EVERYONE",
    "Comparison",
    "Toy",
    "assert_same",
    "check_dataset",
    "check_method",
    "check_towers",
    "compare_trace",
    "export_world",
    "play",
    "read_trace",
    "toy",
    "toy_task",
    "toy_towers",
    "trace_of",
    "write_trace",
]
