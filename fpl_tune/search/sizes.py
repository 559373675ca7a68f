"""Checks of the sizes of a method, such as its number of experts, against its task."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast, get_type_hints

from fpl_tune.config import RunSpec
from fpl_tune.method import Method, Sizes
from fpl_tune.simulation.dummy import cost_key, dummy_task


def check_of_sizes() -> Callable[[RunSpec], None]:
    """Returns a function that checks that a run's methods accept the sizes of its task, else raises `ConfigError`.

    Towers and data are read once for each setting, and only for methods that check sizes. They do not stay in memory.
    They may be missing: a run reports that when it starts.
    """
    by_key: dict[str, Sizes] = {}

    def check(run: RunSpec) -> None:
        for stage in run.stages:
            method = stage.method
            if method.requires or method.needs == "patches" or type(method).check is not Method.check:
                key = cost_key(run, "clip", "data", "partition", "protocol", "clients")
                if key not in by_key:
                    task = dummy_task(run)
                    sizes = SimpleNamespace(**{name: getattr(task, name) for name in get_type_hints(Sizes)})
                    by_key[key] = cast(Sizes, sizes)
                method.check(by_key[key])

    return check
