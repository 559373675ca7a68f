"""A cell with a method of one's own at somebody else's: its code is asked for by name, and its results are compared."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from fpl_tune.core import plugins

from .conftest import TINY, Command

MINE = """
import fpl_tune.method as fl
from fpl_tune.methods.promptfl import PromptFL
from scales import SCALE

open("ran", "a").close()

@fl.dataclass
class Scaled(PromptFL):
    scale: float = SCALE
"""


@pytest.fixture
def sent(here: Path, feature_cache: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A study file in an exported folder, with which its user stands in another folder."""
    path = [*sys.path]
    monkeypatch.setenv("FPL_TUNE_CACHE", str(feature_cache))
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(sys, "path", path)
    author, user = here / "author", here / "user"
    author.mkdir()
    user.mkdir()
    monkeypatch.chdir(author)
    (author / "scaled.py").write_text(MINE)
    (author / "scales.py").write_text("SCALE = 1.0\n")
    body = TINY.replace("{method: {lam: [0.0, 0.5]}}", "{method: ['scaled:Scaled']}").partition("method: {d_gating")[0]
    (author / "own.yaml").write_text(f"{body}execution: {{executor: inline}}\nseeds: 2\n")
    assert command("study", "own.yaml", "tracking.enabled=false").code == 0
    done = command("export", "own", str(user / "sent"), "--cell", "Scaled")
    (file,) = (user / "sent").glob("own-*.yaml")
    assert done.out.rstrip().endswith(f"fpl-tune study {file} method.name=scaled:Scaled repeats the cell")
    assert {path.name for path in (user / "sent" / "code").iterdir()} == {"scaled.py", "scales.py"}
    monkeypatch.chdir(user)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(user / "outputs"))
    forget()
    sys.path[:] = path
    yield file
    forget()


def forget() -> None:
    """As in a new process."""
    for name in ("scaled", "scales"):
        sys.modules.pop(name, None)


def test_code_of_somebody_else_runs_only_if_it_is_named(
    sent: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (sent.parents[1], sent.parent):
        monkeypatch.chdir(folder)
        refused = command("study", str(sent))
        assert refused.code == 2
        assert f"The code of scaled:Scaled is in {sent.parent / 'code'}." in refused.err
        assert "write method.name=scaled:Scaled on the command line" in refused.err
        assert not Path("ran").exists()


def test_what_runs_again_is_compared_with_what_is_expected(sent: Path, command: Command) -> None:
    inline = "execution.executor=inline", "tracking.enabled=false"
    words = ("study", str(sent), "method.name=scaled:Scaled", *inline, "-q")
    expected = sent.parent / "expected.csv"
    assert command(*words).out.rstrip().endswith(f"Equal to {expected} in all digits, 2 of 2 seeds.")
    assert os.path.exists("ran")
    table = pd.read_csv(expected)
    for change, said in (
        (3e-5, f"Equal to {expected} to 4 digits after the point, 2 of 2 seeds. The largest difference: val/acc_mean"),
        (0.2, f"Differs from {expected}, 2 of 2 seeds. The largest difference: val/acc_mean"),
    ):
        table.assign(**{"val/acc_mean": table["val/acc_mean"] - [0, change]}).to_csv(expected, index=False)
        assert said in command(*words).out
    table.assign(seed=[8, 9]).to_csv(expected, index=False)
    assert f"No seed of {expected} has run here." in command(*words).out
    expected.write_text("nothing\n1\n")
    assert f"{expected} cannot be compared (KeyError" in command(*words).out
