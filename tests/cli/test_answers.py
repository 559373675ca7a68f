"""Answers are repeated without the libraries that made them, and only while nothing has changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fpl_tune import cli
from fpl_tune.cli import answers, output

from .conftest import TINY, Command

REPEATED = """
import json, sys
sys.argv = ["fpl-tune", *json.loads(sys.argv[1])]
try:
    from fpl_tune.cli import main
    main()
except SystemExit:
    heavy = ("torch", "numpy", "scipy.ndimage", "pandas", "hydra", "ray", "mlflow", "optuna")
    print([name for name in heavy if name in sys.modules])
"""
WORDS = ["study small", "show small", "status small", "plan small"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, feature_cache: Path) -> tuple[Path, Path]:
    """A folder in which a finished study was repeated, which keeps its answers, and a copy of it."""
    home, kept = tmp_path_factory.mktemp("answers"), tmp_path_factory.mktemp("kept") / "answers"
    (home / "studies").mkdir()
    (home / "studies" / "small.yaml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FPL_TUNE_OUTPUT", str(home / "outputs"))
        patch.setenv("FPL_TUNE_CACHE", str(feature_cache))
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", "200")
        patch.chdir(home)
        for _ in range(2):
            with pytest.raises(SystemExit) as ended:
                cli.main(["study", "small"])
            assert ended.value.code in (None, 0)
    shutil.copytree(home, kept)
    return home, kept


@pytest.fixture
def answered(made: tuple[Path, Path], here: Path, feature_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as it was: answers hold for one path, sizes and times."""
    home, kept = made
    shutil.rmtree(home)
    shutil.copytree(kept, home)
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(home / "outputs"))
    monkeypatch.setenv("FPL_TUNE_CACHE", str(feature_cache))
    monkeypatch.chdir(home)
    return home


@pytest.mark.parametrize("words", [*WORDS, "show small --format json"])
def test_a_finished_study_is_answered_without_heavy_imports(words: str, answered: Path, command: Command) -> None:
    first = command(*words.split())
    call = [sys.executable, "-c", REPEATED, json.dumps(words.split())]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=answered)
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert [line.partition(", in ")[0] for line in lines] == [
        line.partition(", in ")[0] for line in first.out.splitlines()
    ]


LIKELY = ["show small --rule best_val", "show small --best", "plan small", "show small --format json",
          "plan small --format json", "status --format json"]  # fmt: skip


@pytest.mark.parametrize("words", LIKELY)
def test_what_is_likely_asked_next_is_answered_before_it_is_asked(words: str, answered: Path) -> None:
    call = [sys.executable, "-c", REPEATED, json.dumps(words.split())]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=answered)
    assert len(done.stdout.splitlines()) > 3
    assert done.stdout.splitlines()[-1] == "[]"


def _touch_package(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answers.fpl_tune, "__file__", str(home / "fpl_tune" / "__init__.py"))


def _edit_study(home: Path, patch: pytest.MonkeyPatch) -> None:
    path = home / "studies" / "small.yaml"
    path.write_text(path.read_text() + "title: other\n")


def _add_space(home: Path, patch: pytest.MonkeyPatch) -> None:
    (home / "search_spaces").mkdir()
    (home / "search_spaces" / "pfedmoap.yaml").write_text("method.lam: {low: 0, high: 1}\n")


def _change_result(home: Path, patch: pytest.MonkeyPatch) -> None:
    path = next((home / "outputs" / "small" / "cells").glob("*/seed=1/result.json"))
    path.write_text(path.read_text() + "\n")


def _remove_result(home: Path, patch: pytest.MonkeyPatch) -> None:
    next((home / "outputs" / "small" / "cells").glob("*/seed=1/result.json")).unlink()


def _remove_report(home: Path, patch: pytest.MonkeyPatch) -> None:
    (home / "outputs" / "small" / "report.html").unlink()


def _set_variable(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("FPL_TUNE_CACHE", str(home / "cache"))


CHANGES = [_touch_package, _edit_study, _add_space, _change_result, _remove_result, _remove_report, _set_variable]


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_is_not_repeated_after_a_change(
    change: Callable[[Path, pytest.MonkeyPatch], None], answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.begin()
    question = ["small", "show", False, False, None, "table"]
    with output.captured(mute=True) as said:
        assert answers.Question(*question).repeat()
    assert said
    change(answered, monkeypatch)
    answers.begin()
    assert not answers.Question(*question).repeat()


def test_another_question_has_another_answer(answered: Path, command: Command) -> None:
    assert "promptfl" in command("show", "small").out
    assert json.loads(command("show", "small", "--format", "json").out)
    assert "by the rule 'best_val'" in command("show", "small", "--rule", "best_val").out
    assert "1 done" not in command("plan", "small", "seeds=3").out
    assert command("study", "small", "seeds=0").code == 2


def test_an_edited_plugin_is_read_again(answered: Path, command: Command) -> None:
    """Its module is not of the package: it is among the files that the answer depends on."""
    (answered / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom fpl_tune.methods.promptfl import PromptFL\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(PromptFL):\n    pass\n"
    )
    text = (answered / "studies" / "small.yaml").read_text()
    text = text.replace("override /method: pfedmoap", "override /method: promptfl")
    text = text.replace("axes: {method: {lam: [0.0, 0.5]}}", "axes: {method: ['mine:Mine']}").replace(
        "method: {d_gating: 96, n_ctx: 2, experts: 2, heads: 2}", "method: {n_ctx: 2}"
    ).replace("report: {x: method.lam}\n", "")  # fmt: skip
    (answered / "studies" / "own.yaml").write_text(text)
    done = command("study", "own")
    assert done.code == 0, done.err
    assert "0 cells run" in command("study", "own").out
    path = answered / "mine.py"
    path.write_text(path.read_text().replace("pass", "def check(self, task):\n        super().check(task)"))
    found = subprocess.run(
        [sys.executable, "-m", "fpl_tune", "plan", "own"], capture_output=True, text=True, check=True
    )
    assert "stale" in found.stdout


def test_a_warning_is_given_again(answered: Path, command: Command) -> None:
    path = next((answered / "outputs" / "small" / "cells").glob("*/seed=1/result.json"))
    path.write_text("{")
    for _ in range(2):
        assert "is damaged" in command("show", "small").err


def test_a_study_that_runs_is_not_answered_from_memory(answered: Path, command: Command) -> None:
    from fpl_tune.study.lock import locked

    with locked(answered / "outputs" / "small"):
        assert "run by process" in command("status", "small").out
    assert "not running" in command("status", "small").out


def test_the_costs_of_a_plan_are_measured_again_after_a_while(
    answered: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("plan", "small")
    answers.begin()
    question = ["small", "plan", None, None, None, "table", False]
    with output.captured(mute=True):
        assert answers.Question(*question).repeat()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + answers.KEPT_SECONDS + 1)
        assert not answers.Question(*question).repeat()


@pytest.mark.parametrize(
    ("override", "lasts"),
    [("seeds=2", True), ("data=officehome", False), ("axes.data=[shapes,pacs]", False), ("search.warm_start=x", False),
     ("tracking={enabled:true,uri:'http://x:1'}", False), ("axes.partition=[iid,dirichlet]", True),
     ("axes.world=[{label:a,data:pacs}]", False), ("axes.partition.file=[a.json,b.json]", False)],
)  # fmt: skip
def test_what_depends_on_files_or_servers_elsewhere_is_not_kept(override: str, lasts: bool) -> None:
    from fpl_tune import config

    _, node = config.compose_study("lambda_sweep", ["tracking.enabled=false", override])
    assert answers.lasting(node) is lasts


def test_a_folder_that_cannot_be_written_has_no_answers(answered: Path, command: Command) -> None:
    path = answered / "outputs" / "small" / answers.FILE
    path.unlink()
    path.mkdir()
    assert "promptfl" in command("show", "small").out
    assert os.listdir(path) == []
