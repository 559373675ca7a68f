"""The command line as a person uses it: help at once, listings, configurations, colours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fpl_tune import __version__

from .conftest import Command

HEAVY = """
import sys
import fpl_tune
sys.argv = ["fpl-tune", "-h"]
try:
    from fpl_tune.cli import main
    main()
except SystemExit:
    heavy = ("torch", "numpy", "ray", "mlflow", "hydra", "pandas", "open_clip", "optuna", "matplotlib")
    print([name for name in heavy if name in sys.modules])
"""


def test_the_package_and_its_help_import_nothing_heavy(here: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_study_without_a_search_imports_no_optuna(here: Path) -> None:
    """Nor what its listeners and its executor need later: a plan and a start would wait for it."""
    words = ["import sys", "from fpl_tune.cli import work", "work.study.study('lambda_sweep', [], 'table', True)"]
    names = ("optuna", "sqlalchemy", "mlflow", "ray", "pandas", "matplotlib", "open_clip")
    code = "; ".join([*words, "import fpl_tune.study.plan", f"print([n for n in {names} if n in sys.modules])"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command(here: Path) -> None:
    words = [sys.executable, "-m", "fpl_tune"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout.strip() == f"fpl-tune {__version__}"
    assert subprocess.run([*words, "stduy"], capture_output=True, check=False, cwd=here).returncode == 2


@pytest.mark.parametrize("kind", ["methods", "data", "studies", "towers"])
def test_listings_are_json_for_programs(kind: str, command: Command) -> None:
    done = command("ls", kind, "--format", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert rows
    assert all(row["what"] for row in rows)


@pytest.mark.parametrize("verb", ["study", "plan"])
def test_a_study_can_be_printed_and_read_back(verb: str, command: Command, here: Path) -> None:
    done = command(verb, "lambda_sweep", "seeds=7", "--cfg")
    node = yaml.safe_load(done.out)
    assert (node["seeds"], node["method"]["name"]) == (7, "pfedmoap")
    assert not list(here.iterdir()), "nothing is written"


def test_a_run_can_be_printed(command: Command) -> None:
    node = yaml.safe_load(command("run", "method=fedpgp", "data.root=~/photos", "--cfg").out)
    assert (node["method"]["name"], node["data"]["root"]) == ("fedpgp", "~/photos")


@pytest.mark.parametrize("words", ["-h", "ls towers", "ls nothing", "show nothing", "data ls"])
def test_no_colour_without_a_terminal(words: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_COLOR": "", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR")
    done = command(*words.split())
    assert "\x1b" not in done.out + done.err


@pytest.mark.skipif(os.name != "posix", reason="a terminal of our own needs a pty")
@pytest.mark.parametrize(("colours", "wanted"), [({"NO_COLOR": "1"}, False), ({}, True)], ids=["NO_COLOR", "colours"])
def test_no_colour_on_a_terminal_where_it_is_not_wanted(colours: dict[str, str], wanted: bool, here: Path) -> None:
    import pty

    main, side = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"} | colours
    code = "from fpl_tune.cli import output, _fail; output.emit([{'cell': 'a'}], 'table', best=0); _fail('no', 2)"
    subprocess.run([sys.executable, "-c", code], stdout=side, stderr=side, env=plain, check=True, cwd=here)
    os.close(side)
    seen = os.read(main, 10_000).decode()
    os.close(main)
    assert "cell" in seen
    assert ("\x1b[" in seen) is wanted


@pytest.mark.parametrize("width", [80, 120])
def test_compared_studies_of_long_names_fit_the_terminal(
    width: int, home: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = "lambda_sweep_with_a_longer_context_and_fewer_experts"
    (home / "outputs" / "lambda_sweep_rn50").rename(home / "outputs" / long)
    done = command("compare", "lambda_sweep", long)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[:2] == ["A: lambda_sweep", f"B: {long}"]
    table = [line for line in lines if line[:1] in "┏┃┡│└"]
    assert max(map(len, table)) <= width
    assert len(table) == 4 + len(json.loads(command("compare", "lambda_sweep", long, "--format", "json").out)), (
        "no folds"
    )
    names = [name.strip() for name in table[1].strip("┃").split("┃")]
    assert names == ["cell", "A %", "B %", "B − A", "± sem", "p", "seeds"]


def test_retry_says_what_runs_again_beside_what_failed(home: Path, command: Command) -> None:
    cells = {
        json.loads(path.read_text())["label"]: path for path in home.glob("outputs/lambda_sweep/cells/*/cell.json")
    }

    def fail(label: str) -> str:
        path = cells[label].parent / "seed=1" / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed", "error": "no luck"}))
        return command("retry", "lambda_sweep").out

    said = fail("lam=0")
    assert "lam=0, seed 1: no luck" in said
    assert "A mended source of pfedmoap makes its 2 cells stale: they run again whole, done seeds too." in said
    mended = json.loads(cells["lam=0.5"].read_text())
    mended["fingerprints"]["method"] = "of an earlier source"
    cells["lam=0.5"].write_text(json.dumps(mended))
    assert "Stale, and run again whole: 1 cell with results (method source). See fpl-tune diff." in fail("promptfl")
    assert "nothing to try again" in command("retry", "lambda_sweep").out


def test_diff_counts_what_is_kept_outside_the_study(home: Path, command: Command) -> None:
    for values in ("[0]", "[0.5]"):  # both are finished: nothing runs
        assert command("study", "lambda_sweep", f"axes.method.lam={values}", "references=[]").code == 0
    done = command("diff", "lambda_sweep", "axes.method.lam=[0]", "references=[]")
    assert "not in this study: 2 cells with results. The settings that made them take them up again" in done.out
    assert "Folders of 1, state left in --format csv, are in no table and may be deleted." in done.out
    assert "promptfl" not in done.out
    listed = command("diff", "lambda_sweep", "axes.method.lam=[0]", "references=[]", "--format", "csv").out
    assert [line.split(",")[1:3] for line in listed.splitlines()[1:]] == [
        ["lam=0", "done"], ["lam=0.5", "gone"], ["promptfl", "left"]
    ]  # fmt: skip
