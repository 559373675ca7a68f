"""Runs a history of a study on the real platform, with a stand-in for the simulation, and says what is wrong.

A history is a study and a list of events: runs that end, stop or are killed, and edits between them. Each command
runs in a forked process, so that a kill is a kill. When the events are over, the study is run to its end, and
`promises.check` compares the result with what the documents promise: no traceback, refusals that change nothing, an
end, the table of a fresh run, no round twice, nothing missing, and surfaces that agree with a plain computation and
show nothing that the study does not ask for.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import surfaces
import yaml
from processes import LIMIT, End, in_child, picture_of_files, watch
from promises import Ending, check, copy_asked_for, table_of
from simulated import execute
from standin import ASIDE, StandIn, user_files
from surfaces import differing

from fpl_tune import report
from fpl_tune.core.errors import FplTuneError
from fpl_tune.execute import inline, manage, ray
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.runner import run_study
from fpl_tune.search.compose import compose
from fpl_tune.study.store import Store
from fpl_tune.track import MLflowCallback

NAME = "tiny"
RAY = ["execution.executor=ray", "execution.parallel=2"]
SPACE = Path("search_spaces", "mine:Mine.yaml")

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


class Interruption(Callback):
    """Stops a study after a number of rounds, or reads it then, as another process would."""

    def __init__(self, options: Mapping[str, Any], read: Callable[[], None]) -> None:
        self.options, self.read, self.rounds = options, read, 0
        self.store: Store | None = None
        self.wrong: list[str] = []
        """Calls before the study started, and threads that ended with an error."""
        threading.excepthook = lambda args: self.wrong.append(f"a thread ended with {args.exc_value!r}")

    def on_study_start(self, store: Store, cells: Any, jobs: Any) -> None:
        self.store = store

    def on_job_start(self, cell: Any, seeds: Any) -> None:
        self._started("on_job_start")

    def on_job_pause(self, cell: Any, seeds: Any) -> None:
        self._started("on_job_pause")

    def on_cell_end(self, row: Any) -> None:
        self._started("on_cell_end")

    def _started(self, name: str) -> None:
        if self.store is None:
            self.wrong.append(f"{name} was called before on_study_start")

    def on_round_end(self, cell: Any, records: Any) -> None:
        self._started("on_round_end")
        assert self.store is not None
        self.rounds += 1
        if self.rounds == self.options.get("stop"):
            manage.stop(self.store)
        if self.rounds == self.options.get("signal"):
            os.kill(os.getpid(), signal.SIGINT)
        if self.rounds == self.options.get("read"):
            self.read()


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
        self.root, self.name = self.work / "outputs", NAME
        self.problems: list[str] = []
        self.accepted = self._settings()
        """The files with which a start last worked."""
        self.original: tuple[Path, dict[str, str]] | None = None
        """The output folder that was copied last, and what it held then."""
        self.began = self.settled = False
        """Whether a start has worked; whether the last event was one that left nothing to do."""
        self.lost = 0
        """Events that may cost rounds since the last checkpoint."""
        self.damaged = self.other_seeds = self.other_cells = self.other_rule = self.other_space = False
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
        self.settled = False
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
                self.space, self.other_space = arguments[0], True
            case "published":
                self.space, self.other_space = {**self.space, "published": arguments[0]}, True
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
                    self.original = self.root, picture_of_files(self.root)
                self.root = target
            case "rename":
                before, self.name = self.root / self.name, f"{self.name}x"
                if arguments[0] and before.exists():
                    before.rename(self.root / self.name)
                self.back |= not arguments[0]  # the results stay with the former name
            case "other":
                self._other(*arguments)
            case "read":
                self.expect(self.child(partial(self._read, arguments[0])), "reading", ("done", "refused"))
            case _:
                raise ValueError(f"no event {kind}")
        self.write()

    def write(self) -> None:
        """Writes the user's files."""
        text = yaml.safe_dump({**self.study, "name": self.name}, sort_keys=False)
        (self.work / f"{self.name}.yaml").write_text(text)
        for name, text in user_files(**self.versions).items():
            (self.work / name).write_text(text)
        (self.work / SPACE).unlink(missing_ok=True)
        if self.space:
            (self.work / SPACE).parent.mkdir(exist_ok=True)
            (self.work / SPACE).write_text(yaml.safe_dump(self.space))

    def _settings(self) -> tuple[Any, ...]:
        return deepcopy((self.study, self.space, getattr(self, "versions", {})))

    def damage(self, kind: str, place: int, how: str) -> None:
        """Damages a file of the study: cuts or removes it, changes a number, or writes something else over it."""
        files = sorted(path for path in self.root.glob(f"{self.name}/**/{kind}") if path.is_file())
        if not files:
            return
        path = files[place % len(files)]
        self.damaged = True
        content = path.read_bytes()
        match how:
            case "remove":
                path.unlink()
            case "cut":
                path.write_bytes(content[: len(content) // 2])
            case "digit":
                path.write_bytes(content.replace(b"0.", b"0.1", 1))
            case _:
                path.write_bytes(b"\x00 no file of ours \xff")

    def start(self, options: Mapping[str, Any]) -> End:
        """Starts the study. A refused one is given back the files with which it last worked."""
        before, diverged = picture_of_files(self.root), self.diverged()
        end = self.child(partial(self._study, self.root, options))
        expected = ["done"]
        if options.get("kill"):
            expected.append("killed")
        if options.get("full"):
            expected.append("environment")
        if end.kind == "refused":
            if options.get("accepted"):
                self.report("refused", end.text[:300])
            changed = [name for name, found in picture_of_files(self.root).items() if before.get(name) != found]
            if changed or before.keys() - picture_of_files(self.root).keys():
                self.report("refusal", f"a refused start changed {', '.join(changed)[:200]} ({end.text[:200]})")
            if "\n" in end.text:
                self.report("refusal", f"more than one line: {end.text!r}")
            self.revert()
            return end
        self.expect(end, "a start", expected)
        if end.kind in ("killed", "environment") or options.get("full"):
            self.lost += 1
        if options.get("full"):  # no checkpoint is written, either
            self.lost += int(self.study["protocol"].get("rounds", 10))
        self.settled = end.kind == "done" and not end.pending and not end.failed
        if end.kind == "done":
            self.accepted, self.began = self._settings(), True
            self.check_retries(end)
            if options.get("retry"):
                self.retried = diverged
        return end

    def check_retries(self, end: End) -> None:
        """A seed that fails once is tried again; of seeds that trained together, the failure of one counts for all."""
        retries = self.study.get("execution", {}).get("retries", 1)
        together = self.study.get("seeds") != 1
        if retries > together and any("it fails once" in each for each in end.failures):
            self.report("retries", f"with {retries} retries, {end.failures[0][:200]}")

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
        end = self.child(partial(self.to_the_end, self.root))
        if end.kind == "refused" and self.began:  # as a start is: the user takes the last edits back
            self.revert()
            end = self.child(partial(self.to_the_end, self.root))
        if end.kind == "refused" and not self.began:
            return
        self.expect(end, "the last starts", ("done",))
        if end.kind == "done" and end.pending:
            self.report("end", f"after eight starts the study is not at its end: {end}")
        elif end.kind == "done":
            check(self, Ending.read(self.aside))

    def to_the_end(self, root: Path) -> End:
        """Starts the study until nothing is left or two starts end alike, and writes its `Ending`.

        Users read it as soon as nothing is left: a further start would mend what a run forgot to write.
        """
        aside, ends, mine, read = Path(os.environ[ASIDE]), list[End](), root == self.root, None

        def over() -> bool:
            left = ends[-1].pending or ends[-1].failed
            return not left or ends[-2:-1] == ends[-1:]

        if self.settled and mine:
            read = surfaces.disagreements(root, self.name, mlflow=self.history.mlflow)
        while not ends or (len(ends) < 8 and not over()):
            ends.append(self._study(root, {"workers": 1, "order": 0}))
        if mine:
            found, shown = read or surfaces.disagreements(root, self.name, mlflow=self.history.mlflow)
            ending = Ending(table_of(root / self.name, shown), shown.texts, found)
            ending.changed = self._changed(ending)
        else:
            shown = surfaces.read(root, self.name)
            ending = Ending(table_of(root / self.name, shown), shown.texts)
        ending.write(aside)
        ends[-1].pending += not over()
        return ends[-1]

    def _changed(self, ending: Ending) -> tuple[str, str] | None:
        """Key and text if a further start, or the removal of what the study does not ask for, changes what is read."""
        aside = Path(os.environ[ASIDE])
        os.environ[ASIDE] = str(shutil.copytree(aside, aside.with_name("again")))  # what runs here did not run twice
        copy_asked_for(self.root, self.name, self.work / "asked")
        if not (found := differing(ending.everything, self._read_again(self.work / "asked"))):
            return None
        shutil.copytree(self.root, self.work / "again")
        other = differing(ending.everything, self._read_again(self.work / "again"))
        return ("second", other) if other else ("deletion", found)

    def _read_again(self, root: Path) -> dict[str, str]:
        """What users read in a copy after a start, which has nothing to run."""
        try:
            self._study(root, {})
        except FplTuneError as problem:
            return {"the start": str(problem)}
        shown = surfaces.read(root, self.name, mlflow=self.history.mlflow)
        return Ending(table_of(root / self.name, shown), shown.texts).everything

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
        spec = compose(f"{self.name}.yaml", RAY if options.get("ray") else [])
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
        interruption = Interruption(options, lambda: self._read_beside(root))
        callbacks: list[Callback] = [interruption]
        if self.history.mlflow and root != self.work / "fresh":
            callbacks.append(MLflowCallback(lambda text: None))
        outcome = run_study(
            spec,
            root=root,
            executor=executor,
            callbacks=callbacks,
            retry=bool(options.get("retry")),
        )
        if interruption.wrong:
            raise RuntimeError(interruption.wrong[0])
        ran = outcome.done + outcome.failed
        return End("done", "", outcome.exit_code, outcome.pending, ran, outcome.failed, [*outcome.failures])

    def _read_beside(self, root: Path) -> None:
        """Reads the study from another process while it runs."""
        aside = self.aside / "reader"
        aside.mkdir(exist_ok=True)
        end = in_child(lambda: self._read("report"), aside)
        if end.kind not in ("done", "refused", "slow"):
            raise RuntimeError(f"a reader beside the study ended with {end.kind}: {end.text}")

    def _read(self, verb: str) -> End:
        """A reader of the stored study."""
        store = Store.open(self.root, self.name)
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
            run_study(spec, root=self.root, executor=executor)
            return End("done")

        aside = self.aside / "other"
        aside.mkdir(exist_ok=True)
        self.expect(self.child(work, aside), "another study", ("done", "refused"))

    def expect(self, end: End, what: str, kinds: Sequence[str]) -> None:
        if end.kind not in kinds:
            last = end.text.strip().splitlines()[-1:] or [""]
            key = {"error": "traceback", "slow": "slow"}.get(end.kind, "refusal")
            self.report(key, f"{what} ended with {end.kind}: {last[0][:300]}", end.text)

    def report(self, key: str, text: str, more: str = "") -> None:
        """Notes a problem, unless it is a known one."""
        if key not in self.later:
            self.problems.append(f"{key}: {text}")
            if more:
                (self.aside / "traceback").write_text(more)


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
        _, shown = surfaces.disagreements(machine.root, NAME, mlflow=True)
        table_of(machine.root / NAME, shown)
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environment)
    gc.collect()
    gc.freeze()
