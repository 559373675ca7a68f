"""Examples run as they stand: those in docs/examples/, and those in docstrings."""

import doctest
import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from PIL import Image

import fpl_tune
from fpl_tune.cli import main
from fpl_tune.method import State
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.testing import assert_same, check_method, play, toy_task

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
TESTED = {"own_method.py", "own_data.py", "own_search.py", "own_tuner.py", "slurm.sh"}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with the examples, which is the current one."""
    shutil.copytree(EXAMPLES, folder := tmp_path / "examples")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name in TESTED:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return folder


def test_every_example_is_tested_and_linked() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == TESTED | {"README.md"}
    for name in TESTED:
        assert f"({name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_method_runs_and_is_promptfl_without_inertia(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("own_method.py", run_name="__main__")
    plain, kept = (float(text) for text in re.findall(r": ([\d.]+) %", capsys.readouterr().out))
    rounds = fpl_tune.run({"method": "promptfl", "protocol": "quick"})
    assert plain == pytest.approx(100 * rounds["test/acc_mean"].iloc[-1], abs=0.06) != kept
    inertia = importlib.import_module("own_method").Inertia
    check_method(inertia(n_ctx=2))

    def states(method: PromptFL) -> list[State]:
        return [state for (state,) in play(method, [toy_task()])]

    assert_same(states(inertia(n_ctx=2, keep=0.0))[-1], states(PromptFL(n_ctx=2))[-1], tolerance=1e-12)
    first, *_, last = states(inertia(n_ctx=2, keep=1.0))
    assert_same(last, first, tolerance=1e-12)


def test_the_data_are_drawn_checked_and_learned(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("own_data.py", run_name="__main__")
    assert capsys.readouterr().out == "100.0 % of the test images\n"
    Image.new("RGB", (8, 8)).save(example / "photos" / "more.png")
    with (example / "photos" / "images.csv").open("a", encoding="utf-8") as file:
        file.write("\nmore.png,black square,test")
    data = runpy.run_path("own_data.py")
    listed = data["read"](data["DataSpec"]("own_data:source", root="photos"))
    assert listed.classes == ("black square", "blue square", "red square")
    assert (len(listed.train), listed.test.names[-1]) == (40, "more.png")


def test_the_search_runs(example: Path) -> None:
    runpy.run_path("own_search.py")
    trials = optuna.load_study(study_name="median", storage="sqlite:///median.db").trials
    assert len(trials) == 4
    assert trials[0].params["method.lam"] == 0.5, "the paper's setting"


def test_the_tuner_runs(example: Path) -> None:
    """In a process of its own: a process that started Ray once keeps the token of that home directory."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    start = "import ray, runpy; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}; runpy.run_path('own_tuner.py')"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "HOME": str(example)},  # Tune writes its results to ~/ray_results
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lam, val, test = map(float, done.stdout.splitlines()[-1].split())
    assert 0 <= lam <= 5
    assert 0 < val <= 1
    assert 0 < test <= 1


STUB = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> "$CALLS"
"""


def test_the_job_starts_a_cluster_and_then_the_study(
    example: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what the command prints. Slurm's, Ray's and our programs note how they are called."""
    monkeypatch.setattr(sys, "argv", shlex.split("fpl-tune cluster template slurm lambda_sweep --nodes 2 --gpus 4"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().out) == (0, (example / "slurm.sh").read_text(encoding="utf-8"))
    (programs := example / "programs").mkdir()
    for name in ("srun", "fpl-tune"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": "calls", "SLURM_JOB_ID": "7", "HOME": str(example)}
    done = subprocess.run(["bash", "slurm.sh"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    calls = [shlex.split(line) for line in (example / "calls").read_text().splitlines()]
    nodes = [call for call in calls if call[0] == "srun"]
    assert sorted("--head" in call for call in nodes) == [False, True]
    assert all(word in call for call in nodes for word in ("ray", "start", "--num-gpus=4"))
    assert [call[1:3] for call in calls if call[0] == "fpl-tune"] == [
        ["cluster", "wait"], ["cluster", "wait"], ["study", "lambda_sweep"],
    ]  # fmt: skip
    assert not list(example.glob(".ray-token-*")), "removed at the end"


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "fpl_tune").rglob("*.py"))
    if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the docstrings name: results of a study, its best cell exported to best/, an image."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        small = {"axes.method.lam": [0.5], "references": [], "protocol.rounds": 1, "execution.executor": "inline"}
        fpl_tune.run_study("lambda_sweep", small, seeds=2)
        patch.setattr(sys, "argv", ["fpl-tune", "export", "lambda_sweep", "best/", "--cell", "best"])
        with pytest.raises(SystemExit, match="0"):
            main()
    Image.new("RGB", (32, 32), "red").save(folder / "photo.png")
    return folder


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_run(module: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=flags)
    assert (failed, tried > 0) == (0, True)
