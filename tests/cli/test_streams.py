"""A broken console does not fail a study; for other verbs it is a line, unless the reader has closed the pipe."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pandas as pd
import pytest
import yaml

from fpl_tune.cli import output, streams

from .conftest import Command, Done

BODY = """title: Größe λ
axes: {optim: {lr: [0.01, 0.1]}}
tracking: {enabled: false}
"""
ASCII = "LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii"
NO_SPACE = "fpl-tune: Standard output cannot be written (No space left on device)."
has_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")


@pytest.fixture(autouse=True)
def study(here: Path, head: str) -> Path:
    """The folder of a study's results, `tiny`, which has not run."""
    (here / "tiny.yaml").write_text(head + BODY, encoding="utf-8")
    return here / "outputs" / "tiny"


def shell(line: str) -> Done:
    """What a line of bash does, in which $FPL is the command in a process of its own."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, encoding="utf-8", timeout=240,
        check=False, env={**os.environ, "FPL": f"{sys.executable} -m fpl_tune"},
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def is_whole(study: Path) -> bool:
    """Whether a study left its tables and its page."""
    seeds = pd.read_csv(study / "results.csv").groupby("cell")["seed"].nunique()
    return list(seeds) == [2, 2] and all((study / name).stat().st_size for name in ("report.html", "table.csv"))


@pytest.mark.parametrize(
    ("line", "code", "err"),
    [
        ("$FPL study -q tiny.yaml >&- 2>&-", 0, ""),
        pytest.param("$FPL study -q tiny.yaml | true", 0, "", marks=pytest.mark.system),
        pytest.param("$FPL study -q tiny.yaml --format json > /dev/full", 0, NO_SPACE, marks=has_full),
        (f"umask 077; unset HOME TMPDIR; {ASCII} $FPL study -q tiny.yaml", 0, ""),
        pytest.param(
            "ulimit -n 64; COLUMNS=0 TERM=none TZ=No/Where $FPL study -q tiny.yaml 'axes.optim.lr=[0.1,1e20]'",
            1,
            "lr=1e+20",
            marks=pytest.mark.system,
        ),
    ],
    ids=["closed", "pipe", "full", "no home, ascii", "odd terminal, few files"],
)
def test_a_study_ends_by_its_results(line: str, code: int, err: str, study: Path) -> None:
    done = shell(line)
    assert done.code == code, done.err
    assert done.err.startswith(err) if err else done.err == ""
    assert is_whole(study)
    if ASCII in line:
        assert "Gr??e ?" in done.out
        assert done.out.isascii()
        assert study.stat().st_mode & 0o077 == 0


def test_so_does_one_in_ray_whose_processes_have_the_same_descriptors(study: Path) -> None:
    assert shell("$FPL study -q tiny.yaml execution.executor=ray <&- >&- 2>&-").code == 0
    assert is_whole(study)


def test_a_descriptor_that_was_closed_is_no_file_of_the_command() -> None:
    assert shell("$FPL ls data <&- >&-") == Done(0, "", "")


def refusing(kind: str) -> TextIO:
    """A file that cannot be written: on a full device, or a pipe whose reader has gone."""
    if kind == "full":
        return open("/dev/full", "w", encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", encoding="utf-8")


@pytest.mark.parametrize(("kind", "code", "err"), [pytest.param("full", 3, NO_SPACE, marks=has_full), ("pipe", 0, "")])
def test_other_verbs_say_so_unless_the_reader_had_enough(
    kind: str, code: int, err: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing(kind) as out:
        monkeypatch.setattr(sys, "stdout", out)
        done = command("ls", "methods")
    assert done.code == code
    assert done.err.startswith(err) if err else done.err == ""
    assert done.err.count("\n") == bool(err)


def printing(code: int | None = None) -> None:
    """Prints to both streams, and exits by a code of its own."""
    with streams.unfailing():
        print("x" * 100_000)
        print("y", file=sys.stderr)
        if code is not None:
            sys.exit(code)


@has_full
@pytest.mark.parametrize("code", [0, 2])
def test_a_code_of_its_own_comes_first(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing("full") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended:
            printing(code)
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(f"y\n{NO_SPACE}")


@has_full
def test_both_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing("full") as out, refusing("pipe") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            printing()
    assert ended.value.code == 3


def test_streams_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars and consoles read them."""
    master, terminal = os.openpty()
    with open(master, "rb"), open(terminal, "w", encoding="latin-1", buffering=1) as out:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", kept := io.StringIO())
        with streams.unfailing():
            now = sys.stdout
            assert (now.isatty(), now.fileno(), now.encoding) == (True, terminal, "latin-1")
            assert now.line_buffering
            print("kept", file=sys.stderr)
        assert sys.stdout is out
        assert sys.stderr is kept
        assert kept.getvalue() == "kept\n"


def test_what_programs_read_is_escaped_where_letters_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    with streams.unfailing():
        output.emit({"title": "Größe λ"}, "json")
    assert json.loads(written.getvalue()) == {"title": "Größe λ"}
    written.truncate(written.seek(0))
    with streams.unfailing():
        output.emit_config({"title": "Größe λ"})
    assert yaml.safe_load(written.getvalue()) == {"title": "Größe λ"}
