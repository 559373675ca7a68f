"""What is released: everything that runs is in the wheel, it is small, and it works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from fpl_tune import __version__

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


def test_all_that_runs_is_in_it(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    here = {path for path in (ROOT / "fpl_tune").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    wanted = {path.relative_to(ROOT).as_posix() for path in here}
    assert "fpl_tune/clip/weights/compact.safetensors" in wanted
    for room in ("studies", "search_spaces"):
        wanted |= {f"fpl_tune/_shipped/{room}/{path.name}" for path in (ROOT / room).glob("*.yaml")}
    about = f"fpl_tune-{__version__}.dist-info"
    wanted |= {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert held == wanted


def test_it_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 8e6


def test_it_finds_its_studies_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    code = "import fpl_tune.cli as c; print('#', c.__file__); c.main('study pfedmoap_search --cfg'.split())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "empty",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# {tmp_path}"), "and not the checkout"
    node = yaml.safe_load(done.stdout)
    assert (node["method"]["name"], node["search"]["sampler"]) == ("pfedmoap", "tpe")
