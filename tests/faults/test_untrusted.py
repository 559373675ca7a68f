"""Studies, checkpoints and weights from elsewhere: nothing in them is run, and nothing leaves the output folder."""

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fpl_tune.clip import load_towers
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, FplTuneError
from fpl_tune.execute.callback import Callback
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.study.grid import expand
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store

from ..conftest import start_study as run_study

ONE = "axes: {optim: {lr: [0.1]}}"


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a module `evil` leaves when it is imported."""
    found = tmp_path / "was-run"
    (tmp_path / "evil.py").write_text(f"open({str(found)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FPL_TUNE_PLUGINS", "")
    sys.modules.pop("evil", None)
    return found


@pytest.mark.parametrize(
    "body",
    [
        "method: {name: 'evil:X'}",
        "references: [{method: 'evil:X'}]",
        "axes: {method: ['evil:X']}",
        "stages: [{method: {name: 'evil:X'}, rounds: 1}]",
        "method: {_target_: evil.X}",
        "note: {_target_: evil.X}",
        "note: !!python/object/apply:os.system ['touch was-run']",
        "note: ${evil:1}",
        "scale: paper\npaper_scale: ['method=evil:X']",
        "hydra: {callbacks: {x: {_target_: evil.X}}}",
        "hydra: {searchpath: ['pkg://evil']}",
    ],
)
def test_a_study_file_brings_in_no_code(compose: Any, mark: Path, body: str) -> None:
    with pytest.raises(ConfigError):
        expand(compose(body))
    assert not mark.exists()
    assert "evil" not in sys.modules


def test_a_module_that_the_user_names_is_imported(compose: Any, mark: Path) -> None:
    with pytest.raises(ConfigError, match="FPL_TUNE_PLUGINS=evil, or write method=evil:X on the command line"):
        compose("method: {name: 'evil:X'}")
    with pytest.raises(ConfigError, match="evil has no class 'X'"):
        compose(ONE, "method=evil:X")
    assert mark.exists()


@pytest.mark.parametrize("name", ["..", "../out", "/etc", "a/b", ".", "-rf", ""])
def test_names_of_studies_stay_in_the_output_folder(compose: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        run_study(compose(f"{ONE}\nname: {json.dumps(name)}"), root=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    if name != "-rf":
        with pytest.raises(ConfigError, match=r"Invalid study name .*: name it without slashes"):
            Store(tmp_path, name)


class Stop(Callback):
    def on_round_end(self, cell: Any, records: Any) -> None:
        if records[0]["round"] == 2:
            raise KeyboardInterrupt


def test_checkpoints_that_someone_else_wrote_run_nothing(compose, left, whole, tmp_path, mark) -> None:
    """Pickles are no checkpoints; well-formed ones with other content than ours are not used."""
    made, root = compose(ONE), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(made, root=root, callbacks=[Stop()])
    (slot,) = root.rglob("ckpt-*")
    good = checkpoint.read(checkpoint.list_newest(slot)[0])
    checkpoint.write(slot, Snapshot(good.tensors, {**good.meta, "round": 3, "rounds": {"__reduce__": "x"}}))
    checkpoint.write(slot, Snapshot({"../../x/y": torch.zeros(1)}, {**good.meta, "round": 4}))
    (slot / "round-000005.safetensors").write_bytes(pickle.dumps(Bomb(mark)))
    torch.save(Bomb(mark), slot / "round-000006.safetensors")
    assert run_study(made, root=root).exit_code == 0
    assert left(root) == whole(made)
    assert not mark.exists()


def test_weights_that_someone_else_wrote_run_nothing(tmp_path: Path, mark: Path) -> None:
    for name, write in (
        ("plain.pt", torch.save),
        ("old.bin", lambda bomb, path: path.write_bytes(pickle.dumps(bomb, protocol=2))),
    ):
        write({"state_dict": Bomb(mark)}, tmp_path / name)
        with pytest.raises(FplTuneError, match=name):
            load_towers("ViT-B-32", str(tmp_path / name))
    assert not mark.exists()


class Scripted(torch.nn.Module):
    """An archive whose code runs while `torch.jit.load` loads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(6.0).reshape(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:  # type: ignore[override]
        return (self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        print("code of the archive was run")
        self.weight, self.training = state


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_code_of_an_archive_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.jit.script(Scripted()).save(tmp_path / "b.pt")
    torch.jit.load(tmp_path / "b.pt")
    assert "code of the archive was run" in capfd.readouterr().out
    with pytest.raises(EnvironmentProblem, match="it holds more than tensors and plain values"):
        load_towers("ViT-B-32", str(tmp_path / "b.pt"))
    assert "was run" not in capfd.readouterr().out


@pytest.mark.parametrize("kind", ["header too large", "nested header", "zip bomb"])
def test_odd_weights_are_one_line_and_code_is_never_advised(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x.safetensors" if "header" in kind else "x.pt")
    if kind == "header too large":
        path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    elif kind == "nested header":
        path.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x/data.pkl", bytes(100 << 20))
    with pytest.raises(FplTuneError) as caught:
        load_towers("RN50", str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_secrets_of_addresses_are_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["fpl-tune", "study", "tiny", "data.root=https://ann:hunter2@host/db?token=hunter2"]
    )
    with locked(tmp_path / "held"):
        assert "ann:***@host" in (tmp_path / "held" / "study.owner").read_text()
        with pytest.raises(ConfigError, match="run by process") as caught, locked(tmp_path / "held"):
            pass
    assert "hunter2" not in str(caught.value)
