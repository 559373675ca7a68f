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


<<<<<<< HEAD
_SET = r"(val|test|test/[\w-]+|test/domain/[^/]+)"
_REPORTED = rf"{_SET}/(acc_mean|acc_std|acc_worst10|loss)|train/(loss|parameters)|time/test_seconds"
_REPORTED += "|test/(base_novel_)?harmonic_mean"


def check_reported(name: str) -> None:
    """Raises `ConfigError` for a metric that no record holds, whichever test sets the data has."""
    known = ("val/acc_mean", "test/acc_mean", "test/acc_worst10", "test/harmonic_mean", "test/loss", *MINIMISED)
    if name not in known and not re.fullmatch(_REPORTED, name):
        raise ConfigError(f"report.metric: nothing reports {name!r}. {did_you_mean(name, known)}")


=======
>>>>>>> main
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
