"""Hyper-parameter search and ablation studies for personalised federated prompt learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fpl_tune.api import load_study, run, run_study
    from fpl_tune.execute.ray.trainable import FederatedTrainable
    from fpl_tune.search.objective_function import objective
    from fpl_tune.serve import load_prompts

__all__ = ["FederatedTrainable", "__version__", "load_prompts", "load_study", "objective", "run", "run_study"]


def __getattr__(name: str) -> Any:
    """Imports the API on first use: `import fpl_tune` must be instant."""
    if name in ("load_study", "run", "run_study"):
        from fpl_tune import api

        return getattr(api, name)
    if name == "load_prompts":
        from fpl_tune.serve import load_prompts

        return load_prompts
    if name == "FederatedTrainable":
        from fpl_tune.execute.ray.trainable import FederatedTrainable

        return FederatedTrainable
    if name == "objective":
        from fpl_tune.search.objective_function import objective

        return objective
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
