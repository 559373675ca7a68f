"""A stand-in for the simulation: it trains nothing, and its figures follow from configuration, seed and round.

`StandIn` takes the place of `Simulation` in `JobRun`. Its records have the names of real ones. What a cell does follows
from the field `a` of the method `mine:Mine`, which `user_files` gives: curves that rise, cross, tie or reach 1.0, and
troubles that pass or stay. Methods of the package can run too; their place on the curve is drawn from their fields.

Each round that is computed adds a line to the file `rounds` of the folder in `HISTORY_ASIDE`, so that a history can
count what ran twice.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fpl_tune import config
from fpl_tune.config import RunSpec
from fpl_tune.core.device import OutOfMemory
from fpl_tune.core.errors import ConfigError
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.divergence import Diverged

ASIDE = "HISTORY_ASIDE"
CLIENTS = 3
TROUBLES = {
    0.96: "diverges at once",
    0.92: "one seed diverges",
    0.88: "diverges late",
    0.84: "memory once",
    0.82: "is refused",
    0.80: "fails",
    0.76: "fails once",
}
"""From which value of `a` on (up to the next one, or 1) a cell has a trouble."""

_FILES = {
    "mine.py": """
from typing import ClassVar, Literal

from base import Parent
import fpl_tune.method as fl


@fl.dataclass
class Mine(Parent):
    own_metrics = (fl.Metric("mine/score", maximize={higher}),)
    version: ClassVar[int] = {source} + 10 * {higher}
    a: float = 0.5
    b: Literal["plain", "crossing", "tie", "perfect"] = "plain"
    c: int = 3


@fl.dataclass
class Other(Parent):
    version: ClassVar[int] = {source} + 10 * {higher}
    a: float = 0.45
    d: float = 1.0
""",
    "base.py": """
from typing import ClassVar

import fpl_tune.method as fl
from fpl_tune.methods.promptfl import PromptFL


@fl.dataclass
class Parent(PromptFL):
    parent_version: ClassVar[int] = {parent}
""",
    "photos.py": """
from fpl_tune.data.sources import DISJOINT, SOURCES, Source

VERSION = {data}


def load(spec):
    return SOURCES["shapes"].loader(spec)


photos = Source("drawn images", load, DISJOINT, "none", "here")
""",
}


def user_files(*, source: int = 1, parent: int = 1, data: int = 1, higher: bool = True) -> dict[str, str]:
    """The user's modules by name, with versions of the method, of the class it derives from, and of the data.

    Of `mine:Mine`, `a` is the place on the curve, `b` the form of the curve, and `c` a whole number. The method alone
    reports `mine/score`, of which more is better if `higher`.
    """
    return {n: t.format(source=source, parent=parent, data=data, higher=higher) for n, t in _FILES.items()}


def noise(*key: object) -> float:
    """A number in [0, 1) that follows from a key."""
    return zlib.crc32(repr(key).encode()) / 2**32


def place_of(run: RunSpec) -> float:
    """The place of a run on the curve, in [0, 1)."""
    a = getattr(run.method, "a", None)
    return noise(repr(run.method), run.optim.lr) * 0.75 if a is None else float(a)


def trouble_of(run: RunSpec) -> str:
    """The trouble of a run; empty for none."""
    return trouble_at(place_of(run))


def trouble_at(place: float) -> str:
    """The trouble of a run at a place on the curve."""
    return next((name for edge, name in TROUBLES.items() if place >= edge), "")


def versions_of(run: RunSpec) -> tuple[int, ...]:
    """Versions of the sources of the method and of the data."""
    kind, module = type(run.method), sys.modules.get("photos")
    data = module.VERSION if module is not None and run.data.name.startswith("photos:") else 0
    return getattr(kind, "version", 0), getattr(kind, "parent_version", 0), data


def figures(run: RunSpec, seed: int, number: int) -> dict[str, Any]:
    """The record of a seed after a round."""
    form, rounds = getattr(run.method, "b", "plain"), max(1, run.rounds)
    key = (repr(run.method), run.optim.lr, run.optim.batch, run.data.shots, versions_of(run))
    level = 0.8 - (place_of(run) - 0.4) ** 2 + 0.05 * noise(key) + 0.01 * ((run.data.shots or 0) % 7)
    share = number / rounds
    reached = level * (1 - 0.5 * 0.4**number)
    if form == "crossing":
        reached = (1.2 - level) * (1 - share) + level * share
    shift = 0.0 if form == "tie" else 0.04
    val, test = (reached + shift * (noise(key, seed, number, part) - 0.5) for part in ("val", "test"))
    if form == "tie":
        val, test = 0.5 + 0.125 * (seed % 2), 0.5 + 0.0625 * (seed % 3) + 0.001 * number
    elif form == "perfect":
        val, test = (1.0, 1.0) if number == rounds else (val, test)
    record: dict[str, Any] = {"seed": seed, "round": number}
    if number % run.protocol.eval_every == 0 or number == rounds:
        record |= _of_set("test", test) | {"mine/score": 1 - test, "time/test_seconds": 0.01}
        record |= _of_set("val", val) if run.data.val else {}
    sent = 1000 * (1 + int(getattr(run.method, "c", 1)))
    record |= {"train/loss": 1.0 / number, "comm/up_bytes": sent * number, "comm/down_bytes": 2 * sent * number}
    return {**record, "time/seconds": 0.5 * number}


def _of_set(name: str, accuracy: float) -> dict[str, Any]:
    """The figures of a set of images; one client is better than the others, and one worse."""
    accuracy = min(1.0, max(0.0, accuracy))
    apart = min(0.05, accuracy, 1 - accuracy)
    clients = [accuracy - apart, accuracy, accuracy + apart]
    return {
        f"{name}/acc_mean": accuracy,
        f"{name}/acc_min": min(clients),
        f"{name}/acc_worst10": min(clients),
        f"{name}/acc_std": apart,
        f"{name}/loss": 2.0 - accuracy,
        f"{name}/ece": 0.3 * (1 - accuracy),
        f"clients/{name}": clients,
    }


class StandIn:
    """Takes the place of `Simulation`: the same arguments, and what `JobRun` reads of it.

    Raises:
        ConfigError: the method refuses the run.
    """

    world = None

    def __init__(self, run: RunSpec, seeds: Sequence[int], **_: Any) -> None:
        self.run, self.seeds = run, list(seeds)
        self.round, self.rounds = 0, run.rounds
        self.tasks = [SimpleNamespace(split_hash=f"split{seed}") for seed in seeds]
        self._cell, self._aside = config.identity(run), Path(os.environ[ASIDE])
        self._trouble = trouble_of(run)
        if self._trouble == "is refused":
            with (self._aside / "refused").open("a") as log:
                log.write(f"{self._cell}\n")
            raise ConfigError(f"a must not be {place_of(run)}.")

    @property
    def done(self) -> bool:
        return self.round >= self.rounds

    def step(self) -> list[dict[str, Any]]:
        """The records of the next round.

        Raises:
            Diverged, RuntimeError, OutOfMemory: the run's trouble.
        """
        number = self.round + 1
        for seed in self.seeds:
            self._suffer(seed, number)
        with (self._aside / "rounds").open("a") as log:
            versions = ".".join(map(str, versions_of(self.run)))
            log.write("".join(f"{self._cell} {seed} {number} {versions}\n" for seed in self.seeds))
        self.round = number
        return [figures(self.run, seed, number) for seed in self.seeds]

    def _suffer(self, seed: int, number: int) -> None:
        late = max(1, self.rounds - 1)
        match self._trouble:
            case "diverges at once":
                self._diverge(seed, number)
            case "one seed diverges" if seed == 2:
                self._diverge(seed, number)
            case "diverges late" if number == late:
                self._diverge(seed, number)
            case "fails" if number == late:
                raise RuntimeError("it fails, as it always does")
            case "fails once" if number == late and self._first(seed):
                raise RuntimeError("it fails once")
            case "memory once" if number == 1 and self._first(seed):
                raise OutOfMemory("one step of one client does not fit")
            case _:
                pass

    def _diverge(self, seed: int, number: int) -> None:
        with (self._aside / "diverged").open("a") as log:
            log.write(f"{self._cell} {seed}\n")
        raise Diverged(f"the loss of seed {seed} is nan in round {number}")

    def _first(self, seed: int) -> bool:
        """Whether this is the first time that a seed gets here."""
        mark = self._aside / f"once-{self._cell}-{seed}"
        first = not mark.exists()
        mark.touch()
        return first

    def prompts(self) -> dict[int, dict[str, torch.Tensor]]:
        return {seed: {"shared.prompt": torch.full((1, 2), float(self.round))} for seed in self.seeds}

    def deployed(self) -> dict[int, tuple[dict[str, torch.Tensor], dict[str, str]]]:
        return {seed: ({}, {}) for seed in self.seeds}

    def snapshot(self) -> Snapshot:
        return Snapshot({"state": torch.zeros(2)}, {"round": self.round, "cell": self._cell, "seeds": self.seeds})

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from a snapshot.

        Raises:
            ValueError: it is of another cell or other seeds.
        """
        if (snapshot.meta["cell"], snapshot.meta["seeds"]) != (self._cell, self.seeds):
            raise ValueError("a checkpoint of another trial")
        self.round = int(snapshot.meta["round"])
