"""Hyper-parameter search and ablation studies for personalised federated prompt learning."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fpl_tune.core.version import __version__

if TYPE_CHECKING:
    from fpl_tune.api import encode_prompts, load_study, run, run_study
    from fpl_tune.clip import load_towers
    from fpl_tune.execute.ray.trainable import FederatedTrainable
    from fpl_tune.search.objective_function import objective
    from fpl_tune.simulation.serve import load_prompts

if os.path.expanduser("~") == "~":  # no HOME and no entry in passwd, as in containers: MLflow and Ray need one
    os.environ["HOME"] = os.getcwd()

_HOME = {
    "encode_prompts": "api",
    "load_prompts": "simulation.serve",
    "load_study": "api",
    "load_towers": "clip",
    "run": "api",
    "run_study": "api",
    "FederatedTrainable": "execute.ray.trainable",
    "objective": "search.objective_function",
}
__all__ = [
    "FederatedTrainable", "__version__", "encode_prompts", "load_prompts", "load_study", "load_towers", "objective",
    "run", "run_study",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports the API on first use: `import fpl_tune` must be instant."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
