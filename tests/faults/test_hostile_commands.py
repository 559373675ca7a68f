"""Hostile words in every place of every verb: a documented exit code, one line, in seconds, and nothing written.

Whatever would take long (training, measuring, servers, clusters) is replaced by a refusal, since a hostile word is
sometimes a valid one. `make test-system` feeds the whole corpus, `make test` a sample.
"""

import io
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import bench, cli
from fpl_tune.core.errors import EnvironmentProblem

from ..cli.test_examples import VERBS as GROUPS_AND_VERBS
from ..config.test_hostile_configuration import FILES, OF_STUDIES, OVERRIDES
from ..conftest import MakeStore

SECONDS = 5.0
DOCUMENTED = {0, 1, 2, 3, 4}
NAMES = [
    "", " ", "-", "--", "---", "=", "==", ".", "..", "/", "//", "~", "~root", "*", "?", "[", "]", "{", "}", "(",
    "'", '"', "\\", "`id`", "$(id)", "${oc.env:HOME}", "${HOME}", "%s", "%(x)s", "{0}", "{x!r}", "\n", "\t", "\0",
    "\x1b[31mred", "é", "名", "💥", "\u202eabc", "a" * 5000, "a b", "../toy", "../../etc/passwd", "/etc/passwd",
    "/dev/null", "/proc/self", "toy/..", "./toy", "toy/", "TOY", "toy ", "toy.yaml", "toy\0", "nowhere.yaml",
    "studies", "con", "0", "-1", "1e400", "nan", "inf", "null", "true", "[]", "{}", "[1,2]", "1,2", "1;2", "1:2",
    "::", "a:b", "os:system", "toy:Toy", "http://127.0.0.1:9", "file:///etc/passwd", "s3://", "127.0.0.1:9",
    "127.0.0.1:99999", "18446744073709551616", "0x10", "1_000", "٣", "--help=1", "--format=yaml",
    "-h=1", "@", "#", "<svg>", "a=b", "toy=toy", "=toy",
]  # fmt: skip
MORE = [
    "data.root=/proc", "data=folder data.root=/dev", "data=folder data.root=/etc/passwd",
    "data=pacs data.root=file", "partition=file partition.file=/etc/passwd",
    "partition=file partition.file=/dev/zero", "partition.file=x", "clip.pretrained=/etc/passwd",
    "clip.pretrained=/dev/zero", "clip.name=../x clip.pretrained=null", "clip.name=''", "method=os:system",
    "method=builtins:exec", "method=toy:", "method=:Toy", "method=a.b.c:D", "method.name=promptfl",
    "method={name: promptfl}", "method.name=os:system", "axes.method.name=[os:system]",
    "method.n_ctx=-1", "optim.lr=inf", "optim.lr=1e309", "optim.lr=[1]", "optim.lr={a: 1}",
    "optim.lr=''", "optim.groups.a=b", "protocol.rounds=1.5", "protocol.rounds=true",
    "protocol.rounds=1e3", "protocol.participation=2", "partition.n_clients=0", "partition.n_clients=50",
    "data.domains=[]", "data.domains=[nowhere]", "data.domains=clipart", "data.shots=-1", "data.classes=x", "name=",
    "name=.", "name=-x", "name=a/b", "title={}", "title=$x$", "note=\\", "seeds=", "seeds=[]", "seeds=[1,[2]]",
    "seeds=1e99", "seeds={}", "seeds=-1", "budget=2h",
    "execution.parallel=-1", "execution.gpus=nan", "execution.address=::", "execution.checkpoints=x://",
    "execution.memory=1", "search={}", "search.sampler=os:system", "search.sampler={name: tpe, x: 1}",
    "search.trials=1e9", "prune.rule=x", "report.x=nowhere", "report.metric=x", "report.rope=nan", "stages=[{}]",
    "let={}", "let.x=1", "scale=paper", "axes={}", "axes.x=[1]", "axes.method=[[]]",
    "axes.seeds=[1]", "references=[{}]", "references=[{x: 1}]", "~axes ~references", "~method", "~seeds",
    "+method=promptfl", "++a.b=1", "tracking.uri=x://",
]  # fmt: skip
CORPUS = [*NAMES, *MORE, *OVERRIDES, *OF_STUDIES, *(f"studies/{name}.yaml" for name in FILES)]
UNWRITABLE = ["/proc/nothing/x", "file/x", "", "\0", "/dev/null/x", "a" * 5000]
"""Of the arguments that name what is written."""
WRITTEN = {"out", "export"}
VALID = {"name": "toy", "out": "/proc/nothing/x", "address": "127.0.0.1:9", "file": "none.npz"}
KINDS = {"ls": "methods", "new": "study", "cluster template": "slurm", "bench": "text"}
BEFORE = {"cluster wait": ["--seconds", "1"]}


VERBS = {words: verb for words, verb in GROUPS_AND_VERBS.items() if not hasattr(verb, "commands")}


def calls(words: tuple[str, ...], corpus: list[str]) -> Iterator[list[str]]:
    """Calls of a verb with each input in one of its places, in turn; all other arguments are valid."""
    verb = VERBS[words]
    arguments = [p for p in verb.params if p.param_type_name == "argument"]
    options = [p for p in verb.params if p.param_type_name == "option" and not getattr(p, "is_flag", False)]
    given = {**VALID, "kind": KINDS.get(" ".join(words), "")}
    valid = {p.name: given[p.name] for p in arguments if p.required}
    start = [*words, *BEFORE.get(" ".join(words), [])]

    def filled(place: Any, given: list[str]) -> list[str]:
        ordered = [given if p is place else [valid[p.name]] if p.name in valid else [] for p in arguments]
        more = [place.opts[0], *given] if place in options else []
        return [*start, *more, *(word for part in ordered for word in part)]

    writing = [place for place in (*arguments, *options) if place.name in WRITTEN]
    yield from (filled(place, [path]) for place in writing for path in UNWRITABLE)
    places = itertools.cycle([place for place in (*arguments, *options) if place.name not in WRITTEN] or [None])
    for text in corpus:
        place = next(places)
        split = place is not None and place.nargs == -1
        yield filled(place, text.split(" ") if split and "=" in text else [text]) if place else [*start, text]


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder, with its size and time."""
    found = ((path, path.lstat()) for path in folder.rglob("*"))
    return {str(path): (state.st_size, state.st_mtime_ns) for path, state in found if not path.is_dir()}


def refused(*_: Any, **__: Any) -> Any:
    raise EnvironmentProblem("This would run, which the test does not.")


@pytest.fixture
def toy(make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in with a study that has results, hostile study files, and nothing that takes long."""
    here = tmp_path / "here"
    (here / "outputs").mkdir(parents=True)
    (here / "studies").mkdir()
    (here / "file").write_text("no folder")
    make_store(body="axes: {method: {n_ctx: [2, 4]}}\ntracking: {enabled: false}\nseeds: 2\n", root=here / "outputs")
    for name, (content, _) in FILES.items():
        (here / "studies" / f"{name}.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "FPL_TUNE_OUTPUT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "100", "HOME": str(here), "FPL_TUNE_PLUGINS": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(here)
    long = [
        "api.start_study", "simulation.simulation.Simulation", "report.build",
        "execute.ray.alive", "execute.ray.inspect", "simulation.worlds.world_of", "track.experiments",
        "cli.cluster.time.sleep", "cli.new.write_text",
        "parity.run.world_of", "parity.world.towers_for",
    ]  # fmt: skip
    for name in long:
        monkeypatch.setattr(f"fpl_tune.{name}", refused)
    for name in dir(bench):
        if name.startswith("bench_"):
            monkeypatch.setattr(bench, name, refused)
    return here


def problem(words: list[str], folder: Path, before: dict[str, tuple[int, int]]) -> str:
    """What is wrong with how a call ends; "" if nothing is."""
    out, err, began = io.StringIO(), io.StringIO(), time.process_time()
    environment = dict(os.environ)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main(words)
        return "it does not exit"
    except SystemExit as ended:
        code = ended.code
    except BaseException as raised:
        return f"it raises {type(raised).__name__}: {raised}"[:300]
    finally:
        os.environ.clear()
        os.environ.update(environment)  # modules that the words name are trusted from then on
    lines = err.getvalue().splitlines()
    if code not in DOCUMENTED:
        return f"exit code {code}"
    if code and len(lines) != 1 and not (code == 3 and not lines):  # `doctor` and `data check` print a table
        return f"{len(lines)} lines on standard error: {lines[:3]}"
    if any(len(line) > 1_000 for line in lines) or "Traceback" in out.getvalue() + err.getvalue():
        return f"a long line: {lines[0][:300]}"
    if (seconds := time.process_time() - began) > SECONDS:
        return f"{seconds:.1f} s"
    if (after := snapshot(folder)) != before:
        return f"written: {sorted(after.items() ^ before.items())[:3]}"
    return ""


def problems(words: tuple[str, ...], corpus: list[str], toy: Path) -> dict[str, str]:
    before = snapshot(toy.parent)
    found = {" ".join(call)[:120]: problem(call, toy.parent, before) for call in calls(words, corpus)}
    return {call: text for call, text in found.items() if text}


def test_the_corpus_reaches_every_place() -> None:
    assert len(set(CORPUS)) == len(CORPUS) >= 150
    assert len({words[0] for words in VERBS}) == 17
    given = list(calls(("study",), CORPUS))
    assert any(call[:2] == ["study", "toy"] for call in given)
    assert any("--format" in call for call in given)


def test_every_verb_refuses_a_sample_in_one_line(toy: Path) -> None:
    found = {}
    for number, words in enumerate(VERBS):
        found |= problems(words, CORPUS[7 * number :: len(CORPUS) // 2][:2], toy)
    assert found == {}


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_refuses_the_whole_corpus_in_one_line(words: tuple[str, ...], toy: Path) -> None:
    assert problems(words, CORPUS, toy) == {}
