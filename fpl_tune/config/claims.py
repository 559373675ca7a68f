"""Claims that a study checks: qualitative statements of papers as comparisons of cells."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from fpl_tune.spec import SPEC

Points = Annotated[float, Field(allow_inf_nan=False)]
Picks = dict[str, Any]
"""Axis -> a value or a list of values. An axis may be named by its last part, a bundle by its label."""


@dataclass(frozen=True, config=SPEC)
class ClaimSpec:
    """One claim: each of `cells` is better than each of `versus` by more than a margin, or level with it."""

    says: Annotated[str, Field(min_length=1)]
    """The claim in one sentence."""
    cells: Annotated[Picks, Field(min_length=1)]
    """Cells that are claimed to be better."""
    versus: Annotated[Picks, Field(min_length=1)]
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
