"""Packs the checks of `gpu_checks.py` for a machine with a GPU, PyTorch and nothing else: `make gpu-kit`.

    python gpu_kit.py build/gpu-kit

The folder holds the tree of this commit, wheels of the packages that a simulation needs (neither Ray nor MLflow), what
is predicted, and run.sh, which needs no network and ends within eight minutes. Wheels are for Linux on x86-64 and for
the Python and PyTorch that are named below. `CUDA_VISIBLE_DEVICES` chooses among several GPUs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

from simulated_gpu import simulate_gpu

REPOSITORY = Path(__file__).parents[1]
PYTHON, TORCH, TORCHVISION = "3.12", "2.11", "0.26.0"
LARGEST = 60 << 20
"""Bytes of the kit."""
WHEELS = (
    "absl-py annotated-types attrs dm-tree dp-accounting filelock ftfy huggingface-hub hydra-core mpmath numpy "
    "omegaconf open-clip-torch packaging pillow pydantic pydantic-core pyyaml regex safetensors timm tqdm "
    "typing-extensions typing-inspection wcwidth"
).split()
"""What a simulation imports besides PyTorch; versions are those that are installed here. SciPy is left out, which is as
large as all of them: methods with differential privacy are skipped where the machine has none."""
SOURCES = ("antlr4-python3-runtime",)
"""Published without a wheel."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
RUN = f"""#!/bin/sh
# Checks and measures fpl-tune on this machine's GPU: figures.json and figures.md in this folder, or in the one that
# --out names. Needs Linux on x86-64 with Python {PYTHON} and PyTorch {TORCH}; no network, and nothing is installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${{PYTHON:-python3}}
"$python" -c '
import sys
from importlib.metadata import distributions
found = "Python " + sys.version.split()[0] + " without PyTorch"
for one in distributions(name="torch"):
    found = found.replace("without PyTorch", "with PyTorch " + one.version)
sys.exit(0 if found.startswith("Python {PYTHON}.") and " {TORCH}." in found else
         "The wheels of this kit are for Python {PYTHON} with PyTorch {TORCH}, but here is " + found + ". Name another "
         "interpreter in PYTHON.")
' || exit 3
if [ ! -d "$here/site" ]; then
    for wheel in "$here"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$here/site.part"; done
    mv "$here/site.part" "$here/site"
fi
tree="$here/tree"
export PYTHONPATH="$here/site:$tree:$tree/tests/shared"
exec "$python" "$tree/benchmarks/gpu_checks.py" --out "$here" "$@"
"""


def pack(folder: Path) -> int:
    """Writes the kit; returns its size in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    tree = folder / "tree.tar"
    parts = ["fpl_tune", "search_spaces", "studies", "benchmarks/*.py", "tests/shared"]
    subprocess.run(["git", "archive", "-o", tree.resolve(), "HEAD", *parts], check=True, cwd=REPOSITORY)
    with tarfile.open(tree) as packed:
        packed.extractall(folder / "tree", filter="data")
    tree.unlink()
    pinned = [f"{name}=={version(name)}" for name in WHEELS]
    _pip("download", *_target(), *pinned, f"torchvision=={TORCHVISION}", "--dest", wheels)
    _pip("wheel", *(f"{name}=={version(name)}" for name in SOURCES), "--wheel-dir", wheels)
    predicted = folder / "tree/benchmarks/predicted.json"
    predicted.write_text(json.dumps(predictions(), indent=1))
    run = folder / "run.sh"
    run.write_text(RUN)
    run.chmod(0o755)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def predictions() -> dict[str, dict[str, float]]:
    """What `simulate_gpu` predicts, by the names of `gpu_checks.py`."""
    rows = {row["bench"]: row for row in simulate_gpu()}
    cohort = "RN50, 100 classes, 10 clients"
    found: dict[str, dict[str, float]] = {
        f"text, {cohort}": {"matrix_rate_share": rows[f"text encoding, {cohort}, 1 seed"]["matrix_rate_share"]}
    }
    for classes, seeds in product((10, 100), ("1 seed", "3 seeds")):
        row = rows[f"step, RN50, {classes} classes, 10 clients, {seeds}"]
        found[f"step, RN50, {classes} classes, {seeds}"] = {
            "graphed_seconds": row["kernel_seconds"],
            "seconds": row["predicted_seconds"],
            "matrix_rate_share": row["matrix_rate_share"],
        }
    one = rows[f"step, {cohort}, 1 seed"]
    found["a step of pFedMoAP"] = {name: one[name] for name in ("launches", "syncs", "copies", "graphed_launches")}
    for classes in (10, 100):
        row = rows[f"step, RN50, {classes} classes, 10 clients, 1 seed"]
        found[f"kernels of a step, {classes} classes"] = {"seconds": row["kernel_seconds"]}
        found[f"two processes, {classes} classes, with MPS"] = {"packed_gain": row["packed_gain"]}
    return found


def _target() -> list[str]:
    """Options of pip for the machine that the kit is for."""
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    return ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]


def _pip(command: str, *arguments: object) -> None:
    options = ["--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", command, *options, *map(str, arguments)], check=True)


def main() -> int:
    """Packs the kit; exit status 3 where a package cannot be had, or the kit is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    try:
        found = pack(folder)
    except (subprocess.CalledProcessError, PackageNotFoundError, OSError) as problem:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"The kit cannot be packed: {problem}. It needs git and a package index.", file=sys.stderr)
        return 3
    print(f"{folder}: {found / 2**20:.0f} MB. Copy it to the machine with the GPU and run {folder.name}/run.sh there.")
    if found > LARGEST:
        print(f"It should have at most {LARGEST >> 20} MB.", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
