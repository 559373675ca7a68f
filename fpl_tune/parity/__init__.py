"""Compares other code with fpl-tune: `export_world`, run the code on it, `compare_trace`.

`fpl-tune world` exports weights, images and clients; the code runs on them and records a trace; `fpl-tune parity` runs
the same and compares, array by array. `trace` defines traces, `run` computes one, and `compare` compares two.
"""

from fpl_tune.parity.compare import ComparedArray, Comparison, compare_trace
from fpl_tune.parity.run import Clients, SeedRun, trace_of
from fpl_tune.parity.trace import NAMES, Trace, read_trace, write_trace
from fpl_tune.parity.world import World, export_world, read_world

__all__ = [
    "NAMES",
    "Clients",
    "ComparedArray",
    "Comparison",
    "SeedRun",
    "Trace",
    "World",
    "compare_trace",
    "export_world",
    "read_trace",
    "read_world",
    "trace_of",
    "write_trace",
]
