"""Objectives and constraints of a search: validation metrics and costs."""

from __future__ import annotations

import re
from typing import NamedTuple

from fpl_tune.core.errors import ConfigError, did_you_mean
from fpl_tune.core.metrics import objectives


class Constraint(NamedTuple):
    """`metric <= bound`, or `>=` with both sides negated."""

    metric: str
    sign: float
    bound: float

    def excess(self, value: float) -> float:
        """The violation of the constraint by a value; 0 or less where it holds."""
        return self.sign * (value - self.bound)


_CONSTRAINT = re.compile(r"\s*([\w/]+)\s*(<=|>=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


def parse_constraint(text: str) -> Constraint:
    """Reads "comm/total_bytes <= 5e6".

    Raises:
        ConfigError: the text is not of this form, or names a metric that a search must not read.
    """
    found = _CONSTRAINT.fullmatch(text)
    if found is None:
        raise ConfigError(f'A constraint reads "comm/total_bytes <= 5e6", but is {text!r}.')
    metric, relation, bound = found.groups()
    return Constraint(check_metric(metric, "search.constraints"), 1.0 if relation == "<=" else -1.0, float(bound))


def check_metric(name: str, where: str) -> str:
    """Raises `ConfigError` for a metric that nothing reports or that selection may not read."""
    if name.startswith("test"):
        raise ConfigError(
            f"{where} must read validation figures, but is {name!r}: test figures choose nothing. "
            f"Use {name.replace('test/', 'val/', 1)!r}."
        )
    if name not in objectives():
        raise ConfigError(f"{where}: nothing reports {name!r}. {did_you_mean(name, objectives())}")
    return name
