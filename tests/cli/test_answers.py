"""Answers are repeated without the libraries that made them, and only while nothing has changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import cli
from fpl_tune.cli import answers, plan

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
WORDS = ["study small", "show small", "status small", "plan small", "show small --format json",
         "status small --format json", "plan small --format json"]  # fmt: skip


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


@pytest.mark.parametrize("words", WORDS)
def test_a_finished_study_is_answered_without_heavy_imports(words: str, answered: Path, command: Command) -> None:
    call = [sys.executable, "-c", REPEATED, json.dumps(words.split())]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=answered)
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    (answered / "outputs" / "small" / answers.FILE).unlink()
    fresh = command(*words.split()).out.splitlines()
    assert [line.partition(", in ")[0] for line in lines] == [line.partition(", in ")[0] for line in fresh]


RESULT = "outputs/small/cells/*/seed=1/result.json"
CHANGES = [("studies/small.yaml", "title: other\n"), ("search_spaces/pfedmoap.yaml", "method.lam: {low: 0, high: 1}\n"),
           (RESULT, "\n"), (RESULT, None), ("outputs/small/report.html", None)]  # fmt: skip
"""Files, and what is added to them; None: they are removed."""
QUESTION = ["small", "print_results", False, False, None, "table"]


def kept(*question: Any, **options: Any) -> bool:
    """Whether the question has a kept answer, as a command that begins now sees it."""
    answers.begin()
    return answers.Question(*question, **options).answer() is not None


@pytest.mark.parametrize(("files", "added"), CHANGES)
def test_an_answer_is_not_repeated_after_a_change_of_files(files: str, added: str | None, answered: Path) -> None:
    assert kept(*QUESTION)
    path = next(answered.glob(files), answered / files)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{path.read_text() if path.exists() else ''}{added}")
    if added is None:
        path.unlink()
    assert not kept(*QUESTION)


def test_an_answer_is_not_repeated_after_a_change_of_the_package_or_the_environment(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FPL_TUNE_CACHE", str(answered / "cache"))
        assert not kept(*QUESTION)
    assert kept(*QUESTION)
    monkeypatch.setattr(answers.fpl_tune, "__file__", str(answered / "fpl_tune" / "__init__.py"))
    assert not kept(*QUESTION)


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
    question = "small", "print_plan", [], "table"
    assert kept(*question, seconds=plan.KEPT_SECONDS)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + plan.KEPT_SECONDS + 1)
    assert not kept(*question, seconds=plan.KEPT_SECONDS)


@pytest.mark.parametrize(
    ("override", "lasts"),
    [("seeds=2", True), ("data=officehome", False), ("axes.data=[shapes,pacs]", False),
     ("tracking={enabled:true,uri:'http://x:1'}", False), ("axes.partition=[iid,dirichlet]", True),
     ("axes.world=[{label:a,data:pacs}]", False), ("partition=file partition.file=a.json", False)],
)  # fmt: skip
def test_what_depends_on_files_or_servers_elsewhere_is_not_kept(override: str, lasts: bool) -> None:
    from fpl_tune import config

    composed = config.compose_study("lambda_sweep", ["tracking.enabled=false", *override.split()])
    assert answers.lasting(*composed) is lasts


def test_a_folder_that_cannot_be_written_has_no_answers(answered: Path, command: Command) -> None:
    path = answered / "outputs" / "small" / answers.FILE
    path.unlink()
    path.mkdir()
    assert "promptfl" in command("show", "small").out
    assert os.listdir(path) == []
