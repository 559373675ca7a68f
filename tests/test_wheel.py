"""What is released: everything that runs is in the wheel, it is small, and it works away from the checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
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


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, sdist, "-w", tmp_path], check=True, timeout=300)
    (other,) = tmp_path.glob("*.whl")
    names, found = ({part.filename: part.CRC for part in zipfile.ZipFile(path).filelist} for path in (other, wheel))
    assert names == found


def test_a_fresh_environment_runs_the_sweep_of_the_readme(wheel: Path, tmp_path: Path) -> None:
    """In an empty folder. The packages that fpl-tune requires are those of this environment, the checkout is not."""
    venv.create(tmp_path / "env")
    programs = tmp_path / "env" / "bin"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "required.pth").write_text(sysconfig.get_path("purelib"))
    (empty := tmp_path / "empty").mkdir()
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_", "FPL_TUNE_"))}

    def call(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=empty, env=known, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    call(*pip, "install", "-q", "--no-index", "--no-deps", "--ignore-installed", wheel)
    call(*pip, "install", "-q", "--no-index", "--dry-run", "fpl-tune")  # fails if a requirement is missing
    assert call(programs / "python", "-c", "import fpl_tune; print(fpl_tune.__file__)").startswith(str(site))
    call(programs / "fpl-tune", "study", "lambda_sweep", "axes.method.lam=[0.5,2,5]")
    shown = json.loads(call(programs / "fpl-tune", "show", "lambda_sweep", "--format", "json"))
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- sweep:begin -->")[2]
    lines = text.partition("<!-- sweep:end -->")[0].strip().splitlines()[2:]
    rows = re.findall(r"^\| (\S+)(?: \(.*?\))? \| ([\d.]+) \| ([\d.]+) ±", "\n".join(lines), re.MULTILINE)
    printed = {cell: (float(val), float(test)) for cell, val, test in rows}
    found = {row["label"]: (100 * row["val/acc_mean"], 100 * row["mean"]) for row in shown}
    assert len(printed) == len(lines) > 1
    for cell, figures in printed.items():
        assert found[cell] == pytest.approx(figures, abs=0.2), cell
