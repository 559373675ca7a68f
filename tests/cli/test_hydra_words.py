"""Habits of people who know Hydra's command line."""

from pathlib import Path

import pytest

from fpl_tune.core.paths import CONFIG_DIR

from .conftest import TINY, Command


@pytest.fixture(autouse=True)
def conf(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an option of one's own; what a command puts into the environment is removed afterwards."""
    monkeypatch.setenv(CONFIG_DIR, "")
    (here / "conf" / "optim").mkdir(parents=True)
    (here / "conf" / "optim" / "mine.yaml").write_text("name: adam\nlr: 0.125\n")
    return here / "conf"


@pytest.mark.parametrize("words", ["--config-dir conf", "-cd=conf", "hydra.searchpath=[file://conf]"])
def test_options_of_ones_own_are_those_of_a_folder(command: Command, words: str) -> None:
    assert "There is no optim 'mine'" in (without := command("run", "optim=mine", "--cfg")).err
    assert "--config-dir DIR" in without.err
    done = command("run", *words.split(), "optim=mine", "--cfg", "job")
    assert "  name: adam\n  lr: 0.125\n" in done.out


def test_axes_and_defaults_name_them_too(command: Command, here: Path) -> None:
    axes = TINY.replace("axes: {method: {lam: [0.0, 0.5]}}", "axes: {optim: [sgd, mine]}")
    (here / "own.yaml").write_text(axes.replace("_self_", "override /optim: mine, _self_").replace("x: method.lam", ""))
    assert command("study", "own.yaml", "--config-dir", "conf", "seeds=1", "protocol.rounds=1").code == 0
    assert "mine" in command("show", "own").out


def test_an_own_option_does_not_hide_a_shipped_one(command: Command, conf: Path) -> None:
    (conf / "optim" / "sgd.yaml").write_text("name: sgd\n")
    done = command("run", "--config-dir", "conf", "optim=sgd", "--cfg")
    assert "has the name of a shipped option, optim=sgd. Rename it." in done.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("plan lambda_sweep -m optim.lr=0.1,0.2", "axes.optim.lr=[0.01,0.02]"),
        ("run --multirun", "without --multirun"),
        ("study --config-name mine", "fpl-tune study FILE.yaml"),
        ("run --config-path=conf", "--config-dir DIR"),
        ("run --config-dir", "needs a folder"),
        ("run --config-dir nowhere --cfg", "nowhere is none"),
        ("run hydra.searchpath=[pkg://mine]", "--config-dir DIR"),
        ("run hydra.run.dir=x", "--config-dir DIR"),
        ("run ~optim", "Choose one: optim=NAME"),
    ],
)
def test_others_are_answered_in_one_line(command: Command, words: str, answer: str) -> None:
    done = command(*words.split())
    assert done.code == 2
    assert answer in done.err
    assert done.err.count("\n") == 1
