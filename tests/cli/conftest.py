"""The command in this process, and a person's folder: tiny studies that have run, and photos."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from fpl_tune import cli
from fpl_tune.track import server

TINY = """
defaults: [/study, override /method: pfedmoap, _self_]
axes: {method: {lam: [0.0, 0.5]}}
references: [{method: promptfl}]
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 6}
protocol: {rounds: 3, epochs: 1}
method: {d_gating: 96, n_ctx: 2, experts: 2, heads: 2}
execution: {executor: inline}
tracking: {enabled: false}
report: {x: method.lam}
seeds: 2
"""


@dataclass(frozen=True)
class Done:
    """How a call of the command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """command("ls", "methods"): the console script's entry point in this process."""

    def call(*words: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        code, seen = ended.value.code, capsys.readouterr()
        assert code is None or isinstance(code, int)
        return Done(code or 0, seen.out, seen.err)

    return call


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, without colours and with nothing of the machine's environment."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "RAY_ADDRESS", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "outputs"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_in(home: Path, feature_cache: Path, *studies: str) -> None:
    """Runs studies as in a folder of one's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FPL_TUNE_OUTPUT", str(home / "outputs"))
        patch.setenv("FPL_TUNE_CACHE", str(feature_cache))
        patch.chdir(home)
        for study in studies:
            with pytest.raises(SystemExit) as ended:
                cli.main(["study", study])
            assert ended.value.code in (None, 0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, feature_cache: Path) -> Path:
    """A home with two tiny studies that have run, named as in the examples. To be copied, not written to."""
    home = tmp_path_factory.mktemp("home")
    (home / "studies").mkdir()
    for name in ("lambda_sweep", "lambda_sweep_rn50"):
        (home / "studies" / f"{name}.yaml").write_text(TINY)
    for kind in ("cat", "dog"):
        (home / "photos" / kind).mkdir(parents=True)
        for number in range(12):
            colour = (20 * number, 40 if kind == "cat" else 200, 90)
            Image.new("RGB", (40, 36), colour).save(home / "photos" / kind / f"{number}.png")
    (home / "outputs").mkdir()
    server.connect(f"sqlite:///{home}/outputs/mlflow.db")
    run_in(home, feature_cache, "lambda_sweep", "lambda_sweep_rn50")
    return home


@pytest.fixture
def home(finished: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to stand in."""
    shutil.copytree(finished, here, dirs_exist_ok=True)
    monkeypatch.setenv("HOME", str(here))
    assert Path("~").expanduser() == here or os.name == "nt"
    return here
