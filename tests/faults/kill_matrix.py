"""A program: kills studies before each of their file operations and compares what the same command then leaves.

`python tests/faults/kill_matrix.py [--case NAME]... [--every N] [--jobs N] [--folder FOLDER] [--out FILE]` prints, for
each case, the points, at how many of them the study ended as if it had not been killed, and the most rounds of a seed
that were repeated; then every point that differs. `--out` writes the same as JSON, and in a folder that is named the
studies that differ stay.

A point is a file operation below the study's output folder. There the process kills itself (SIGKILL), the same command
runs to its end, and its store is compared with that of a calm run. Every fourth point is run
once more, with a second kill on the way of the run that continues. Operations are heard from Python's audit events, so
that none is left out, whichever library makes it. Everything is the platform's own but training: a step costs nothing,
and its figures follow from the cell, the seed and the round.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NAME = "tiny"
SEEDS, ROUNDS = 2, 4
HEAD = f"""
defaults:
  - /study
  - override /method: promptfl
  - _self_
data: {{train_per_class: 6, test_per_class: 1, shots: 2, domains: [clipart]}}
partition: {{n_clients: 2}}
protocol: {{rounds: {ROUNDS}, epochs: 1}}
seeds: {SEEDS}
"""
GRID = "axes: {optim: {lr: [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08]}}\n"
SEARCH = """axes: {{}}
search: {{sampler: {}, budget: {}, only: [optim.lr, method.n_ctx]}}
prune: {{rule: halving, first_rung: 1, reduction: 2}}
"""
LIMIT = 60
"""Seconds that a run may take."""
LEFT_OVER = ("*.part", "*.rename")
"""What no finished study has in its folder."""


@dataclass(frozen=True)
class Case:
    """A study."""

    body: str
    leg: int
    """Most seeds that are trained together."""
    interval: int
    """Rounds between two checkpoints."""

    @property
    def text(self) -> str:
        return f"{HEAD}execution: {{executor: inline, device: cpu, checkpoint_every: {self.interval}}}\n{self.body}"


LEGS = {
    "grid-joint": (GRID, SEEDS),
    "tpe-split": (SEARCH.format("{name: tpe, n_startup_trials: 3}", 2), SEEDS),
    # By its name, each start would try the sampler out; `auto` is a Gaussian process over these two fields. It models
    # from the seventh trial on, which a smaller budget does not pay.
    "gp-split": (SEARCH.format("auto", 3), SEEDS),
    "random-split": (SEARCH.format("random", 2), SEEDS),
}
"""In a grid the seeds of a cell are trained together, and those that confirm a search; in a halved trial the first one
alone, then the other."""
CASES = {f"{name}-{every}": Case(body, leg, every) for name, (body, leg) in LEGS.items() for every in (1, 2)}


@dataclass
class Point:
    """A point of a case, and what came of it."""

    number: int
    again: int | None
    """Operation of the run that continues at which it is killed, too."""
    before: list[str] = field(default_factory=list)
    """The operations that the kills preceded."""
    repeated: int = 0
    """Rounds of a seed that ran more than once."""
    differs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", then before ".join(self.before) or "nothing"
        return "\n  ".join([f"point {self.number}, killed before {kills}:", *self.differs])


# -- file operations -----------------------------------------------------------------------------------------

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _at(path: Any, folder: int = -1) -> str:
    """An absolute path; a number stands for an open file."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
    return os.path.join(base, os.fsdecode(path))


def changes(event: str, args: Sequence[Any]) -> str | None:
    """The path that an audit event is about to change; None for one that changes nothing.

    Events of `shutil` are left out: each removal within them is an event of its own.
    """
    if event == "open":
        path, _, flags = args
        return _at(path) if flags & _WRITES and not isinstance(path, int) else None
    if event == "os.rename":
        source, _, at, _ = args
        return path if os.path.lexists(path := _at(source, at)) else None
    if event in ("os.remove", "os.rmdir"):
        return path if os.path.lexists(path := _at(*args)) else None
    if event in ("os.mkdir", "os.symlink", "os.link"):
        path = _at(*args[::2]) if event == "os.mkdir" else _at(args[1], args[-1])
        return None if os.path.lexists(path) else path
    if event == "os.truncate":
        return _at(args[0])
    return None


_CHANGING = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate"}


def watch(root: Path, hears: Callable[[str], None]) -> None:
    """From now on, calls `hears` before each file operation of this process below a folder."""
    inside = f"{root.resolve()}{os.sep}"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGING and (path := changes(event, args)) is not None:
            path = os.path.normpath(path)
            if path.startswith(inside):
                shown = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4,}){4}|(?<=\.)[0-9a-f]{8}(?=\.part)", "*", path[len(inside) :])
                hears(f"{event.removeprefix('os.')} {shown}")

    sys.addaudithook(hook)


def in_child(work: Callable[[], None], errors: Path) -> int:
    """Exit status of a forked child that does the work; a signal's number below zero."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(LIMIT)
            work()
        except BaseException:
            errors.write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# -- studies -------------------------------------------------------------------------------------------------


def trained(trial: Any) -> list[dict[str, Any]]:
    """In place of `Simulation.step`: the states count rounds, and cells change their ranks from round to round."""
    from fpl_tune import config

    trial.round += 1
    cell, records = config.identity(trial.run), list[dict[str, Any]]()
    for i, seed in enumerate(trial.seeds):
        parts = trial.states[i]._asdict().items()
        state = type(trial.states[i])(**{part: {n: leaf + 1 for n, leaf in leaves.items()} for part, leaves in parts})
        trial.states[i], total = state, trial.totals[i]
        for name, much in (("up", 1000), ("down", 4000), ("seconds", 0.5)):
            total[name] += much
        drawn = random.Random(f"{cell} {seed} {trial.round}")
        val, test = (0.7 - 5 * abs(trial.run.optim.lr - 0.02) + 0.2 * drawn.random() for _ in range(2))
        records.append(
            {
                "seed": seed,
                "round": trial.round,
                "val/acc_mean": val,
                "test/acc_mean": test,
                "train/loss": next(leaf.sum().item() for leaves in state for leaf in leaves.values()),
                "comm/up_bytes": total["up"],
                "comm/down_bytes": total["down"],
                "time/seconds": total["seconds"],
            }
        )
    return records


class Matrix:
    """The kills of a case. Everything that its children need is loaded once, in this process."""

    def __init__(self, case: Case, folder: Path) -> None:
        from fpl_tune.api import start_study
        from fpl_tune.search.compose import compose
        from fpl_tune.simulation.simulation import Simulation

        os.fsync = lambda fd: None  # no kill asks for it, and it takes most of the time
        Simulation.step = trained  # type: ignore[method-assign]
        self.case, self.folder = case, folder
        folder.mkdir(parents=True)
        (folder / f"{NAME}.yaml").write_text(case.text)
        self.made = compose(str(folder / f"{NAME}.yaml"))
        start_study(self.made, root=folder / "first")
        gc.collect()
        gc.freeze()  # children leave what is there alone
        self.operations, self.steps = self._calm(folder / "calm")
        self.expected = picture(folder / "calm")

    def _calm(self, root: Path) -> tuple[list[str], int]:
        """The operations of an undisturbed run and the rounds that it trains, summed over seeds."""
        noted = self.folder / "calm.json"

        def noting(operations: list[str]) -> None:
            self._run(root, operations.append)
            noted.write_text(json.dumps(operations))

        root.mkdir()
        status = in_child(lambda: noting([]), self.folder / "calm.errors")
        assert status == 0, (self.folder / "calm.errors").read_text()
        return json.loads(noted.read_text()), steps_of(root)

    def _run(self, root: Path, hears: Callable[[str], None]) -> None:
        """Runs the study in this process, which is over then."""
        from fpl_tune.api import start_study
        from fpl_tune.simulation.simulation import Simulation

        def stepping(trial: Any) -> list[dict[str, Any]]:
            with _steps(root).open("a") as log:
                log.write(len(trial.seeds) * ".")
            return trained(trial)

        Simulation.step = stepping  # type: ignore[method-assign]
        watch(root, hears)
        outcome = start_study(self.made, root=root)
        if outcome.exit_code:
            raise RuntimeError(f"the study ended with {outcome}")

    def _die(self, root: Path, number: int) -> str | None:
        """Runs the study to the operation of this number, and kills it there; None if it ended before."""
        noted, left = root.with_suffix(".where"), [number]

        def hears(operation: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                noted.write_text(operation)
                os.kill(os.getpid(), signal.SIGKILL)

        status = in_child(lambda: self._run(root, hears), root.with_suffix(".errors"))
        if status == 0:
            return None
        if status != -signal.SIGKILL:
            raise RuntimeError(self._end(root, status))
        return noted.read_text()

    def _end(self, root: Path, status: int) -> str:
        """The end of a run that failed, in words."""
        if status < 0:
            return f"the run ended by {signal.Signals(-status).name}"
        return f"the run failed: {root.with_suffix('.errors').read_text().strip()[-600:]}"

    def run(self, point: Point) -> Point:
        """Kills the study at a point, runs it to its end, and compares."""
        root = self.folder / f"{point.number}{'' if point.again is None else '-again'}"
        root.mkdir()
        try:
            for number in (point.number, *([] if point.again is None else [point.again])):
                if (operation := self._die(root, number)) is not None:
                    point.before.append(operation)
            status = in_child(lambda: self._run(root, lambda _: None), root.with_suffix(".errors"))
            if status:
                raise RuntimeError(self._end(root, status))
        except RuntimeError as problem:
            point.differs.append(str(problem))
            return point
        point.differs += differences(self.expected, picture(root))
        point.repeated = steps_of(root) - self.steps
        allowed = self.case.interval * self.case.leg * len(point.before)
        if not 0 <= point.repeated <= allowed:
            point.differs.append(f"{point.repeated} rounds ran again, of {allowed} at most")
        if not point.differs:
            shutil.rmtree(root)
        return point

    def points(self, every: int) -> list[Point]:
        """Every so many points; each fourth of them twice, the second time with a second kill."""
        found: list[Point] = []
        for i, number in enumerate(range(1, len(self.operations) + 1, every)):
            found.append(Point(number, None))
            if i % 4 == 0:  # spread over what is left to do
                found.append(Point(number, 1 + 7 * number % (len(self.operations) - number + 1)))
        return found

    def run_all(self, points: Sequence[Point], jobs: int) -> list[Point]:
        """Runs points, some at a time."""
        shares = [self.folder / f"share-{i}.json" for i in range(jobs)]
        children = list[int]()
        for i, share in enumerate(shares):
            children.append(child := os.fork())
            if child == 0:
                try:
                    share.write_text(json.dumps([asdict(self.run(point)) for point in points[i::jobs]]))
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
        ends = [os.waitpid(child, 0)[1] for child in children]
        assert not any(ends), ends
        found = [Point(**point) for share in shares for point in json.loads(share.read_text())]
        return sorted(found, key=lambda point: (point.number, point.again is not None))


# -- comparison ----------------------------------------------------------------------------------------------


def _steps(root: Path) -> Path:
    return root.with_suffix(".steps")


def steps_of(root: Path) -> int:
    """Rounds that the runs in a folder have trained, summed over seeds."""
    return len(_steps(root).read_text()) if _steps(root).exists() else 0


def _timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a clock says."""
    return {name: value for name, value in row.items() if not name.startswith("time/") and name != "finished"}


def picture(root: Path) -> dict[str, Any]:
    """What a study left, as its readers see it: cells, suggestions, results, histories, the table, what was learned."""
    from fpl_tune.study.store import Store

    store, found = Store.open(root, NAME), dict[str, Any]()
    rows = {row["cell"]: row for row in store.table().summary()}
    found["cells"] = [cell.label for cell in store.cells()]
    for cell in store.cells():
        asked = asdict(cell.suggestion) if cell.suggestion else None
        found[cell.label] = {"number": cell.number, "role": cell.role, "asked": asked, **_timeless(rows[cell.id])}
        for seed, run in store.row(cell).results.items():
            found[f"{cell.label}, seed {seed}"] = _timeless(run.as_dict())
            for record in store.history(cell, seed):
                found[f"{cell.label}, seed {seed}, round {record['round']}"] = _timeless(record)
    for row in store.table().by_seed(every_rule=True):
        found[f"table: {row['label']}, seed {row['seed']}, {row['rule']}"] = _timeless(row)
    found["results.csv"] = len((store.folder / "results.csv").read_text().splitlines())
    for path in sorted(store.folder.rglob("prompts.safetensors")):
        found[f"learned: {path.relative_to(store.folder)}"] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    found["checkpoints"] = sorted(str(path.relative_to(store.folder)) for path in store.folder.rglob("ckpt-*"))
    found["left over"] = [str(p.relative_to(store.folder)) for name in LEFT_OVER for p in store.folder.rglob(name)]
    return json.loads(json.dumps(found))


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], most: int = 8) -> list[str]:
    """What differs between two pictures, in words."""
    lines: list[str] = []
    for key in dict.fromkeys([*expected, *found]):
        one, other = expected.get(key), found.get(key)
        if json.dumps(one) == json.dumps(other):  # as text, in which NaN equals NaN
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = [n for n in dict.fromkeys([*one, *other]) if json.dumps(one.get(n)) != json.dumps(other.get(n))]
            text = "; ".join(f"{name} is {other.get(name)!r:.80}, not {one.get(name)!r:.80}" for name in names)
        else:
            text = (
                "is missing" if other is None else "is new" if one is None else f"is {other!r:.300}, not {one!r:.300}"
            )
        lines.append(f"{key}: {text}")
    return [*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])]


# -- the program ---------------------------------------------------------------------------------------------


def table(found: Mapping[str, Sequence[Point]]) -> str:
    """One line a case, and the points that differ."""
    lines = [f"{'case':16}{'points':>8}{'equal':>8}{'twice':>8}{'equal':>8}{'most rounds repeated':>23}"]
    for name, points in found.items():
        counts = list[int]()
        for twice in (False, True):
            kind = [point for point in points if (point.again is not None) == twice]
            counts += [len(kind), sum(not point.differs for point in kind)]
        most = max((p.repeated for p in points if p.again is None), default=0)
        lines.append(f"{name:16}" + "".join(f"{count:8}" for count in counts) + f"{most:23}")
    lines += [f"\n{name}, {point}" for name, points in found.items() for point in points if point.differs]
    return "\n".join(lines)


def main(words: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", action="append", choices=[*CASES], help="one of the cases; default: all")
    parser.add_argument("--every", type=int, default=1, help="run every so many points")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="points at once")
    parser.add_argument("--folder", type=Path, help="a folder to make, in which the studies that differ stay")
    parser.add_argument("--out", type=Path, help="write the points as JSON")
    given = parser.parse_args(None if words is None else [*words])
    found: dict[str, list[Point]] = {}
    with ExitStack() as stack:
        quick = Path("/dev/shm")  # files in memory, where there are some
        made = tempfile.TemporaryDirectory(dir=quick if os.access(quick, os.W_OK) else None)
        folder = given.folder or Path(stack.enter_context(made))
        os.environ.setdefault("FPL_TUNE_CACHE", str(folder / "cache"))
        import torch

        torch.set_num_threads(1)  # before any fork
        for name in given.case or CASES:
            matrix = Matrix(CASES[name], folder / name)
            found[name] = matrix.run_all(matrix.points(given.every), given.jobs)
    print(table(found))
    if given.out:
        given.out.write_text(json.dumps({name: [asdict(point) for point in points] for name, points in found.items()}))
    return int(any(point.differs for points in found.values() for point in points))


if __name__ == "__main__":
    sys.exit(main())
