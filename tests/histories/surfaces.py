"""What users read of a study, held against the oracle, and against what they read of the same study elsewhere.

`read` calls the command as users do, in this process, and collects what it prints and writes; `differing` compares two
folders of which users should read the same. `disagreements` compares these texts, and those of the Python API, with
`oracle.expected`. Each entry that it returns begins with a key, which says what kind of figure disagrees.
"""

from __future__ import annotations

import contextlib
import csv
import html
import io
import json
import math
import os
import re
import sqlite3
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import oracle
import typer.main
from oracle import TEST, VAL

import fpl_tune
from fpl_tune import cli
from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.metrics import METRICS
from fpl_tune.report import page as _  # noqa: F401  what the command would import at its first report

RULES = ("final", "best_val", "best_test", "mean_last5")
_SHARES = ("acc_mean", "acc_min", "acc_worst10", "acc_std", "macro_f1", "macro_f1_present", "ece", "harmonic_mean")
"""Last parts of the names of metrics that are printed in percent."""
_OVER = ("done", "failed", "diverged", "pruned")
_command = cache(typer.main.get_command)  # made anew for each call, it takes longer than what it calls


@dataclass
class Done:
    """How a call of the command ended."""

    code: int
    out: str
    err: str
    problem: Exception | None = None
    """What it raised."""


def call(*words: str) -> Done:
    """Calls the command in this process."""
    out, err, code, raised = io.StringIO(), io.StringIO(), 0, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception as problem:
            code, raised = -1, problem
    return Done(code, out.getvalue(), err.getvalue(), raised)


_JSON = ("--format", "json")
_CALLS = (
    *(("show", *words) for words in ((), _JSON, ("--best",), ("--best", *_JSON), ("--claims",))),
    ("status",),
    ("status", *_JSON),
    ("report", "--out", "report"),
    ("export", "export"),
)
"""Calls of the command, without the study's name."""
_ELSEWHERE = re.compile(
    r'<script>.*?</script>|<style>.*?</style>|<meta name="fpl-store".*?>|<span class="soft">MLflow.*?</span>', re.DOTALL
)
"""Parts of a page that are the same in all studies, or lead to MLflow."""
_LEFT_OUT = re.compile(r"\d+ cells? with results (is|are) not asked for:.*", re.DOTALL)
"""The last line of `show`, where a study has more on disk than it asks for."""
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d\S*")
TREND = "worse (trend)"
_COLOURS = re.compile(r'"range":\["#.*?\]')
"""Of series, which follow from the times at which they began."""


@dataclass
class Surfaces:
    """What users read of a study: by the words of each call how it ended, and by their names the texts of all
    surfaces, without the names of folders."""

    calls: dict[tuple[str, ...], Done]
    texts: dict[str, str]


@contextlib.contextmanager
def _reader(root: Path) -> Iterator[Path]:
    """The environment of a user who reads an output folder, and a folder for what the command writes."""
    environment = {"FPL_TUNE_OUTPUT": str(root), "NO_COLOR": "1", "COLUMNS": "400"}
    with (
        patch.dict(os.environ, environment),
        patch.object(typer.main, "get_command", _command),
        tempfile.TemporaryDirectory() as out,
    ):
        yield Path(out)


def read(root: Path, name: str, *, mlflow: bool = False) -> Surfaces:
    """Reads a study in an output folder; `mlflow`: also the run of the study as a whole in its SQLite database."""
    with _reader(root) as out:
        return _read(root, name, out, mlflow=mlflow)


def _read(root: Path, name: str, out: Path, *, mlflow: bool) -> Surfaces:
    calls, texts = dict[tuple[str, ...], Done](), dict[str, str]()
    for words in _CALLS:
        folders = [str(out / word) if word in ("report", "export") else word for word in words[1:]]
        calls[words] = done = call(words[0], name, *folders)
        texts[" ".join(words)] = f"{done.code} {done.problem} {done.err} {_LEFT_OUT.sub('', done.out)}"
    files = {str(path.relative_to(out)): path for path in sorted(out.rglob("*")) if path.is_file()}
    files |= {file: root / name / file for file in ("results.csv", "rules.csv") if (root / name / file).is_file()}
    texts |= {file: path.read_bytes().decode("latin-1") for file, path in files.items()}
    if mlflow:
        study = {key: runs for key, runs in _mlflow_runs(root, name).items() if key == "study"}
        kept = ("fpl.status", "mlflow.note.content")
        texts["mlflow"] = str([(r["status"], r["metrics"], *map(r["tags"].get, kept)) for r in study.get("study", [])])
    for folder, word in ((str(root), "OUTPUT"), (f"{root.name}/{name}", f"OUTPUT/{name}"), (str(out), "OUT")):
        texts = {surface: text.replace(folder, word) for surface, text in texts.items()}
    return Surfaces(calls, {surface: _ELSEWHERE.sub("", text) for surface, text in texts.items()})


def differing(one: Mapping[str, str], other: Mapping[str, str], *, colours: bool = True) -> str:
    """The first surface on which users read something else, with both texts; empty if there is none."""
    for surface in {**one, **other}:
        mine, theirs = (_CLOCK.sub("", texts.get(surface, "nothing")) for texts in (one, other))
        if not colours:
            mine, theirs = (_COLOURS.sub("", text) for text in (mine, theirs))
        if mine != theirs:
            same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), 0)
            start = max(0, same - 30)
            return f"{surface}: {mine[start : start + 120]!r} instead of {theirs[start : start + 120]!r}"
    return ""


def disagreements(root: Path, name: str, *, mlflow: bool = False) -> tuple[list[str], Surfaces]:
    """Says in which figures what users read of a study differs from the oracle.

    Args:
        root: the output folder.
        name: the study.
        mlflow: also reads the SQLite database in the output folder, which holds the study.

    Returns:
        Lines `key surface: what: says X, oracle says Y`, none where all agree; and what was read.
    """
    less = [name for name, metric in METRICS.items() if metric.maximize is False]
    for path in Path().glob("*.py"):  # methods in the working folder, which no reader has loaded yet
        less += re.findall(r'Metric\("([\w/]+)", maximize=False\)', path.read_text())
    facts = oracle.load(root / name, less)
    with _reader(root) as out:
        shown = _read(root, name, out, mlflow=mlflow)
        judge = Judge(name, facts, facts.study["report"]["metric"], facts.study["report"]["rule"], shown)
        for surface in (_places, _show, _best, _status, _table_of_results, _python):
            with judge.surface(surface.__name__):
                surface(judge, root / name)
        with judge.surface("report"):
            _report(judge, out / "report")
        with judge.surface("export"):
            _export(judge, out / "export")
        if mlflow:
            with judge.surface("mlflow"):
                _mlflow(judge, root)
    return judge.found, shown


@dataclass
class Judge:
    """Compares what a surface says with what the oracle expects under a metric and a rule."""

    name: str
    facts: oracle.Facts
    metric: str
    rule: str
    shown: Surfaces
    found: list[str] = field(default_factory=list)
    at: str = ""
    """The present surface."""

    def __post_init__(self) -> None:
        self.look(self.metric, self.rule)

    def called(self, *words: str) -> Done:
        """How a call of the command ended, without the study's name; it is made if it was not yet."""
        done = self.shown.calls.get(words) or call(words[0], self.name, *words[1:])
        if done.problem is not None:
            raise done.problem
        return done

    def look(self, metric: str, rule: str) -> None:
        """Expects the figures of a metric under a rule from now on."""
        self.metric, self.rule = metric, rule
        self.expected = oracle.expected(self.facts, metric, rule)

    @contextlib.contextmanager
    def surface(self, name: str) -> Iterator[None]:
        """A surface. An exception is an entry, but for an error in one line where there is nothing to show."""
        self.at = name.strip("_")
        try:
            yield
        except FplTuneError as problem:
            if any(self.expected.n.values()) or "\n" in str(problem):
                self.say("refused", "all of it", f"{type(problem).__name__}: {problem}", "there are results")
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            told = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            self.say("traceback", f"{Path(where.filename).name}:{where.lineno}", told, "no error")

    def say(self, key: str, what: str, says: object, expects: object) -> None:
        """Notes a disagreement."""
        self.found.append(f"{key} {self.at}: {what}: says {says}, oracle says {expects}")

    def same(self, key: str, what: str, says: object, expects: object) -> None:
        """Compares two things."""
        if says != expects:
            self.say(key, what, says, expects)

    def near(self, key: str, what: str, says: object, expects: float) -> None:
        """Compares two numbers; None and an empty text are NaN."""
        number = math.nan if says in (None, "") else float(str(says))
        if not (math.isnan(number) and math.isnan(expects)) and not math.isclose(
            number, expects, rel_tol=1e-9, abs_tol=1e-12
        ):
            self.say(key, what, number, expects)

    def row(self, key: str, row: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """Compares the row of a cell.

        Args:
            key: the cell's id.
            row: its fields.
            names: what is compared (a field of `Expected`) -> the row's name for it.
        """
        label = self.facts.cell(key).label
        for what, name in names.items():
            expects = getattr(self.expected, what)[key]
            if what == "state":
                self.same("state", label, _state(row[name]), expects)
            elif what == "n":
                self.near("n", label, row[name], expects)
            else:
                self.near(what, f"{what} of {label}", row[name], expects)

    def labels(self, keys: Sequence[str]) -> str:
        """Labels of cells."""
        return "; ".join(self.facts.cell(key).label for key in keys) or "none"

    def choice(self, says: Sequence[str], best: Sequence[str] | None = None) -> None:
        """Compares the chosen cells, in any order.

        Args:
            says: ids that a surface names.
            best: what is expected; None: the choice by the study's rule.
        """
        expects = self.expected.best if best is None else best
        if {*says} != {*expects}:
            self.say("best-differs", "best", self.labels(says), self.labels(expects))


def printed(mean: float, std: float, metric: str, digits: int) -> str:
    """A mean and its deviation as tables print them."""
    if math.isnan(mean):
        return "–"
    share = metric.rpartition("/")[2] in _SHARES
    factor = 100 if share else 1e-6 if metric.endswith("_bytes") else 1
    values = [factor * v for v in (mean, std) if not math.isnan(v)]
    return " ± ".join(f"{v:.{digits}f}" if share else f"{v:,.0f}" if v >= 9999.5 else f"{v:.4g}" for v in values)


def alike(one: str, other: str) -> bool:
    """Whether two printed values agree, up to one unit of the last digit: sums may differ in their last bit."""
    parts = [text.replace("–", "nan").replace(",", "").split(" ± ") for text in (one, other)]
    if one == other or len(parts[0]) != len(parts[1]):
        return one == other
    ends = [len(text.partition(".")[2]) for text in parts[0]]
    with contextlib.suppress(ValueError):
        return all(abs(float(a) - float(b)) < 1.1 * 10**-n for a, b, n in zip(*parts, ends, strict=True))
    return False


def _state(text: str) -> str:
    """A state as the oracle calls it: what has not begun, is under way or waits is queued there."""
    return "queued" if text == "paused" else text


def _places(judge: Judge, folder: Path) -> None:
    """cells.json: which points lie in today's space, and which are published today."""
    for cell in judge.facts.cells:
        judge.same("inside", cell.label, cell.inside, oracle.inside(cell, judge.facts.study))
        judge.same("first", cell.label, cell.first, oracle.first(cell, judge.facts.study))


# -- the command and the Python API --------------------------------------------------------------------------

_FIGURES = {
    "state": "status", "n": "n", "mean": "mean", "std": "std", "min": "min", "max": "max", "val": VAL,
    "seconds": "time/seconds",
}  # fmt: skip


def _rows(judge: Judge, rows: Sequence[Mapping[str, Any]]) -> None:
    """Compares rows of cells as the command and the Python API give them."""
    judge.same("rows", "cells", [row["cell"] for row in rows], [cell.id for cell in judge.facts.cells])
    for row in rows:
        if any(row["cell"] == cell.id for cell in judge.facts.cells):
            judge.row(str(row["cell"]), row, _FIGURES)
            sent = [row[f"comm/{way}_bytes"] for way in ("up", "down")]
            total = "" if None in sent or "" in sent else sum(map(float, sent))
            judge.near("bytes", str(row["label"]), total, judge.expected.bytes[str(row["cell"])])


def _show(judge: Judge, folder: Path) -> None:
    """`show` as JSON, as CSV and as a table, under the report's rule and another one."""
    first = judge.rule
    other = RULES[(RULES.index(first) + len(judge.facts.cells)) % len(RULES)]
    for rule in dict.fromkeys((first, other)):
        judge.look(judge.metric, rule)
        words = [] if rule == first else ["--rule", rule]
        judge.at = " ".join(["show", *words])
        ended = judge.called("show", *words, "--format", "json")
        if ended.code:
            judge.say("refused", "all of it", ended.err.strip(), "a table")
            continue
        rows = json.loads(ended.out)
        _rows(judge, rows)
        if rule == first:
            judge.at = "show --format csv"
            again = [*csv.DictReader(io.StringIO(judge.called("show", "--format", "csv").out))]
            texts = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
            judge.same("formats", "rows", again, texts)
        judge.at = " ".join(["show", *words, "in words"])
        _show_table(judge, judge.called("show", *words).out)
    judge.look(judge.metric, first)


def _show_table(judge: Judge, text: str) -> None:
    """The table in the terminal: values, seeds and states, and which cell is said to be the best."""
    cells = {cell.id: cell for cell in judge.facts.cells}
    expects: dict[str, tuple[str, str, str]] = {}
    for key in cells:
        n, state = judge.expected.n[key], judge.expected.state[key]
        value, wanted = printed(judge.expected.mean[key], judge.expected.std[key], judge.metric, 1), _wanted(judge, key)
        expects[key] = value, str(n) if n >= wanted else f"{n} of {wanted}", "" if state == "done" else state
    labels = [cell.label for cell in cells.values()]
    found, marked = 0, list[str]()
    for line in text.splitlines():
        fields = [part.strip() for part in line.strip(" │").split("│")]
        label = fields[0].partition(" (reference ")[0]
        if len(fields) < 4 or labels.count(label) != 1:
            continue  # trials are in tables without lines, which `_show_trials` reads
        key = next(key for key, cell in cells.items() if cell.label == label)
        found += 1
        value, seeds, state = expects[key]
        marks = fields[1].split(", ") if fields[1] else []
        if {"best", "on the front"} & {*marks}:
            marked.append(key)
        states = ", ".join(_state(mark) for mark in marks if mark not in ("best", "on the front"))
        judge.same("state", label, states, state)
        judge.same("n", label, fields[-1], seeds)
        if not any(alike(part, value) for part in fields[3:-1]):
            judge.say("mean", label, fields[3:-1], value)
    if not any(cell.searched for cell in cells.values()):
        unique = [key for key, cell in cells.items() if labels.count(cell.label) == 1]
        judge.same("rows", "number of cells", found, len(unique))
        judge.choice([key for key in marked if key in unique], best=[k for k in judge.expected.best if k in unique])
        return
    trials = [expects[key] for key, cell in cells.items() if cell.role == "trial"]
    best = [expects[key] for key in judge.expected.best]
    for line in text.splitlines():
        fields = re.split(r"\s{2,}", line.strip())
        if len(fields) < 4 or not fields[0].isdigit():
            continue
        mine = [row for row in trials if row[1] == fields[-1] and any(alike(part, row[0]) for part in fields)]
        if not mine:
            judge.say("mean", f"trial {fields[0]}", fields[1:], "no trial has these figures")
        named = {"best", "on the front"} & {*", ".join(fields).split(", ")}
        if named and not any(row in best for row in mine):
            judge.say("best-differs", f"trial {fields[0]}", fields[1:], best)


def _best(judge: Judge, folder: Path) -> None:
    """`show --best`, which chooses by the study's rule unless it is told another."""
    ended = judge.called("show", "--best", "--format", "json")
    if ended.code:
        judge.choice([])
        judge.same("message", "lines of the refusal", len(ended.err.strip().splitlines()), 1)
        return
    found = json.loads(ended.out)
    if judge.expected.front:
        judge.choice([row["id"] for row in found])
        return
    keys = found["id"].split()
    judge.choice(keys)
    if {*keys} == {*judge.expected.best}:
        rule = judge.rule if judge.rule in ("final", "best_val") else "final"
        key = "best-value" if found["rule"] == rule else "best-rule"
        objective = next(name for name in found if "/" in name)
        judge.near(key, objective, found[objective], judge.expected.best_value)
        if len(keys) == 1:
            mean = oracle.expected(judge.facts, TEST, rule).mean[keys[0]]
            judge.near(key, "test accuracy", found[TEST], mean)
    words = judge.called("show", "--best").out
    judge.same("best-differs", "in words", re.findall("[0-9a-f]{16}", words), keys)


def _status(judge: Judge, folder: Path) -> None:
    """`status`, as JSON and in a sentence."""
    found = json.loads(judge.called("status", "--format", "json").out)
    states = {name: found[name] for name in ("done", "pruned", "diverged", "failed")}
    states["queued"] = found["queued"] + found["paused"]
    judge.same("state", "cells by state", states, {name: judge.expected.states[name] for name in states})
    judge.same("seeds", "seeds with a result", found["seeds"], judge.expected.seeds)
    judge.same("rows", "cells", found["cells"], len(judge.facts.cells))
    sentence = judge.called("status").out
    for state, number in states.items():
        if number and state != "queued" and f"{number} {state}" not in sentence:
            judge.say("state", "the sentence", sentence.strip(), f"{number} {state}")


def _table_of_results(judge: Judge, folder: Path) -> None:
    """results.csv and rules.csv: the values of each seed under the study's rule, and under each rule."""
    for name in ("results.csv", "rules.csv"):
        if (folder / name).is_file():
            _results_in(judge, folder / name)
        elif any(cell.results for cell in judge.facts.cells):
            judge.say("missing", name, "nothing", "there are results")


def _results_in(judge: Judge, path: Path) -> None:
    seen: dict[tuple[str, int], set[str]] = {}
    for row in csv.DictReader(io.StringIO(path.read_text())):
        cell = next((cell for cell in judge.facts.cells if cell.id == row["cell"]), None)
        seed, rule = int(row["seed"]), row["rule"]
        if cell is None or seed not in cell.results:
            judge.say("rows", path.name, f"a row of {row['label']}, seed {seed}", "no such result")
            continue
        seen.setdefault((cell.id, seed), set()).add(rule)
        where = f"{cell.label}, seed {seed}, {rule}"
        counts = cell.state != "pruned" and seed in cell.having("done")
        judge.same("n", f"{where} counts", row["status"] == "done", counts)
        if cell.results[seed]["status"] not in ("failed", "diverged"):
            for name in (TEST, VAL):
                judge.near("mean", f"{name} of {where}", row[name], oracle.value(cell.histories[seed], name, rule))
        if counts and row["seeds"] != str(len(cell.having("done"))):
            judge.say("n", f"seeds of {where}", row["seeds"], len(cell.having("done")))
    for cell in judge.facts.cells:
        for seed in cell.having("done"):
            rules = {rule for rule in RULES if not math.isnan(oracle.value(cell.histories[seed], TEST, rule))}
            own = {judge.rule} if path.name == "results.csv" else rules or {judge.rule}
            judge.same("rows", f"rules of {cell.label}, seed {seed}", seen.get((cell.id, seed), set()), own)


def _python(judge: Judge, folder: Path) -> None:
    """`fpl_tune.load_study`: summary, results, rounds; its answer is compared with that of the page."""
    study = fpl_tune.load_study(judge.name)
    first = judge.metric, judge.rule
    other = RULES[(RULES.index(judge.rule) + 1 + len(judge.facts.cells)) % len(RULES)]
    for metric, rule in dict.fromkeys([first, (TEST, other), ("test/loss", "best_val")]):
        judge.look(metric, rule)
        judge.at = f'load_study().summary("{rule}", "{metric}")'
        if any(cell.counting for cell in judge.facts.cells):
            frame = study.summary(rule=rule, metric=metric)
            if frame.index.name == "method":
                _by_setting(judge, _plain(frame.reset_index().to_dict("records")))
            else:
                _rows(judge, _plain(frame.to_dict("records")))
    judge.look(*first)
    judge.at = "load_study()"
    ran = sum(len(history) for cell in judge.facts.cells for history in cell.histories.values())
    judge.same("rows", "rounds", len(study.rounds), ran)
    if (folder / "results.csv").is_file():
        text = (folder / "results.csv").read_text()
        judge.same("formats", "results.csv", study.results.to_csv(index=False) == text, True)


def _plain(rows: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    return [{str(k): None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]


def _export(judge: Judge, out: Path) -> None:
    """`export`: the cell that it exports, by default the best one, and one that it is given."""
    ended = judge.called("export", "export")
    files = [path.stem for path in out.rglob(f"{judge.name}-*.yaml")]
    if ended.code and len(ended.err.strip().splitlines()) != 1:
        judge.say("message", "the refusal", ended.err, "one line")
    judge.choice([stem.rpartition("-")[2] for stem in files], best=[] if judge.expected.front else None)
    if judge.expected.best and not judge.expected.front:
        cell = judge.facts.cell(judge.expected.best[0])
        judge.at, place = "export --cell", out.with_name("cell")
        call("export", judge.name, str(place), "--cell", cell.id)
        judge.same("best-differs", "file", [p.stem for p in place.glob("*-*.yaml")], [f"{judge.name}-{cell.id}"])
        rows = [*csv.DictReader(io.StringIO((place / "expected.csv").read_text()))]
        judge.same("rows", "seeds in expected.csv", {row["status"] for row in rows}, {"done"})


# -- the report ----------------------------------------------------------------------------------------------


def _report(judge: Judge, out: Path) -> None:
    """`report`: the page with its data, and the tables in Markdown, LaTeX and CSV."""
    ended = judge.called("report", "--out", "report")
    if ended.code:
        if any(judge.expected.n.values()):
            judge.say("refused", "all of it", ended.err.strip(), "a page")
        return
    text = (out / "report.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data = json.loads(found[1] if found else "{}")
    cells = [cell for cell in sorted(judge.facts.cells, key=lambda cell: cell.number) if cell.role != "ablation"]
    names = {"state": "status", "n": "seeds", "mean": "mean", "std": "std", "val": "validation", "seconds": "seconds"}
    judge.same("rows", "cells", sorted(row["number"] for row in data["cells"]), [*range(len(cells))])
    for row in data["cells"]:
        key = cells[row["number"]].id
        judge.row(key, row, names)
        sent = None if row["MB"] is None else 1e6 * row["MB"]
        judge.near("bytes", row["label"], sent, judge.expected.bytes[key])
    judge.choice([cells[row["number"]].id for row in data["cells"] if row["best"]])
    keys, confirmed = [cells[row["number"]].id for row in data["cells"]], {c.id for c in judge.facts.confirmed}
    if (out / "table.csv").read_text().startswith("method,"):
        judge.at += ", table.csv"
        _by_setting(judge, [*csv.DictReader(io.StringIO((out / "table.csv").read_text()))])
    else:
        compared = _table_csv(judge, out / "table.csv", confirmed or {*keys})
        _tables(judge, text, out, [key for key in keys if key in (confirmed or keys)], compared, whole=not confirmed)
    if judge.expected.front and judge.expected.best:
        judge.at += ", fronts.csv"
        rows = csv.DictReader(io.StringIO((out / "fronts.csv").read_text()))
        judge.choice([row["cell"] for row in rows if row["on_the_front"] == "True"])
    said = html.unescape(re.findall(r'<p id="sentence">(.*?)</p>', text, re.DOTALL)[0])
    if any(cell.results for cell in judge.facts.cells):
        judge.same("answer", "the sentence", fpl_tune.load_study(judge.name).answer, said)
    late = any(c.state in ("queued", "failed") or _diverged(c) for c in judge.facts.cells)
    judge.same("answer", "the sentence is of a study under way", said.startswith("So far"), late)
    settings = {json.dumps([cell.run.get(group) for group in oracle.SETTING]) for cell in judge.facts.cells}
    for number in re.findall(r" over (\d+) settings", said):
        if int(number) > len(settings):
            judge.say("answer", "settings in the sentence", number, len(settings))
    _sentence(judge, said)


def _by_setting(judge: Judge, rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of tuned methods by settings: means and deviations of what is compared, and what is chosen."""
    cells, said, best = judge.facts.confirmed, list[tuple[float, float]](), list[float]()
    if not cells:
        chosen = [oracle.choose(judge.facts, judge.rule, own)[0] for own in judge.facts.searches]
        cells = [judge.facts.cell(key) for keys in chosen for key in keys]
        cells += [c for c in judge.facts.cells if c.role == "reference" or (c.reference and c not in cells)]
    columns = [name.removesuffix(" std") for name in rows[0] if name == "std" or name.endswith(" std")]
    settings = [column for column in columns if column != "over settings"]
    for row in rows:
        for column in settings:
            start = "" if column == "std" else f"{column} "
            if row.get(f"{start}mean") not in (None, ""):
                std = row[f"{start}std"]
                said.append((float(row[f"{start}mean"]), math.nan if std in (None, "") else float(std)))
                best += [said[-1][0]] if str(row[f"{start}best"]) == "True" else []
    shown = [cell for cell in cells if (cell.role != "published" or cell.reference) and cell.compared]
    expects = [(judge.expected.mean[cell.id], judge.expected.std[cell.id]) for cell in shown]
    texts = [sorted({f"{mean:.9g} {std:.6g}" for mean, std in pairs if not math.isnan(mean)})
             for pairs in (said, expects)]  # fmt: skip
    judge.same("mean", "means and deviations", *texts)


def _wanted(judge: Judge, key: str) -> int:
    """The number of seeds that a cell is to have."""
    cell, confirm = judge.facts.cell(key), judge.facts.study["effective"]["confirm"]
    of_search = confirm and cell.role in ("tuned", "published", "reference")
    return len(confirm if of_search else _first_seeds(judge.facts))


def _diverged(cell: oracle.Cell) -> bool:
    """Whether a cell lacks its result since it diverged; a trial has it by that."""
    return cell.state == "diverged" and cell.role != "trial"


def _sentence(judge: Judge, said: str) -> None:
    """The sentence: where it names the best cell of one setting, its figures and its verdict."""
    found = re.match(r"(?:So far, .*? done: )?(.*) is best on [\w/]+, with (\S+(?: ± \S+)?)", said)
    if found is None or len(judge.expected.best) != 1:
        return
    (best,) = judge.expected.best
    named, label = found[1].replace(" = ", "="), judge.facts.cell(best).label
    if named not in [cell.label for cell in judge.facts.cells]:  # a method, or a trial by its number
        return
    if named != label:
        judge.say("best-differs", "the sentence", found[1], label)
    if " = " in found[1]:  # a sweep, whose values have fewer digits
        return
    value = printed(judge.expected.mean[best], judge.expected.std[best], judge.metric, 2)
    if not alike(found[2], value):
        judge.say("mean", "the sentence", found[2], value)


def _table_csv(judge: Judge, path: Path, cells: set[str]) -> dict[str, dict[str, str]]:
    """table.csv: figures of cells, and their comparisons. Returns its rows by cell."""
    judge.at += ", table.csv"
    rows = {row["cell"]: row for row in csv.DictReader(io.StringIO(path.read_text()))}
    judge.same("rows", "cells", {*rows}, cells)
    names = {name: name for name in ("n", "mean", "std", "val", "bytes", "seconds")}
    for key, row in rows.items():
        if key in cells:
            judge.row(key, row, {"state": "status", **names})
            if row.get("reference"):
                _comparison(judge, key, row)
                both = judge.facts.cell(key).compared and judge.facts.cell(row["reference"]).compared
                judge.same("compared", judge.facts.cell(key).label, "compared", "compared" if both else "not compared")
    judge.at = judge.at.removesuffix(", table.csv")
    return rows


def _comparison(judge: Judge, key: str, row: Mapping[str, str]) -> None:
    """One comparison: its difference, interval and verdict, in the metric's direction."""
    facts, looks = judge.facts, judge.facts.looks
    cell, base = facts.cell(key), facts.cell(row["reference"])
    label = f"{cell.label} against {base.label}"
    last, level = math.inf, 1 - 0.05 / max(len(looks), 1)
    if looks:  # a verdict is of the look that decided; others are of the last one that was reached
        decided = int(float(row.get("look") or 0))
        both = cell.results.keys() & base.results.keys()
        last = decided or max((n for n in looks if both >= {*range(1, n + 1)}), default=0)
    difference, half, n = oracle.difference(cell, base, judge.metric, judge.rule, last=last, level=level)
    said = float(row["difference"] or "nan")
    judge.same("n", f"pairs of {label}", int(float(row["paired_seeds"])), n)
    if not math.isclose(said, difference, rel_tol=1e-6, abs_tol=1e-9):
        judge.say("difference", f"difference of {label}", said, difference)
    low, high = (float(row[f"difference_{end}"] or "nan") for end in ("low", "high"))
    share = judge.metric.rpartition("/")[2] in _SHARES
    least, most = difference - half, difference + half
    if share:
        least, most = max(least, -1.0), min(most, 1.0)
    if not math.isnan(low) and (low > least + 1e-9 or high < most - 1e-9):
        judge.say("interval", label, f"{low} to {high}", f"at least {least} to {most}")
    better, rope = facts.direction(judge.metric), facts.study["report"]["rope"] / 100 if share else 0.0
    if oracle.identical(cell, base, judge.metric, judge.rule, last=last):
        verdict = "identical"
    elif not oracle.varies(judge.metric):
        verdict = "higher" if said > 0 else "lower" if said < 0 else "equal"
    elif rope > 0 and low >= -rope and high <= rope:
        verdict = "equal"
    elif low > 0 or high < 0:
        verdict = "better" if better * said > 0 else "worse"
    else:
        verdict = "undecided"
    if (verdict, row["verdict"]) == ("undecided", TREND) and better * difference < 0:
        verdict = TREND  # of the test along an axis, see tests/analysis/test_sweep.py
    judge.same("verdict", label, row["verdict"], verdict)
    agrees = {"better": better * difference > 0, "worse": better * difference < 0}
    if verdict == row["verdict"] and not agrees.get(verdict, True):
        judge.say("verdict", label, row["verdict"], f"a difference of {difference}")


def _tables(
    judge: Judge, page: str, out: Path, keys: Sequence[str], rows: Mapping[str, Mapping[str, str]], *, whole: bool
) -> None:
    """The table on the page and in Markdown and LaTeX: the same texts, and those of the figures in table.csv.

    If it is not the `whole` table, that of the page also has the trials of a search that is confirmed.
    """
    place = judge.at
    judge.at = f"{place}, table.md"
    table = re.search(r'<table class="sortable">(.*?)</table>', page, re.DOTALL)
    lines = re.findall(r"<tr.*?>(.*?)</tr>", table[1] if table else "", re.DOTALL)
    shown = [
        [html.unescape(text).strip() for text in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", line, re.DOTALL)]
        for line in lines
    ]
    written = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| ")]
    fields = [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in written]
    bold = [key for key, row in zip(keys, fields[2:], strict=False) if row and row[0].startswith("**")]
    plain = [[text.removeprefix("**").removesuffix("**").replace("\\|", "|") for text in row] for row in fields]
    if whole:
        judge.same("formats", "the page's table", shown, [plain[0], *plain[2:]])
    judge.choice(bold, best=None if oracle.varies(judge.metric) else [])
    at = {name: i for i, name in enumerate(plain[0])}
    value = at["validation accuracy (%)"] + 1
    for key, texts in zip(keys, plain[2:], strict=False):
        label, n, wanted = judge.facts.cell(key).label, judge.expected.n[key], _wanted(judge, key)
        expects = printed(judge.expected.mean[key], judge.expected.std[key], judge.metric, 2)
        if not alike(texts[value], expects):
            judge.say("mean", label, texts[value], expects)
        judge.same("n", label, texts[at["seeds"]], str(n) if n >= wanted else f"{n} of {wanted}")
        verdict = rows.get(key, {}).get("verdict") or "–"
        judge.same("formats", f"verdict of {label}", texts[at["verdict"]].partition(" at ")[0], verdict)
        if "group" in at and not judge.facts.cell(key).compared:
            judge.same("compared", f"letter of {label}", texts[at["group"]], "–")
    judge.at = f"{place}, table.tex"
    latex = (out / "table.tex").read_text().replace(r"$\pm$", "±").replace("--", "–").replace(r"\textbf", "")
    for key in keys:
        text = printed(judge.expected.mean[key], judge.expected.std[key], judge.metric, 2)
        stands = latex.replace("{", "").replace("}", "")
        if judge.expected.state[key] == "done" and text != "–" and not _contains(stands, text):
            judge.say("mean", judge.facts.cell(key).label, "other values", text)
    judge.at = place


def _contains(text: str, value: str) -> bool:
    """Whether a text has a printed value."""
    return value in text or any(
        alike(part.strip(" \\"), value) for line in text.splitlines() for part in line.split("&")
    )


def _first_seeds(facts: oracle.Facts) -> list[int]:
    """Seeds that every cell is to have."""
    seeds = facts.looks[0] if facts.looks else facts.study["seeds"]
    return seeds if isinstance(seeds, list) else [*range(1, seeds + 1)]


# -- MLflow --------------------------------------------------------------------------------------------------


def _mlflow_runs(root: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """The active runs of what a study asks for by key: a cell's id, or `study`."""
    database = sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True)
    runs: dict[str, list[dict[str, Any]]] = {}
    alive = "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'"
    for run, status in database.execute(alive).fetchall():
        tags = dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", [run]))
        if tags.get("fpl.asked") != "no" and (tags.get("fpl.store"), tags.get("fpl.study")) == (
            (root / "mlflow.id").read_text().splitlines()[1],
            name,
        ):
            numbers = dict(database.execute("SELECT key, value FROM latest_metrics WHERE run_uuid = ?", [run]))
            runs.setdefault(tags["fpl.key"], []).append({"status": status, "tags": tags, "metrics": numbers})
    database.close()
    return runs


def _mlflow(judge: Judge, root: Path) -> None:
    """The runs in the SQLite database of an output folder: one for each cell that is over, and the study's own."""
    runs = _mlflow_runs(root, judge.name)
    expected, facts = judge.expected, judge.facts
    over = [cell for cell in facts.cells if expected.state[cell.id] in _OVER and cell.results]
    wanted = {"study", *(cell.id for cell in over)}
    judge.same("mlflow-runs", "runs", sorted(map(str, runs)), sorted(wanted))
    judge.same("mlflow-runs", "runs of one key", {k: len(v) for k, v in runs.items() if len(v) > 1}, {})
    plain = oracle.expected(facts, TEST, judge.rule)
    names = {TEST: "test_acc", VAL: "val_acc", "test/acc_std": "test_acc_std_of_clients"}
    headline = names.get(judge.metric, judge.metric.replace("/", "_"))
    for cell in over:
        for run in runs.get(cell.id, [])[:1]:
            bad = cell.state in ("failed", "diverged")
            judge.same("mlflow-state", cell.label, run["status"], "FAILED" if bad else "FINISHED")
            judge.same("mlflow-state", f"fpl.status of {cell.label}", run["tags"].get("fpl.status"), cell.state)
            figures = {"test_acc": plain.mean, "test_acc_std": plain.std, "val_acc": plain.val}
            figures |= {headline: expected.mean, f"{headline}_std": expected.std} if headline != "val_acc" else {}
            for name, by_cell in figures.items():
                _rounded(judge, "mlflow-mean", f"{name} of {cell.label}", run["metrics"].get(name), by_cell[cell.id])
            n = plain.n[cell.id]
            judge.same("mlflow-n", cell.label, run["metrics"].get("n_seeds"), float(n) if n else None)
    if "study" in runs:
        states = {cell.state for cell in facts.cells}
        failed = any(cell.state == "failed" or _diverged(cell) for cell in facts.cells)
        status = "KILLED" if "queued" in states else "FAILED" if failed else "FINISHED"
        judge.same("mlflow-status", "the study", runs["study"][0]["status"], status)


def _rounded(judge: Judge, key: str, what: str, says: float | None, expects: float) -> None:
    """Compares a figure of MLflow, which is given with four decimals where it is a share."""
    number = math.nan if says is None else says
    if not (math.isnan(number) and math.isnan(expects)) and not math.isclose(
        number, expects, rel_tol=1e-9, abs_tol=6e-5
    ):
        judge.say(key, what, number, expects)
