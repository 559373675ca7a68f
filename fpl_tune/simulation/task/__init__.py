"""Task: towers, class names and clients' data of one seed, as a method sees them.

A `World` (towers, data set, cached features) is shared by all seeds and trials of a process; a `ClientTask` adds
one seed's split. Shapes as in `fpl_tune.method`.
"""

from fpl_tune.simulation.task.classes import Classes, PromptCache
from fpl_tune.simulation.task.client_task import ClientTask
from fpl_tune.simulation.task.clients import ClientData, Picked, side_by_side
from fpl_tune.simulation.task.world import SharedData, towers_for

__all__ = [
    "Classes",
    "ClientData",
    "ClientTask",
    "Picked",
    "PromptCache",
    "SharedData",
    "side_by_side",
    "towers_for",
]
