"""What installed packages bring by entry points: methods, data sets and towers.

Group `fpl_tune.methods`: a dataclass derived from `fpl_tune.method.Method`.
Group `fpl_tune.data`: a `fpl_tune.data.sources.Source`.
Group `fpl_tune.towers`: a function (pretrained, *, device, dtype, seed) that returns `fpl_tune.clip.Towers`.
The name of the entry point is the name in the configuration: `method=NAME`, `data.name=NAME`, `clip.name=NAME`.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Literal

from fpl_tune.errors import ConfigError

Kind = Literal["methods", "data", "towers"]


def names(kind: Kind) -> list[str]:
    """Names of the plug-ins of a kind; nothing is imported."""
    return sorted({point.name for point in entry_points(group=f"fpl_tune.{kind}")})


def load(kind: Kind, name: str) -> Any:
    """What a plug-in brings.

    Raises:
        ConfigError: it cannot be imported.
    """
    (point, *_) = entry_points(group=f"fpl_tune.{kind}", name=name)
    try:
        return point.load()
    except Exception as problem:  # the code of others: whatever it raises
        brought = f" of the package {point.dist.name}" if point.dist else ""
        raise ConfigError(
            f"The plug-in {name!r}{brought} cannot be imported from {point.value}: {problem!r}. Mend or remove it."
        ) from problem
