"""Fields of nested plain dicts by dotted name, as configurations and stored cells hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fpl_tune.core.errors import ConfigError

GROUPS = ("clip", "data", "partition", "optim", "protocol", "method")
"""Parts of a run that a configuration chooses by name."""
MAPPINGS = ("optim.groups", "data.names")
"""Fields that are mappings themselves, by names that users choose."""


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
    return dict(leaves(node, prefix, whole))


def leaves(
    node: Mapping[str, Any], prefix: str = "", whole: Callable[[str, Mapping[str, Any]], bool] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields what `flatten` returns; a field that is written twice comes twice."""
    for name, value in node.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and not (whole and whole(dotted, value)):
            yield from leaves(value, f"{dotted}.", whole)
        else:
            yield dotted, value


def refuse_two_values(node: Any, where: str) -> None:
    """Refuses a field that is written twice, as `optim.lr` and inside `optim`, in a dict or in those of its lists.

    Args:
        node: plain values.
        where: what holds them, for messages.

    Raises:
        ConfigError: a field has two values.
    """
    if isinstance(node, list):
        for value in node:
            refuse_two_values(value, where)
    elif isinstance(node, Mapping):
        fields: dict[str, Any] = {}
        for dotted, value in leaves(node):
            if dotted in fields:
                raise ConfigError(f"{where} gives {dotted} two values, {fields[dotted]!r} and {value!r}. Remove one.")
            fields[dotted] = value
            refuse_two_values(value, where)
