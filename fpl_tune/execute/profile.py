"""The pace of runs: seconds of a round of one seed, by kind of run, as earlier runs took them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from fpl_tune import config
from fpl_tune.config import RunSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.study.store import Store

_STUDIES = 20  # studies that are read, the newest first


def cost_key(run: RunSpec, *groups: str) -> str:
    """The key of a run, or of some of its groups. Runs of equal key cost the same per round: only hyper-parameters that
    are sizes matter."""
    full = config.as_dict(run)
    node = {name: full[name] for name in ("clip", "data", "partition", "protocol", "method", "stages")}
    node["protocol"] = {k: v for k, v in node["protocol"].items() if k != "rounds"}
    node["data"] = {k: v for k, v in node["data"].items() if k != "root"}
    node["optim"] = {"batch": run.optim.batch, "name": run.optim.name}
    node["method"] = _sizes(node["method"])
    return json.dumps({name: node[name] for name in groups or node}, sort_keys=True)


def _sizes(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _sizes(v) for k, v in node.items() if not isinstance(v, float)}
    return node


class Paces:
    """Seconds of a round of one seed, by kind of run: the mean of what was added."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)

    def add(self, kind: str, rounds: int, seconds: float) -> None:
        self._rounds[kind] += rounds
        self._seconds[kind] += seconds

    def add_study(self, store: Store, kinds: Collection[str] | None = None) -> None:
        """Adds the results of a study, of some kinds of runs or of all."""
        for cell in store.cells():
            kind = cost_key(cell.run)
            if kinds is None or kind in kinds:
                for result in store.seed_results(cell).values():
                    self.add(kind, result["rounds"], result["time/seconds"])

    def of(self, *kinds: str) -> float | None:
        """Seconds of a round of one seed of these kinds; None if none has run a round."""
        rounds = sum(self._rounds[kind] for kind in kinds)
        return sum(self._seconds[kind] for kind in kinds) / rounds if rounds else None


def earlier_paces(root: Path, study: str, kinds: Collection[str]) -> Paces:
    """Reads paces from a study's own results, and from other studies for kinds that it has not run.

    Args:
        root: the folder of all studies.
        study: the study's name.
        kinds: the kinds that are wanted; see `cost_key`.
    """
    paces = Paces()
    others = [path.parent for path in root.glob("*/study.yaml") if path.parent.name != study]
    newest = sorted(others, key=lambda folder: -folder.stat().st_mtime)[:_STUDIES]
    for name in (study, *(folder.name for folder in newest)):
        unknown = [kind for kind in kinds if paces.of(kind) is None]
        if unknown and (store := Store(root, name)).exists:
            with suppress(ConfigError):  # a damaged study is reported where it is opened itself
                paces.add_study(store, unknown)
    return paces
