"""The command line as a person uses it: help, listings, and what it says of the most likely mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = [[], ["run"], ["study"], ["plan"], ["ls"], ["show"], ["report"], ["ui"], ["bench"], ["data"], ["data", "check"]]


def fpl_tune(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    known = {"FPL_TUNE_OUTPUT": str(folder / "outputs"), "NO_COLOR": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "fpl_tune", *words],
        cwd=folder,
        env={**os.environ, **known, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_has_an_example(verb: list[str], tmp_path: Path) -> None:
    done = fpl_tune(*verb, "-h", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    if verb != ["data"]:
        assert "Example: fpl-tune" in done.stdout


HEAVY = """
import sys
sys.argv = ["fpl-tune", "-h"]
try:
    from fpl_tune.cli import main
    main()
except SystemExit:
    heavy = ("torch", "ray", "mlflow", "hydra", "pandas", "open_clip")
    print([name for name in heavy if name in sys.modules])
"""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(tmp_path: Path) -> None:
    from fpl_tune import __version__

    assert fpl_tune("--version", folder=tmp_path).stdout.strip() == f"fpl-tune {__version__}"


MISTAKES = [
    (["study", "lambda_swep"], "There is no study 'lambda_swep'. Did you mean 'lambda_sweep'"),
    (["study", "lambda_sweep", "method=pfedmop"], "There is no method 'pfedmop'. Did you mean 'pfedmoap'"),
    (["study", "lambda_sweep", "method.lamda=1"], "There is no field 'method.lamda'. Did you mean 'method.lam'"),
    (["study", "lambda_sweep", "axes.method.lam=[-1]"], "method.lam must be a finite number >= 0, but is -1"),
    (["study", "lambda_sweep", "axes.method.lam=[]"], "An axis is a list of at least one value"),
    (["study", "lambda_sweep", "axes.method.lambda=[1]"], "method.lambda"),
    (["study", "lambda_sweep", "method.experts=11"], "experts"),
    (["study", "lambda_sweep", "method.d_gating=50"], "d_gating"),
    (["study", "lambda_sweep", "method.heads=7"], "heads"),
    (["study", "lambda_sweep", "seeds=0"], "seeds must be a number >= 1"),
    (["study", "lambda_sweep", "execution.executor=rey"], "executor"),
    (["study", "lambda_sweep", "optim.lr=fast"], "optim.lr must be a number, but is 'fast'"),
    (["study", "lambda_sweep", "protocol.rounds=0"], "protocol.rounds must be >= 1"),
    (["study", "lambda_sweep", "data=pac"], "There is no data 'pac'. Did you mean 'pacs'"),
    (["study", "lambda_sweep", "lam"], "'lam' is no override"),
    (["study", "lambda_sweep", "budget=soon"], "budget"),
    (["study", "lambda_sweep", "report.rule=best"], "report"),
    (["run", "protocol=quik"], "There is no protocol 'quik'. Did you mean 'quick'"),
    (["run", "--seeds", "none"], "--seeds is a number of seeds or a list"),
    (["run", "partition.n_clients=50"], "50"),
    (["show", "nothing"], "There is no study with results 'nothing'"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda v: v[-1] if isinstance(v, list) else "")
def test_a_mistake_is_one_line_exit_code_2_and_starts_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    done = fpl_tune(*words, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("fpl-tune: ")
    assert message in lines[0]
    assert not list((tmp_path / "outputs").glob("*/cells/*/seed=*")), "nothing was started"


def test_missing_data_is_exit_code_3_and_says_where(tmp_path: Path) -> None:
    done = fpl_tune("study", "lambda_sweep", "data=pacs", f"data.root={tmp_path}", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_unwritable_output_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = fpl_tune("study", "lambda_sweep", folder=tmp_path, FPL_TUNE_OUTPUT=str(tmp_path / "file" / "outputs"))
    assert done.returncode == 3
    assert "FPL_TUNE_OUTPUT" in done.stderr


@pytest.mark.parametrize("kind", ["methods", "data", "studies", "towers"])
def test_listings_are_json_for_programs(kind: str, tmp_path: Path) -> None:
    done = fpl_tune("ls", kind, "--format", "json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    assert all(row["what"] for row in rows)


def test_configuration_can_be_printed_and_read_back(tmp_path: Path) -> None:
    import yaml

    done = fpl_tune("study", "lambda_sweep", "seeds=7", "--cfg", folder=tmp_path)
    node = yaml.safe_load(done.stdout)
    assert (node["seeds"], node["method"]["name"]) == (7, "pfedmoap")
