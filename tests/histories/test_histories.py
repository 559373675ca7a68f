"""Histories drawn with fixed seeds. `make test` also runs those that once failed; `run.py` draws any number."""

import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS, REPOSITORY
from standin import figures, trouble_of

from fpl_tune import config

PROGRAM = Path(__file__).with_name("run.py")


def run(*words: str) -> str:
    """What the program prints; a process of its own has no threads that a fork would lose."""
    ran = subprocess.run(
        [sys.executable, PROGRAM, "--shrink", "0", *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_text_of_each_mutant_occurs_once() -> None:
    package = REPOSITORY / "fpl_tune"
    counts = {name: (package / mutant.file).read_text().count(mutant.old) for name, mutant in MUTANTS.items()}
    assert counts == dict.fromkeys(MUTANTS, 1)


@pytest.mark.system
def test_more_histories() -> None:
    assert "0 kinds of faults" in run("--seed", "100", "--count", "60", "--minutes", "4")


@pytest.mark.system
def test_histories_with_the_true_simulation_under_ray() -> None:
    assert "\n0 faults" in run("--ray")


def test_a_stand_in_repeats_its_figures_and_tells_configurations_seeds_and_rounds_apart() -> None:
    one, other = (config.compose_run([f"optim.lr={lr}", "method=promptfl"]) for lr in (0.1, 0.2))
    assert figures(one, 1, 2) == figures(one, 1, 2)
    assert (
        len({figures(*given)["val/acc_mean"] for given in [(one, 1, 2), (other, 1, 2), (one, 2, 2), (one, 1, 3)]}) == 4
    )
    assert trouble_of(one) == ""
