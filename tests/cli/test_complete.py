"""What Tab offers, asked through the protocol that the shells use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fpl_tune import config, methods
from fpl_tune.cli import complete
from fpl_tune.core.paths import list_studies

from .conftest import Command

Offered = Callable[..., list[str]]


@pytest.fixture
def offered(command: Command, monkeypatch: pytest.MonkeyPatch) -> Offered:
    """offered("study", "lam"): what bash is told when the cursor stands behind the last word."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_FPL_TUNE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["fpl-tune", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return command().out.split()

    return ask


def test_verbs(offered: Offered) -> None:
    assert offered("st") == ["study", "status", "stop"]
    assert "check" in offered("data", "")


def test_studies_that_can_be_run_and_studies_that_have_results(offered: Offered, here: Path) -> None:
    assert offered("study", "lambda") == [name for name in sorted(list_studies()) if name.startswith("lambda")]
    assert offered("show", "") == []
    (here / "outputs" / "mine").mkdir(parents=True)
    (here / "outputs" / "mine" / "study.yaml").touch()
    assert offered("show", "") == offered("compare", "mine", "") == ["mine"]
    assert not list(here.glob("outputs/.*")), "nothing is written by asking"


def test_keys_and_values_as_zsh_and_fish_ask(offered: Offered) -> None:
    assert offered("run", "method=pfedmo") == ["method=pfedmoap", "method=pfedmoap_dp"]
    assert {"optim=", "optim.lr=", "optim.batch="} <= set(offered("run", "optim"))
    assert offered("run", "optim.lr") == ["optim.lr=", "optim.lr=0.002"], "with its default, so that no space is set"
    assert offered("study", "lambda_sweep", "tracking.enabled=") == ["tracking.enabled=true", "tracking.enabled=false"]


def test_values_as_bash_asks_with_the_sign_as_a_word(offered: Offered) -> None:
    assert offered("run", "method", "=", "pfedmo") == ["pfedmoap", "pfedmoap_dp"]
    assert {"pacs", "shapes"} <= set(offered("run", "data", "="))


def test_fields_are_those_of_the_method_that_is_chosen(offered: Offered) -> None:
    assert "axes.method.lam=" in offered("study", "lambda_sweep", "axes.method.")
    assert "method.mu=" in offered("study", "lambda_sweep", "method=fedpgp", "method.")
    assert "method.mu=" in offered("study", "lambda_sweep", "method", "=", "fedpgp", "method.")
    assert "method.mu=" in offered("run", "method=fedprox", "method."), "a composition in YAML"
    assert "method.lam=" not in offered("run", "method.")


def test_all_fields_are_offered() -> None:
    """What is read from the source is what the configuration knows."""
    known = {name for name in config.known_fields("") if name not in {*config.GROUPS, *_nested()}}
    assert set(complete.fields_of("StudySpec")) - _nested() == known
    for name in config.options("method"):
        if name in methods.catalogue() and not methods.find(name).__module__.startswith("fpl_tune.wrappers."):
            wanted = {f"method.{f.name}" for f in methods.hyper_parameters(methods.find(name))}
            assert set(complete.method_fields(name)) == wanted, name


def _nested() -> set[str]:
    return {"search", "prune", "execution", "tracking", "report"}


LIGHT = """
import sys
from fpl_tune.cli import main
try:
    main()
except SystemExit:
    pass
print([name for name in ("torch", "numpy", "hydra", "pandas", "mlflow", "ray", "optuna") if name in sys.modules])
"""


def test_a_key_press_imports_nothing_heavy(here: Path) -> None:
    words = {"COMP_WORDS": "fpl-tune\nstudy\nlambda_sweep\nmethod.la", "COMP_CWORD": "3"}
    environment = {**os.environ, **words, "_FPL_TUNE_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", LIGHT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["method.lam=", "method.lam=0.5", "[]"]
