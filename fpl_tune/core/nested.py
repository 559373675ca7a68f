"""Fields of nested plain dicts by dotted name, as configurations and stored cells hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

GROUPS = ("clip", "data", "partition", "optim", "protocol", "method")
"""Parts of a run that a configuration chooses by name."""


def get_field(node: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """A field of a composed dict by its dotted name, or `default`."""
    here: Any = node
    for part in dotted.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return default
        here = here[part]
    return here


def flatten(
    node: Mapping[str, Any], prefix: str = "", whole: Callable[[str, Mapping[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """The fields of a nested dict by dotted name; an empty mapping has none.

    Args:
        node: the dict.
        prefix: of the names.
        whole: whether a mapping is kept as a value, by its dotted name and itself.
    """
    found: dict[str, Any] = {}
    for name, value in node.items():
        dotted = f"{prefix}{name}"
        inside = isinstance(value, Mapping) and not (whole and whole(dotted, value))
        found |= flatten(value, f"{dotted}.", whole) if inside else {dotted: value}
    return found
