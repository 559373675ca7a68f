"""Help, `fpl-tune show`, `status` and `ls`: without heavy libraries, and with all test sets."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import TINY, Command, run_in

LIGHT = """
import json, sys
sys.argv = ["fpl-tune", *json.loads(sys.argv[1])]
try:
    from fpl_tune.cli import main
    main()
except SystemExit as ended:
    heavy = ("torch", "numpy", "pandas", "hydra", "omegaconf", "ray", "mlflow", "optuna", "open_clip", "scipy")
    print(ended.code, [name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize("words", ["-h", "show lambda_sweep", "show lambda_sweep --format csv",
                                   "show lambda_sweep --best", "status lambda_sweep",
                                   "status", "ls studies", "ls methods"])  # fmt: skip
def test_help_and_results_are_printed_without_heavy_libraries(words: str, home: Path) -> None:
    call = [sys.executable, "-c", LIGHT, json.dumps(words.split())]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=home)
    *lines, ended = done.stdout.splitlines()
    assert ended == "0 []", done.stderr
    assert lines


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, feature_cache: Path) -> Path:
    """A home with a study that tests base and novel classes."""
    home = tmp_path_factory.mktemp("split")
    (home / "studies").mkdir()
    (home / "studies" / "split.yaml").write_text(
        TINY.replace("{n_clients: 6}", "{n_clients: 5, evaluation: base_to_novel}").replace("rounds: 3", "rounds: 1")
    )
    run_in(home, feature_cache, "split")
    return home


def test_base_novel_and_their_harmonic_means_are_columns(split: Path, here: Path, command: Command) -> None:
    shutil.copytree(split, here, dirs_exist_ok=True)
    rows = list(csv.DictReader(command("show", "split", "--format", "csv").out.splitlines()))
    base, novel, two, three, own = (
        float(rows[0][name])
        for name in ("test/base/acc_mean", "test/novel/acc_mean", "test/base_novel_harmonic_mean",
                     "test/harmonic_mean", "mean")
    )  # fmt: skip
    assert min(base, novel) <= two <= max(base, novel)
    assert min(base, novel, own) <= three <= max(base, novel, own)
    table = command("show", "split").out
    header = next(line for line in table.splitlines() if "novel" in line)
    assert [name.strip() for name in header.strip("┃").split("┃")] == [
        "cell", "status", "validation", "test", "base", "novel", "HM(test, base, novel)", "HM(base, novel)", "seeds"
    ]  # fmt: skip
