"""The pace of runs: seconds of a round of one seed, by kind of run, measured on earlier runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fpl_tune.core.errors import ConfigError
from fpl_tune.simulation.dummy import cost_key
from fpl_tune.study.store import Store

TRIAL_SECONDS = 0.5
"""Typical seconds of a trial besides its rounds, for its setup and files."""
_STUDIES = 20  # studies that are read, the newest first


def earlier_paces(root: Path, study: str, kinds: Collection[str]) -> dict[str, float]:
    """Seconds of a round of one seed by kind of run, from a study's own results, or those of other studies for kinds
    that it has not run.

    Args:
        root: the folder of all studies.
        study: the study's name.
        kinds: the cost keys to look for; see `cost_key`.
    """
    paces: dict[str, float] = {}
    newest_first = sorted(root.glob("*/study.yaml"), key=lambda path: -path.stat().st_mtime)
    for path in sorted(newest_first, key=lambda path: path.parent.name != study)[:_STUDIES]:
        missing, rounds, seconds = set(kinds) - paces.keys(), Counter[str](), defaultdict[str, float](float)
        with suppress(ConfigError):  # a damaged study is reported where it is opened itself
            store = Store.open(root, path.parent.name)
            for cell in store.cells() if missing else ():
                kind = cost_key(cell.run)
                for run in store.row(cell).results.values() if kind in missing else ():
                    rounds[kind] += run.rounds
                    seconds[kind] += run.costs["time/seconds"]
        paces |= {kind: seconds[kind] / number for kind, number in rounds.items() if number}
    return paces
