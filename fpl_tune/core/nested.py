"""Fields of nested dicts by dotted name, for configurations and stored cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fpl_tune.core.errors import ConfigError

GROUPS = ("clip", "data", "partition", "optim", "protocol", "clients", "method")
"""Groups of a run's configuration that are chosen by name."""
MAPPINGS = ("optim.groups", "data.names")
"""Fields that are mappings with keys that users choose."""


def get_field(node: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """A field of a nested dict by its dotted name, or `default`."""
    here: Any = node
    for key in dotted.split("."):
        if not isinstance(here, Mapping) or key not in here:
            return default
        here = here[key]
    return here


def flatten(
    node: Mapping[str, Any], prefix: str = "", whole: Callable[[str, Mapping[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """The fields of a nested dict by dotted name; an empty mapping has none.

    Args:
        node: the dict.
        prefix: prefix of the names.
        whole: called with a dotted name and a mapping; returns True to keep the mapping as a value.
    """
    return dict(leaves(node, prefix, whole))


def leaves(
    node: Mapping[str, Any], prefix: str = "", whole: Callable[[str, Mapping[str, Any]], bool] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields the items of `flatten`; a field that is given twice is yielded twice."""
    for name, value in node.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and not (whole and whole(dotted, value)):
            yield from leaves(value, f"{dotted}.", whole)
        else:
            yield dotted, value


def reject_two_values(node: Any, where: str) -> None:
    """Rejects a field that is given twice, as `optim.lr` and inside `optim`, in a dict or in dicts of its lists.

    Args:
        node: plain values.
        where: the file that holds them, for messages.

    Raises:
        ConfigError: a field has two values.
    """
    if isinstance(node, list):
        for value in node:
            reject_two_values(value, where)
    elif isinstance(node, Mapping):
        fields: dict[str, Any] = {}
        for dotted, value in leaves(node):
            if dotted in fields:
                raise ConfigError(f"{where} gives {dotted} two values, {fields[dotted]!r} and {value!r}. Remove one.")
            fields[dotted] = value
            reject_two_values(value, where)
