"""Runs a history of a study on the real platform, with a stand-in for the simulation, and says what is wrong.

A history is a study and a list of events: runs that end, stop or are killed, and edits between them. Each command
runs in a forked process, so that a kill is a kill. When the events are over, the study is run to its end, and
`Machine.check` compares the result with what the documents promise: no traceback, refusals that change nothing, an
end, the table of a fresh run, no round twice, nothing missing, and surfaces that agree with a plain computation.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import surfaces
import yaml
from simulated import execute
from standin import ASIDE, StandIn, trouble_of, user_files

from fpl_tune import config, report
from fpl_tune.core.errors import ConfigError, FplTuneError
from fpl_tune.core.nested import flatten
from fpl_tune.execute import inline, manage, ray
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.plan.overrides import compose
from fpl_tune.execute.runner import run_study
from fpl_tune.study.cells import axes_of
from fpl_tune.study.selection import chosen
from fpl_tune.study.store import Store
from fpl_tune.track import Recorder

NAME = "tiny"
LIMIT = 30
"""Seconds that a command may take; under Ray, four times as many."""
RAY = ["execution.executor=ray", "execution.parallel=2"]
SPACE = Path("search_spaces", "mine:Mine.yaml")

LATER = {
    **surfaces.LATER,
    "mlflow-status": "a search with a trial that diverged ends with code 0, and as FAILED in MLflow",
    "fresh-looks": "where seeds are added until comparisons are decided, cells that join later skip seeds",
    "other-seeds": "seeds that are no longer asked for still count in means and choices",
    "damaged-pruned": "a damaged seed of a trial that was pruned is never made anew",
    "twice-other-seeds": "seeds that train together share a checkpoint, which other seeds in the study make useless",
    "twice-reopened": "a trial that was pruned has no checkpoint any more when another rule or objective reopens it",
    "mlflow-runs": "MLflow keeps the runs of trials that are no longer in the table",
    "trials-vanish": "with another sampler or search seed, the trials before are no longer in the table",
    "reference-ignored": "a reference that equals a cell of the grid is dropped, with its label",
    "copy": "a copy of the results writes its artifacts into the MLflow of the original",
    "none-done": "where the trial that halving let pass last diverges later, no trial of the search is done",
    "published": "a space that was widened over a published point does not try it",
}
"""Keys of the faults that are known, and left out until a study is one table -> the fault in one line."""

Event = list[Any]
"""Kind and arguments, as JSON holds them; see `Machine.apply`."""


@dataclass
class History:
    """A study, what happens to it, and whether MLflow records it."""

    study: dict[str, Any]
    events: list[Event]
    space: dict[str, Any] = field(default_factory=dict)
    """Content of search_spaces/mine:Mine.yaml; empty: there is no such file."""
    mlflow: bool = False
    real: bool = False
    """Whether the true simulation runs, inline or (option `ray` of a run) under Ray, and not the stand-in."""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class End:
    """How a command ended."""

    kind: str
    """done, refused (nothing may have changed), environment, killed, or error."""
    text: str = ""
    code: int = 0
    pending: int = 0
    ran: int = 0
    failed: int = 0
    idle: bool = True
    """Whether starts after the first left the table as it was."""


# -- processes -----------------------------------------------------------------------------------------------

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def watch(root: Path, hears: Callable[[str], None]) -> None:
    """From now on, calls `hears` before each operation of this process that changes a file below a folder."""
    inside = f"{root.resolve()}{os.sep}"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES and not (event == "open" and not args[2] & _WRITES):
            path = args[0]
            if not isinstance(path, int) and os.path.abspath(os.fsdecode(path)).startswith(inside):
                hears(event)

    sys.addaudithook(hook)


def in_child(work: Callable[[], End], aside: Path, limit: int = LIMIT) -> End:
    """Forks a process that does the work."""
    answer = aside / "answer"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            said = os.open(aside / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 1)
            os.dup2(said, 2)
            signal.alarm(limit)
            sys.dont_write_bytecode = True
            os.fsync = lambda fd: None  # no event here asks for it, and it takes most of the time
            warnings.simplefilter("ignore")
            end = work()
        except ConfigError as problem:
            end = End("refused", str(problem), problem.exit_code)
        except FplTuneError as problem:
            end = End("environment", str(problem), problem.exit_code)
        except BaseException:
            end = End("error", traceback.format_exc())
        try:
            answer.write_text(json.dumps(asdict(end)))
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        return End("killed")
    if not answer.exists():
        return End("error", f"the process ended with status {status}")
    return End(**json.loads(answer.read_text()))


class Interruption(Callback):
    """Stops a study after a number of rounds, or reads it then, as another process would."""

    def __init__(self, options: Mapping[str, Any], read: Callable[[], None]) -> None:
        self.options, self.read, self.rounds = options, read, 0

    def on_study_start(self, store: Store, cells: Any, jobs: Any) -> None:
        self.store = store

    def on_round_end(self, cell: Any, records: Any) -> None:
        self.rounds += 1
        if self.rounds == self.options.get("stop"):
            manage.stop(self.store)
        if self.rounds == self.options.get("signal"):
            os.kill(os.getpid(), signal.SIGINT)
        if self.rounds == self.options.get("read"):
            self.read()


# -- the machine ---------------------------------------------------------------------------------------------


class Machine:
    """Runs one history in a folder.

    Args:
        history: it.
        folder: an empty one.
        later: keys of known problems that are not reported.
    """

    def __init__(self, history: History, folder: Path, later: Sequence[str] = ()) -> None:
        self.history, self.later = history, set(later)
        self.work, self.aside = folder / "work", folder / "aside"
        for made in (self.work, self.aside):
            made.mkdir(parents=True)
        self.study, self.space = deepcopy(history.study), deepcopy(history.space)
        self.versions: dict[str, Any] = {"source": 1, "parent": 1, "data": 1, "higher": True}
        self.seen, self.back = {str(self.versions)}, False
        """Versions of the user's modules so far, and whether an earlier one came back."""
        self.root = self.work / "outputs"
        self.problems: list[str] = []
        self.accepted = self._settings()
        """The files with which a start last worked."""
        self.original: tuple[Path, dict[str, str]] | None = None
        """The output folder that was copied last, and what it held then."""
        self.began = False
        """Whether a start has worked."""
        self.lost = 0
        """Events that may cost rounds since the last checkpoint."""
        self.damaged = self.other_seeds = self.other_cells = self.other_rule = False
        self.retried: Counter[str] = Counter()
        """How often each seed had diverged before the last start with --retry."""
        self.write()

    # -- what the user does ----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Runs the history; what is wrong, one line each with a key as its first word."""
        for number, event in enumerate(self.history.events):
            self.apply(event)
            if self.problems:
                return [f"{problem} (after event {number}, {event[0]})" for problem in self.problems]
        self.finish()
        return self.problems

    def apply(self, event: Event) -> None:
        """Applies an event."""
        kind, *arguments = event
        match kind:
            case "run":
                self.start(*arguments)
            case "set":
                self.other_seeds |= bool(arguments[0].keys() & {"seeds", "looks"})
                self.other_rule |= any(name.startswith(("prune", "search")) for name in arguments[0])
                self.other_cells |= any(name.startswith(("axes", "references")) for name in arguments[0])
                for dotted, value in arguments[0].items():
                    place = self.study
                    *above, last = dotted.split("/")
                    for part in above:
                        place = place.setdefault(part, {})
                    place[last] = value
            case "drop":
                *above, last = arguments[0].split("/")
                place = self.study
                for part in above:
                    place = place.get(part) or {}
                place.pop(last, None)
            case "source" | "parent" | "data" | "higher":
                self.versions[kind] = arguments[0]
                self.back |= str(self.versions) in self.seen  # results of another version were removed meanwhile
                self.seen.add(str(self.versions))
            case "space":
                self.space = arguments[0]
            case "damage":
                self.damage(*arguments)
            case "move":
                target = self.work / f"moved{len(list(self.work.iterdir()))}"
                if self.root.exists():
                    self.root.rename(target)
                self.root = target
            case "copy":
                target = self.work / f"copied{len(list(self.work.iterdir()))}"
                if self.root.exists():
                    shutil.copytree(self.root, target)
                    self.original = self.root, self.picture_of_files()
                self.root = target
            case "other":
                self._other(*arguments)
            case "read":
                self._expect(self.child(partial(self._read, arguments[0])), "reading", ("done", "refused"))
            case _:
                raise ValueError(f"no event {kind}")
        self.write()

    def write(self) -> None:
        """Writes the user's files."""
        (self.work / f"{NAME}.yaml").write_text(yaml.safe_dump({**self.study, "name": NAME}, sort_keys=False))
        for name, text in user_files(**self.versions).items():
            (self.work / name).write_text(text)
        (self.work / SPACE).unlink(missing_ok=True)
        if self.space:
            (self.work / SPACE).parent.mkdir(exist_ok=True)
            (self.work / SPACE).write_text(yaml.safe_dump(self.space))

    def _settings(self) -> tuple[Any, ...]:
        return deepcopy((self.study, self.space, getattr(self, "versions", {})))

    def damage(self, kind: str, place: int, how: str) -> None:
        """Damages a file of the study: cuts it, removes it or writes something else over it."""
        files = sorted(path for path in self.root.glob(f"{NAME}/**/{kind}") if path.is_file())
        if not files:
            return
        path = files[place % len(files)]
        self.damaged = True
        if how == "remove":
            path.unlink()
        else:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2] if how == "cut" else b"\x00 no file of ours \xff")

    def start(self, options: Mapping[str, Any]) -> End:
        """Starts the study. A refused one is given back the files with which it last worked."""
        before, diverged = self.picture_of_files(), self.diverged()
        end = self.child(partial(self._study, self.root, options))
        expected = ["done"]
        if options.get("kill"):
            expected.append("killed")
        if options.get("full"):
            expected.append("environment")
        if end.kind == "refused":
            changed = [name for name, found in self.picture_of_files().items() if before.get(name) != found]
            if changed or before.keys() - self.picture_of_files().keys():
                self.report("refusal", f"a refused start changed {', '.join(changed)[:200]} ({end.text[:200]})")
            if "\n" in end.text:
                self.report("refusal", f"more than one line: {end.text!r}")
            self.revert()
            return end
        self._expect(end, "a start", expected)
        if end.kind in ("killed", "environment") or options.get("full"):
            self.lost += 1
        if end.kind == "done":
            self.accepted, self.began = self._settings(), True
            if options.get("retry"):
                self.retried = diverged
        return end

    def diverged(self) -> Counter[str]:
        """How often each seed of a cell has diverged so far."""
        log = self.aside / "diverged"
        return Counter(log.read_text().splitlines() if log.exists() else ())

    def revert(self) -> None:
        """Gives the user's files back the content with which a start last worked."""
        self.study, self.space, self.versions = deepcopy(self.accepted)
        self.write()

    def finish(self) -> None:
        """Runs the study to its end, and checks what is there."""
        end = self.child(partial(self._to_the_end, self.root))
        if end.kind == "refused" and self.began:  # as a start is: the user takes the last edits back
            self.revert()
            end = self.child(partial(self._to_the_end, self.root))
        if end.kind == "refused" and not self.began:
            return
        self._expect(end, "the last starts", ("done",))
        if end.kind == "done" and end.pending:
            self.report("end", f"after eight starts the study is not at its end: {end}")
        elif end.kind == "done":
            if not end.idle:
                self.report("idle", "a start with nothing left to do changed the table")
            self.check()

    def _to_the_end(self, root: Path) -> End:
        """Starts the study until two starts end alike, and notes what readers find.

        The surfaces are read as soon as nothing is left: a further start would mend what a run forgot to write.
        """
        aside, ends, tables, said = Path(os.environ[ASIDE]), list[End](), list[Any](), None
        while len(ends) < 2 or (len(ends) < 8 and ends[-1] != ends[-2]):
            ends.append(self._study(root, {"workers": 1, "order": 0}))
            tables.append(table_of(root))
            over = not ends[-1].pending and not ends[-1].failed
            if (
                said is None
                and root == self.root
                and "surfaces" not in self.later
                and (over or ends[-2:-1] == ends[-1:])
            ):
                said = surfaces.disagreements(root, NAME, mlflow=self.history.mlflow)
        ends[-1].pending += ends[-1] != ends[-2]
        ends[-1].idle = len({json.dumps(table) for table in tables}) == 1 or bool(ends[0].failed)
        (aside / "table").write_text(json.dumps(tables[-1]))
        (aside / "surfaces").write_text(json.dumps(said or []))
        return ends[-1]

    # -- commands in a process of their own --------------------------------------------------------------------

    def child(self, work: Callable[[], End], aside: Path | None = None) -> End:
        """Does work in a process whose folder is the user's; `aside` is where the stand-in writes."""

        def here() -> End:
            os.chdir(self.work)
            os.environ["FPL_TUNE_OUTPUT"], os.environ[ASIDE] = str(self.root), str(aside or self.aside)
            os.environ.pop("MLFLOW_TRACKING_URI", None)
            return work()

        return in_child(here, self.aside, LIMIT * (4 if self.history.real else 1))

    def _study(self, root: Path, options: Mapping[str, Any]) -> End:
        """`fpl-tune study`, with the executor of this machine."""
        spec = compose(f"{NAME}.yaml", RAY if options.get("ray") else [])
        left, full = [options.get("kill") or 0], options.get("full")
        count = [0]

        def hears(event: str) -> None:
            count[0] += 1
            if count[0] == left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            fills = event in ("open", "os.mkdir")
            if full and fills and full[0] <= count[0] < full[0] + full[1]:
                raise OSError(28, "No space left on device")

        if left[0] or full:
            watch(root, hears)
        simulate: Any = None if self.history.real else StandIn
        if options.get("ray"):
            executor = ray.execute
        elif options.get("inline") or self.history.real:
            executor = partial(inline.execute, simulate=simulate)
        else:
            executor = partial(
                execute,
                workers=options.get("workers", 1),
                order=options.get("order", 0),
                deaths=options.get("deaths", 0),
            )
        callbacks: list[Callback] = [Interruption(options, lambda: self._read_beside(root))]
        if self.history.mlflow and root == self.root:
            callbacks.append(Recorder(lambda text: None))
        outcome = run_study(
            spec,
            root=root,
            executor=executor,
            callbacks=callbacks,
            retry=bool(options.get("retry")),
            judge=report.look,
        )
        return End("done", "", outcome.exit_code, outcome.pending, outcome.done + outcome.failed, outcome.failed)

    def _read_beside(self, root: Path) -> None:
        """Reads the study from another process while it runs."""
        aside = self.aside / "reader"
        aside.mkdir(exist_ok=True)
        end = in_child(lambda: self._read("report"), aside)
        if end.kind not in ("done", "refused"):
            raise RuntimeError(f"a reader beside the study ended with {end.kind}: {end.text}")

    def _read(self, verb: str) -> End:
        """A reader of the stored study."""
        store = Store.open(self.root, NAME)
        match verb:
            case "report":
                report.build(store, running=True)
            case "status":
                manage.status(store)
            case _:
                report.summary(store, pictured=False).text()
        return End("done")

    def _other(self, options: Mapping[str, Any]) -> None:
        """Runs a second study in the same output folder."""

        def work() -> End:
            text = yaml.safe_dump({**self.study, "name": "other"}, sort_keys=False)
            Path("other.yaml").write_text(text)
            spec = compose("other.yaml", [])
            executor = partial(execute, workers=2, order=options.get("order", 0))
            run_study(spec, root=self.root, executor=executor, judge=report.look)
            return End("done")

        aside = self.aside / "other"
        aside.mkdir(exist_ok=True)
        self._expect(self.child(work, aside), "another study", ("done", "refused"))

    def _expect(self, end: End, what: str, kinds: Sequence[str]) -> None:
        if end.kind not in kinds:
            last = end.text.strip().splitlines()[-1:] or [""]
            key = "traceback" if end.kind == "error" else "refusal"
            self.report(key, f"{what} ended with {end.kind}: {last[0][:300]}", end.text)

    def report(self, key: str, text: str, more: str = "") -> None:
        """Notes a problem, unless it is a known one."""
        if key not in self.later:
            self.problems.append(f"{key}: {text}")
            if more:
                (self.aside / "traceback").write_text(more)

    # -- what holds ------------------------------------------------------------------------------------------

    def picture_of_files(self, root: Path | None = None) -> dict[str, str]:
        """Digests of the files below the output folder, locks left out."""
        root, found = root or self.root, dict[str, str]()
        for path in sorted(root.rglob("*")) if root.exists() else ():
            if path.is_file() and path.name not in ("study.lock", "study.owner"):
                found[str(path.relative_to(root))] = hashlib.md5(path.read_bytes()).hexdigest()
        return found

    def check(self) -> None:
        """Checks a study that is at its end."""
        mine = json.loads((self.aside / "table").read_text())
        if not self.study.get("search", {}).get("sampler"):
            self.check_fresh(mine)
        self.check_complete(mine)
        self.check_kept(mine)
        self.check_once(mine)
        self.check_surfaces()

    def check_fresh(self, mine: Mapping[str, Any]) -> None:
        """A grid equals a fresh run of the final file, cell by cell and digit by digit."""

        def report(key: str, text: str) -> None:
            if mine["decided"] and self.other_cells:
                key = "fresh-looks"
            elif key == "fresh-choice" and self.other_seeds:
                key = "other-seeds"
            self.report(key, text)

        root, aside = self.work / "fresh", self.aside / "fresh"
        aside.mkdir()
        end = self.child(partial(self._to_the_end, root), aside)
        self._expect(end, "a fresh run", ("done",))
        if end.kind != "done":
            return
        fresh = json.loads((aside / "table").read_text())
        for key, cell in fresh["cells"].items():
            other = mine["cells"].get(key)
            if other is None:
                report("fresh-missing", f"{cell['label']} is not in the table")
                continue
            for name, value in cell.items():
                if name == "seeds":
                    for seed, found in value.items():
                        if other["seeds"].get(seed) != found:
                            report(
                                "fresh-seed",
                                f"{cell['label']}, seed {seed}: {_differing(other['seeds'].get(seed), found)}",
                            )
                elif other[name] != value:
                    report(f"fresh-{name}", f"{cell['label']}: {name} is {other[name]!r}, not {value!r}")
        if fresh["order"] != [key for key in mine["order"] if key in fresh["cells"]]:
            report("fresh-order", "cells are in another order")
        if fresh["choice"] != mine["choice"] and not mine["earlier"]:
            report("fresh-choice", f"{mine['choice']} is chosen, not {fresh['choice']}")

    def check_complete(self, mine: Mapping[str, Any]) -> None:
        """What has all its seeds and rounds is done, and what is done has them."""
        for key, cell in mine["cells"].items():
            ends = [cell["seeds"].get(str(seed), {}) for seed in mine["wanted"]]
            whole = all(end.get("stored") == "done" and end["rounds"] == cell["rounds"] for end in ends)
            if whole and cell["state"] != "done":
                self.report("state", f"{cell['label']} has all its seeds and rounds, but is {cell['state']}")
            if cell["state"] == "done" and not mine["decided"] and not whole:
                self.report("missing", f"{cell['label']} is done, but its seeds are {ends}")
            if cell["state"] in ("queued", "running", "waiting"):
                self.report("end", f"{cell['label']} is {cell['state']} at the end")

            if cell["role"] == "reference" and cell["state"] == "pruned":
                self.report("reference-pruned", f"the reference {cell['label']} is pruned")
            for seed, end in cell["seeds"].items():
                if (
                    end["stored"] == "diverged"
                    and f"{key} {seed}" in self.retried
                    and self.diverged()[f"{key} {seed}"] <= self.retried[f"{key} {seed}"]
                ):
                    self.report(
                        "retry-lost", f"{cell['label']}, seed {seed} diverged before --retry, and never ran again"
                    )
        trials = [cell for cell in mine["cells"].values() if cell["role"] == "trial"]
        for part in {json.dumps(cell["part"]) for cell in trials}:
            states = {cell["state"] for cell in trials if json.dumps(cell["part"]) == part}
            if "pruned" in states and "done" not in states:
                self.report("none-done", f"trials of {part} were pruned, but none is done")
            own = [cell for cell in trials if json.dumps(cell["part"]) == part]
            self.check_published(json.loads(part), own)
            if len(self.seen) == 1 and not (self.other_rule or self.other_seeds or self.damaged):
                self.check_halving(mine, own)

    def check_published(self, part: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
        """A search has tried each published point inside of its space."""
        ranges = {**self.space.get("space", {}), **self.study["search"].get("space", {})}
        searched = self.study["search"].get("only") or ranges
        points = [point.items() for point in self.space.get("published", [])]
        if all(any(point <= cell["varied"].items() for point in points) for cell in trials):
            return  # its budget paid for no further trial
        for point in points:
            own = {name: value for name, value in point if name in searched and name not in part}
            inside = all(ranges[name]["low"] <= value <= ranges[name]["high"] for name, value in own.items())
            if own and inside and not any(own.items() <= cell["varied"].items() for cell in trials):
                self.report("published", f"{own} is inside of the space, but was never tried")

    def check_kept(self, mine: Mapping[str, Any]) -> None:
        """Trials, references and the original of a copy are what they were."""
        if mine["hidden"] and len(self.seen) == 1 and not self.damaged:
            self.report("trials-vanish", f"the table lacks {', '.join(mine['hidden'])[:200]}, which fit the study")
        names = {name for cell in mine["cells"].values() for name in (cell["label"], cell["reference"])}
        for reference in self.study.get("references", []):
            label = reference.get("label")
            if label and not any(label in name for name in names):
                self.report("reference-ignored", f"no cell is called {label}")
        if self.original and self.picture_of_files(self.original[0]) != self.original[1]:
            self.report("copy", "a run in a copy of the results changed the original")

    def check_once(self, mine: Mapping[str, Any]) -> None:
        """No round runs twice beyond a checkpoint interval for each kill."""
        log = self.aside / "rounds"
        if self.damaged or self.back or not log.exists():
            return
        deaths = self.aside / "deaths"
        lost = self.lost + (len(deaths.read_text()) if deaths.exists() else 0)
        interval = int(self.study.get("execution", {}).get("checkpoint_every", 5))
        counts = Counter(log.read_text().splitlines())
        again: Counter[str] = Counter()
        for line, n in counts.items():
            cell, seed, _, versions = line.split()
            again[f"{cell} {seed} {versions}"] += n - 1
        for key, n in again.items():
            cell, seed, _ = key.split()
            found = mine["cells"].get(cell)
            if n > lost * interval and found is not None and not found["trouble"]:
                text = f"{found['label']}, seed {seed}: {n} rounds ran again after {lost} kills"
                key = "twice-reopened" if self.other_rule else "twice"
                key = "twice-other-seeds" if self.other_seeds else key
                self.report(key, f"{text}, with a checkpoint every {interval} rounds")

    def check_halving(self, mine: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
        """The best trial of those that reach a rung is not pruned there."""
        first = str(mine["wanted"][0])
        reached = [cell["seeds"][first]["history"] for cell in trials if first in cell["seeds"]]
        for cell in trials:
            history = cell["seeds"].get(first, {}).get("history") or []
            rung = len(history)
            others = [h[rung - 1]["val/acc_mean"] for h in reached if len(h) >= rung and h is not history and rung]
            if cell["state"] == "pruned" and others and history[-1]["val/acc_mean"] > max(others):
                self.report(
                    "halving", f"{cell['label']} is pruned after {rung} rounds, where none of {len(others)} is better"
                )

    def check_surfaces(self) -> None:
        """Pages, tables, MLflow and Python say what a plain computation says."""
        for line in json.loads((self.aside / "surfaces").read_text()):
            key, _, text = line.partition(" ")
            key = key.rstrip(":")
            if self.study.get("search"):
                key = "damaged-pruned" if self.damaged else "other-seeds" if self.other_seeds else key
            self.report(key, text)


_OF_CLOCKS = ("finished", "fingerprints", "time/seconds", "time/test_seconds")


def table_of(root: Path) -> dict[str, Any]:
    """What a reader of a store finds: the cells of the study with the results of their seeds, and the choice."""
    store = Store.open(root, NAME)
    spec, cells = store.spec(), dict[str, Any]()
    wanted = spec.first_seeds() if spec.declared_looks() else spec.seed_list()
    listed = [cell for cell in store.cells() if cell.id not in store.earlier]
    for cell in listed:
        shown, run = store.shown_results(cell), config.to_run(cell.node)
        seeds: dict[str, Any] = {}
        for seed, result in store.seed_results(cell).items():
            if seed in wanted or spec.declared_looks():
                kept = {name: value for name, value in result.items() if name not in _OF_CLOCKS}
                status = shown[seed]["status"] if seed in shown else None
                history = [
                    {n: v for n, v in record.items() if n not in _OF_CLOCKS} for record in store.history(cell, seed)
                ]
                seeds[str(seed)] = {**kept, "stored": result["status"], "status": status, "history": history}
        cells[cell.id] = {
            "label": cell.label,
            "role": cell.role,
            "reference": cell.reference,
            "state": str(store.trial(cell).state),
            "rounds": run.rounds,
            "trouble": trouble_of(run),
            "varied": cell.varied,
            "part": {name: cell.varied[name] for name in axes_of(spec.axes) if name in cell.varied},
            "seeds": seeds,
        }
    trials, hidden = [cell for cell in listed if cell.role == "trial"], list[str]()
    for cell in store.earlier_cells() if trials else ():
        if cell.role == "trial" and store.seeds(cell):
            own, other = flatten(cell.node), flatten(trials[0].node)
            differing = {name for name in own.keys() | other.keys() if own.get(name) != other.get(name)}
            if differing <= cell.varied.keys() | trials[0].varied.keys():
                hidden.append(cell.label)
    try:
        choice: Any = chosen(store).label
    except ConfigError as problem:
        choice = f"none: {str(problem)[:40]}"
    return {
        "cells": cells,
        "order": [cell.id for cell in listed],
        "hidden": hidden,
        "choice": choice,
        "wanted": wanted,
        "decided": bool(spec.declared_looks()),
        "earlier": bool(store.earlier),
    }


def _differing(one: Any, other: Any) -> str:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return f"{str(one)[:80]} instead of {str(other)[:80]}"
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "; ".join(f"{name} is {str(one.get(name))[:80]}, not {str(other.get(name))[:80]}" for name in names)


WARM = {
    "defaults": ["/study", {"override /method": "promptfl"}, "_self_"],
    "data": {"train_per_class": 6, "test_per_class": 1, "shots": 2, "domains": ["clipart"]},
    "partition": {"n_clients": 2},
    "protocol": {"rounds": 2, "epochs": 1},
    "execution": {"executor": "inline", "device": "cpu"},
    "axes": {},
    "search": {"sampler": "gp", "trials": 3, "only": ["optim.lr"]},
    "seeds": 2,
}


def prepare(folder: Path) -> None:
    """Runs a small study in this process, so that its children find imported and cached what all of them need."""
    machine = Machine(History(WARM, [], mlflow=True), folder)
    here, environment = Path.cwd(), dict(os.environ)
    os.chdir(machine.work)
    os.environ["FPL_TUNE_OUTPUT"], os.environ[ASIDE] = str(machine.root), str(machine.aside)
    try:
        machine._study(machine.root, {"workers": 1})
        machine._read("report")
        machine._read("summary")
        surfaces.disagreements(machine.root, NAME, mlflow=True)
        table_of(machine.root)
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environment)
    gc.collect()
    gc.freeze()
