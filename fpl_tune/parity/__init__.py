"""Parity: other people's code on our world, and what it computes beside what we compute.

`fpl-tune world` exports weights, images and clients; the code runs on them and records a trace; `fpl-tune parity` runs
the same and compares.
"""

from fpl_tune.parity.compare import Comparison, Row, compare_trace
from fpl_tune.parity.run import Cell, Clients, trace_of
from fpl_tune.parity.trace import NAMES, Trace, read_trace, write_trace
from fpl_tune.parity.world import World, export_world, read_world

__all__ = [
    "NAMES",
    "Cell",
    "Clients",
    "Comparison",
    "Row",
    "Trace",
    "World",
    "compare_trace",
    "export_world",
    "read_trace",
    "read_world",
    "trace_of",
    "write_trace",
]
