"""What the configurations of a table cost, known before they run: second objectives of `bench.py search`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from load_table import Floats, Table
from made_table import study_of, table_of
from search_table import search_of

from fpl_tune.core.metrics import TOTAL_BYTES
from fpl_tune.simulation.costs import known_costs

COSTS = {"bytes": TOTAL_BYTES, "flops": "cost/client_flops"}
"""The metrics that a search minimises: bytes of all clients in a run, and operations of one in a round."""
CONSTANT = frozenset({("fedpgp", "bytes"), ("traded", "flops")})
"""Tables and costs that are no problem: FedPGP sends its global prompt alone, whatever the rank of the local part, and
the made table has bytes of its own."""


def priced_table(name: str, cost: str) -> Table:
    """A table with a cost as second objective; a made table that has costs of its own keeps those."""
    table, metric = table_of(name), COSTS[cost]
    return table if table.costs else replace(table, costs={metric: costs_of(study_of(name), metric)})


@cache
def costs_of(study: str, metric: str) -> Floats:
    """The cost of every configuration of a study's table."""
    _, search = search_of(study)
    return np.array([known_costs(search.at(point))[metric] for point in table_of(study).points])
