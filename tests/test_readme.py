"""The README says what is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fpl_tune import config
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.testing import assert_same, check_method, play, toy_task

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_method_has_a_row() -> None:
    table = README.split("<!-- methods:begin -->")[1].split("<!-- methods:end -->")[0]
    named = set(re.findall(r"`(\w+)`", table))
    wrappers = {"proximal", "finetuned", "private"}
    assert set(config.options("method")) - wrappers <= named
    for name in wrappers:
        assert f"`{name}`" in README


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`((?:fpl_tune|tests|search_spaces|studies)/[\w./]+\.\w+)`", README):
        assert (ROOT / name).is_file() or "promptfedavgm" in name, name  # what the reader is to write
    for name in re.findall(r"\]\((\.github/[\w./]+)\)", README):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("name", re.findall(r"fpl-tune (?:study|plan) +(\w+)", README))
def test_every_study_that_is_named_composes(name: str) -> None:
    if name != "STUDY":
        assert config.compose_study(name)[0].name == name


def test_the_study_in_the_text_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpl_tune.study.cells import expand

    text = README.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    spec, node = config.compose_study("mine")
    assert len(expand(spec, node)) == 4 * 3 + 3, "and the reference once per number of shots"


def test_the_method_in_the_text_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("promptfedavgm")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(README.split("```python\n")[1].split("```")[0], module.__dict__)
    check_method(module.PromptFedAvgM(n_ctx=2))
    config.check(config.compose_run(["method=promptfedavgm:PromptFedAvgM", "method.beta=0.5"]))
    task = toy_task()
    plain, still = (play(m, [task])[-1][0] for m in (PromptFL(n_ctx=2), module.PromptFedAvgM(beta=0.0, n_ctx=2)))
    assert_same(still._replace(server={}), plain, tolerance=1e-12)
