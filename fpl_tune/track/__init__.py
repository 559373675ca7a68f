"""Records in MLflow: every cell of a study exactly once, made from the study's store, which stays authoritative.

Only this package imports mlflow, and only when something is written. If the tracking server is away, the study goes on,
and missing records are sent by the next run, or by `inspect(fix=True)`.
"""

from fpl_tune.track.recorder import MLflowCallback
from fpl_tune.track.server import experiments
from fpl_tune.track.writer import inspect, inspect_deleted

__all__ = ["MLflowCallback", "experiments", "inspect", "inspect_deleted"]
