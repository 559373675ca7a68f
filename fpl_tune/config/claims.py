"""Claims that a study checks: qualitative statements of papers as comparisons of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from fpl_tune.errors import ConfigError
from fpl_tune.spec import SPEC, join_name, shown, validated

Points = Annotated[float, Field(allow_inf_nan=False)]
Picks = dict[str, Any]
"""Axis -> a value or a list of values. An axis may be named by its last part, a bundle by its label."""


@dataclass(frozen=True, config=SPEC)
class ClaimSpec:
    """One claim: each of `cells` is better than each of `versus` by more than a margin, or level with it."""

    says: str
    """The claim in one sentence."""
    cells: Picks
    """Cells that are claimed to be better."""
    versus: Picks
    """Cells that they are compared with; on axes that it does not name, they stand where `cells` stand."""
    source: str = ""
    """Table or figure that shows it."""
    at: Picks = field(default_factory=dict)
    """Values of axes that both sides share."""
    margin: Points = 0.0
    """Smallest difference that supports the claim: points of accuracies, units of other metrics."""
    within: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Instead of a margin: the largest difference, of either sign, at which cells count as level."""
    metric: str | None = None
    """None: the report's."""

    def __post_init__(self) -> None:
        if self.within is not None and self.margin:
            raise ValueError("A claim has a margin or a range `within`, but has both. Remove one.")


def read_claims(nodes: Any) -> dict[str, ClaimSpec]:
    """Reads `report.claims`: name -> claim.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type or outside its range.
    """
    if not isinstance(nodes, Mapping):
        raise ConfigError(f"report.claims must be a mapping of names to claims, but is {shown(nodes)}.")
    found: dict[str, ClaimSpec] = {}
    for name, node in nodes.items():
        where = join_name("report.claims", name)
        if not isinstance(node, Mapping):
            raise ConfigError(f"A claim has the fields says, cells and versus, but {where} is {shown(node)}.")
        if missing := [part for part in ("says", "cells", "versus") if not node.get(part)]:
            raise ConfigError(f"{where} lacks {missing[0]}. A claim has the fields says, cells and versus.")
        found[str(name)] = validated(ClaimSpec, node, where)
    return found
