"""Tab completion, asked through the protocol that the shells use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_studies_that_can_be_run_and_studies_that_have_results(offered: Offered, here: Path) -> None:
    assert offered("study", "lambda") == [name for name in sorted(list_studies()) if name.startswith("lambda")]
    assert offered("show", "") == []
    (here / "outputs" / "mine").mkdir(parents=True)
    (here / "outputs" / "mine" / "study.yaml").touch()
    assert offered("show", "") == offered("status", "") == ["mine"]
    assert not list(here.glob("outputs/.*")), "nothing is written by asking"


def test_methods_also_where_bash_splits_the_word_at_the_sign(offered: Offered) -> None:
    names = ["pfedmoap", "pfedmoap_dp"]
    assert offered("new", "study", "mine", "--method", "pfedmo") == names
    assert offered("run", "method=pfedmo") == [f"method={name}" for name in names]
    assert offered("run", "method", "=", "pfedmo") == names
