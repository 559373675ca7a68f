"""Draws histories of a study for as long as one likes, and prints the smallest one of each kind of fault.

    python tests/histories/run.py --seed 7 --minutes 10
    python tests/histories/run.py --history FILE        runs one again

A history is printed as JSON; `examples.py` keeps those that once failed. The exit status is 1 if one fails. Those that
take too long, as on a busy machine, are only counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from drawing import histories
from examples import EXAMPLES, REAL, Example
from hypothesis import HealthCheck, Phase, given, seed, settings
from machine import History, Machine, prepare
from mutants import check_all
from promises import LATER

SLOW = "slow"
"""Key of a history with a command that took too long."""
PER_SEED = 10
"""Histories that are drawn from one seed."""


class Fault(NamedTuple):
    """A history, a problem that it has, and the traceback of a command."""

    history: History
    problem: str
    trace: str


@contextmanager
def folder(*, large: bool = False) -> Iterator[Path]:
    """A temporary folder; a small one lies in memory where the machine has such a file system."""
    memory = Path("/dev/shm")
    in_memory = not large and os.access(memory, os.W_OK)
    made = Path(tempfile.mkdtemp(prefix="history-", dir=memory if in_memory else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def outcome(history: History, later: Sequence[str] = ()) -> tuple[list[str], str]:
    """The problems of a history, and the traceback of a command that had one."""
    with folder() as made:
        machine = Machine(history, made, later)
        problems = machine.run()
        trace = machine.aside / "traceback"
        return problems, trace.read_text() if trace.exists() else ""


def smaller(history: History) -> Iterator[History]:
    """Histories with less in them."""
    events = history.events
    for i in range(len(events)):
        yield replace(history, events=[*events[:i], *events[i + 1 :]])
    if history.mlflow:
        yield replace(history, mlflow=False)
    for i, event in enumerate(events):
        for change in _less(event):
            yield replace(history, events=[*events[:i], change, *events[i + 1 :]])
    for part in ("study", "space"):
        for change in _less(getattr(history, part)):
            yield replace(history, **{part: change})


_FIXED = ("defaults", "data", "partition", "execution", "tracking")


def _less(value: Any) -> Iterator[Any]:
    """Values with one part less, or with a smaller one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in _FIXED:
                yield {k: v for k, v in value.items() if k != key}
                for change in _less(inner):
                    yield {**value, key: change}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            if len(value) > 1:
                yield [*value[:i], *value[i + 1 :]]
            for change in _less(inner) if isinstance(inner, dict | list) else ():
                yield [*value[:i], change, *value[i + 1 :]]
    elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
        yield from dict.fromkeys([1, value // 2, value - 1])


def shrink(fault: Fault, later: Sequence[str], until: float) -> Fault:
    """The smallest history that is found in the time and has a problem of the same kind."""
    kind, again = kind_of(fault.problem), True
    while again:
        again = False
        for candidate in smaller(fault.history):
            if time.monotonic() > until:
                return fault
            with suppress(Exception):  # a history that is none
                problems, trace = outcome(candidate, later)
                same = [problem for problem in problems if kind_of(problem) == kind]
                if same:
                    fault, again = Fault(candidate, same[0], trace), True
                    break
    return fault


def kind_of(problem: str) -> str:
    """What makes two problems the same: the key and, of a traceback, the error."""
    key, _, text = problem.partition(": ")
    return f"{key}: {text.split(': ', 1)[-1][:60]}" if key == "traceback" else key


def faults_of(history: History, later: Sequence[str]) -> list[Fault]:
    """The first fault of each kind in a history."""
    problems, trace = outcome(history, later)
    return [*{kind_of(problem): Fault(history, problem, trace) for problem in reversed(problems)}.values()]


def again(example: Example, later: Sequence[str]) -> tuple[int, list[Fault]]:
    """Runs a history that once failed; those that fail still must fail in the same way."""
    if not example.red:
        return 1, faults_of(example.history, later)
    found = faults_of(example.history, [key for key in later if key != example.red])
    if any(kind_of(fault.problem).startswith((example.red, SLOW)) for fault in found):
        return 1, []
    return 1, [Fault(example.history, f"mended: {example.name} no longer fails by {example.red}: remove its mark", "")]


def drawn(number: int, later: Sequence[str], until: float) -> tuple[int, list[Fault]]:
    """The number of histories that a seed gives, and their faults."""
    count, found = 0, list[Fault]()

    @seed(number)
    @settings(
        max_examples=PER_SEED,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    @given(history=histories())
    def draw(history: History) -> None:
        nonlocal count
        if time.monotonic() < until:
            count += 1
            found.extend(faults_of(history, later))

    draw()
    return count, found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first histories that are drawn")
    parser.add_argument("--minutes", type=float, default=1.0, help="time in which histories are drawn")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="most histories that are drawn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="histories side by side")
    parser.add_argument("--kept", action="store_true", help="first run the histories that once failed")
    parser.add_argument("--ray", action="store_true", help="run those under Ray, and nothing else")
    parser.add_argument("--first", action="store_true", help="end at the first fault")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds in which a history is made smaller")
    parser.add_argument("--later", help="keys of known faults that are left out; default: those in LATER")
    parser.add_argument("--history", type=Path, help="run the history in this file, and nothing else")
    parser.add_argument("--mutants", nargs="*", help="say which wrong edits of the package histories find")
    chosen = parser.parse_args()
    if chosen.mutants is not None:
        with folder(large=True) as made:
            return bool(check_all(made, chosen.minutes, chosen.seed, chosen.jobs, chosen.kept, chosen.mutants))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with folder() as made:
        prepare(made)
    later = tuple(LATER if chosen.later is None else chosen.later.split(","))
    if chosen.ray:
        found = [fault for example in REAL for fault in again(example, later)[1]]
        found = [fault for fault in found if kind_of(fault.problem) != SLOW]
        print(*(f"{fault.problem}\n{fault.history}\n{fault.trace}" for fault in found), sep="\n")
        print(f"{len(found)} faults in {len(REAL)} histories")
        return bool(found)
    if chosen.history:
        problems, trace = outcome(History(**json.loads(chosen.history.read_text())), later)
        print(trace, *problems, sep="\n")
        return bool(problems)
    faults, times = dict[str, Fault](), Counter[str]()
    count, began = 0, time.monotonic()
    until = began + 60 * chosen.minutes
    with get_context("fork").Pool(chosen.jobs) as pool:
        kept = pool.imap(partial(again, later=later), EXAMPLES if chosen.kept else ())
        new = pool.imap(partial(drawn, later=later, until=until), range(chosen.seed, sys.maxsize))
        for ran, found in itertools.chain(kept, new):
            count += ran
            for fault in found:
                kind = kind_of(fault.problem)
                times[kind] += 1
                if kind == SLOW:
                    continue
                if kind not in faults or len(str(fault.history)) < len(str(faults[kind].history)):
                    faults[kind] = fault
            if (
                time.monotonic() > until
                or count >= chosen.count + len(EXAMPLES) * chosen.kept
                or (faults and chosen.first)
            ):
                break
        pool.terminate()
    rate, slow = 60 * count / (time.monotonic() - began), times[SLOW]
    for kind, fault in faults.items():
        small = fault if chosen.first else shrink(fault, later, time.monotonic() + chosen.shrink)
        print(f"\n{kind} ({times[kind]} in {count} histories)\n  {small.problem}\n  {small.history}")
        if small.trace:
            print("    " + "\n    ".join(small.trace.strip().splitlines()[-8:]))
        sys.stdout.flush()
    print(f"\n{count} histories, {rate:.0f} a minute, {slow} too slow, {len(faults)} kinds of faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
