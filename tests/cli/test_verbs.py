"""The command line as a person uses it: listings, configurations, colours."""

import csv
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fpl_tune import __version__
from fpl_tune.core import paths
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store

from ..conftest import MakeStore
from .conftest import Command, Done


def test_a_study_without_a_search_imports_no_optuna(here: Path) -> None:
    """Nor what its callbacks and its executor need later: a plan and a start would wait for it."""
    words = ["import sys", "from fpl_tune.cli.study import study", "study('lambda_sweep', cfg=True)"]
    names = ("optuna", "sqlalchemy", "mlflow", "ray", "pandas", "open_clip")
    code = "; ".join([*words, "import fpl_tune.execute.plan.plan", f"print([n for n in {names} if n in sys.modules])"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command(here: Path, command: Command) -> None:
    words = [sys.executable, "-m", "fpl_tune"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout == command("--version").out == f"fpl-tune {__version__}\n"
    assert subprocess.run([*words, "stduy"], capture_output=True, check=False, cwd=here).returncode == 2


def test_no_file_of_the_folder_hides_a_library(here: Path) -> None:
    """Python itself imports some modules, such as `types`, before `python -m` hands over."""
    for name in (
        "statistics",
        "copy",
        "random",
        "logging",
        "queue",
        "json",
        "select",
        "rich",
        "torch",
        "numpy",
        "yaml",
    ):
        (here / f"{name}.py").write_text("raise SystemExit(f'{__name__} of the folder was imported')")
    words = [sys.executable, "-m", "fpl_tune", "plan", "lambda_sweep"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["methods", "data", "studies", "towers"])
def test_listings_are_json_for_programs(kind: str, command: Command) -> None:
    done = command("ls", kind, "--format", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert rows
    assert all(row["what"] for row in rows)


def test_methods_are_sorted_with_year_and_paper_and_one_shows_its_fields(command: Command) -> None:
    rows = json.loads(command("ls", "methods", "--format", "json").out)
    names = [row["method"] for row in rows]
    assert names == sorted(names)
    assert rows[names.index("pfedmoap")] | {"what": ""} == {
        "method": "pfedmoap", "what": "", "year": "2025", "paper": "https://arxiv.org/abs/2410.10114",
        "code": "compared",
    }  # fmt: skip
    fields = {row["field"]: row for row in json.loads(command("ls", "methods", "pfedmoap", "--format", "json").out)}
    assert (fields["method.lam"]["default"], fields["method.lam"]["searched"]) == ("0.5", "0 to 5")
    assert fields["method.lam"]["meaning"].startswith("λ, weight of the local prompt's own logits, >= 0")
    assert fields["optim.lr"]["searched"] == "0.001 to 0.1 (log)"
    shown = command("ls", "methods", "pfedmoap").out
    assert "https://arxiv.org/abs/2410.10114" in shown
    assert re.search(r"│ gate.weight │ personal │ \[N, 4, 96, 96\] +│", shown), "4 maps of CLIP's width, 96"
    assert re.search(r"│ pool        │ server   │ \[10, 16, 128\] +│", shown), "10 clients' contexts of 16 tokens"
    gate = fields["optim.groups.gate"]
    assert (gate["default"], gate["meaning"]) == ("0.01", "the gate, at section 4.1's rate")
    assert "no method 'pfedmop'. Did you mean 'pfedmoap'?" in command("ls", "methods", "pfedmop").err
    assert "required" in command("ls", "methods", "ditto").out
    assert "name=promptfl" in command("ls", "methods", "promptfl_ft").out


def test_methods_that_were_compared_with_released_code_are_those_of_the_guide(command: Command) -> None:
    rows = json.loads(command("ls", "methods", "--format", "json").out)
    assert {row["code"] for row in rows} == {"compared", "not compared"}
    compared = {row["method"] for row in rows if row["code"] == "compared"}
    docs = Path(__file__).resolve().parents[2] / "docs"
    guide = (docs / "guides" / "parity.md").read_text(encoding="utf-8").split("## Released code on this world")[1]
    run_as = re.findall(r"^\|(?: \[.*?| )\| (\w+)[^|]* \|(?:[^|]*\|){5}$", guide, re.MULTILINE)
    assert compared == {{"CLIP": "zeroshot"}.get(name, name.lower()) for name in run_as}
    assert compared == set(re.findall(r"`(\w+)` ✓", (docs / "reference" / "zoo.md").read_text(encoding="utf-8")))


def test_a_study_can_be_printed_and_read_back(command: Command, here: Path) -> None:
    done = command("study", "lambda_sweep", "seeds=7", "--cfg")
    node = yaml.safe_load(done.out)
    assert (node["seeds"], node["method"]["name"]) == (7, "pfedmoap")
    assert not list(here.iterdir()), "nothing is written"


@pytest.mark.parametrize("words", ["-h", "ls nothing", "ls data"])
def test_no_colour_without_a_terminal(words: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_COLOR": "", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR")
    done = command(*words.split())
    assert "\x1b" not in done.out + done.err


def test_a_metric_that_no_record_holds_gets_a_near_name_from_the_records(home: Path, command: Command) -> None:
    for given, near in (("test/acc_worst", "test/acc_worst10"), ("comm/totl_bytes", "comm/total_bytes")):
        refused = command("report", "lambda_sweep", "--metric", given)
        assert (refused.code, refused.out) == (2, "")
        assert f"No record holds the metric '{given}'. Did you mean '{near}'" in refused.err
    assert command("report", "lambda_sweep", "--metric", "test/acc_worst10").code == 0


def test_seeds_that_the_study_no_longer_asks_for_are_in_no_table_and_come_back(home: Path, command: Command) -> None:
    table = home / "outputs" / "lambda_sweep" / "results.csv"
    whole = table.read_text().splitlines()
    command("study", "lambda_sweep", "seeds=1")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["seed"] for row in rows} == {"1"}
    shown = json.loads(command("show", "lambda_sweep", "--format", "json").out)
    assert [row["n"] for row in shown] == [1, 1, 1]
    done = command("study", "lambda_sweep")
    assert "0 cells run, 3 done before" in done.err
    assert command("study", "lambda_sweep", "--quiet") == Done(0, done.out, ""), "results alone"
    assert table.read_text().splitlines() == whole


def test_results_csv_has_a_row_per_cell_and_seed_and_is_written_after_a_kill_too(home: Path, command: Command) -> None:
    folder = home / "outputs" / "lambda_sweep"
    shown = json.loads(command("show", "lambda_sweep", "--format", "json").out)
    whole, rules = (pd.read_csv(folder / name) for name in ("results.csv", "rules.csv"))
    means = whole.groupby("cell")["test/acc_mean"].mean()
    assert means.to_dict() == pytest.approx({row["cell"]: row["mean"] for row in shown})
    assert {*whole["rule"]} == {"final"} < {*rules["rule"]}
    for verb in ("show", "report"):
        (folder / "results.csv").unlink()
        command(verb, "lambda_sweep")
        assert pd.read_csv(folder / "results.csv").equals(whole)


def test_plan_names_what_makes_a_cell_stale(home: Path, command: Command) -> None:
    store = Store.open(home / "outputs", "lambda_sweep")
    path = store.seed_folder(store.cell("lam=0.5"), 1) / "result.json"
    node = json.loads(path.read_text())
    node["fingerprints"]["method"] = "of an earlier source"
    path.write_text(json.dumps(node))
    rows = {row["cell"]: row for row in json.loads(command("plan", "lambda_sweep", "--format", "json").out)["plan"]}
    assert rows["lam=0.5"]["status"] == "stale (method source)"
    assert rows["lam=0"]["status"] == "done"


def test_a_run_without_validation_or_with_rounds_between_evaluations(command: Command) -> None:
    small = "data.train_per_class=8 data.test_per_class=2 data.shots=4 data.domains=[clipart] protocol.epochs=1"
    without = command("run", *small.split(), "data.val=0", "protocol.rounds=1", "--format", "csv")
    assert without.code == 0, without.err
    assert [line.split(",")[1] for line in without.out.splitlines()[1:]] == ["final", "best_test", "mean_last5"]
    sparse = command("run", *small.split(), "protocol.rounds=3", "protocol.eval_every=2", "--format", "csv")
    rounds = {line.split(",")[1]: line.split(",")[2] for line in sparse.out.splitlines()[1:]}
    assert rounds["final"] == "3", "the last round is evaluated, and rounds are counted from 1"
    assert set(rounds.values()) <= {"2", "3"}


@pytest.mark.parametrize(
    "words",
    [
        "report lambda_sweep --out taken/here",
        "export lambda_sweep taken/here",
    ],
)
def test_a_place_that_cannot_be_written_is_a_line(words: str, home: Path, command: Command) -> None:
    (home / "taken").touch()
    done = command(*words.split())
    (line,) = done.err.splitlines()
    assert done.code == 3
    assert "taken" in line
    assert "cannot be read or written" in line


@pytest.mark.parametrize(
    "words", ["show lambda_sweep", "status lambda_sweep", "report lambda_sweep --out page", "export lambda_sweep best"]
)
def test_what_is_read_need_not_be_written(
    words: str, home: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(paths, "TemporaryFile", refuse)
    assert command("study", "lambda_sweep").code == 3
    before = {path: path.stat().st_mtime_ns for path in (home / "outputs" / "lambda_sweep").rglob("*")}
    assert command(*words.split()).code == 0
    assert {path: path.stat().st_mtime_ns for path in (home / "outputs" / "lambda_sweep").rglob("*")} == before


def test_results_are_listed_with_what_they_have(home: Path, command: Command) -> None:
    path = home / "outputs" / "lambda_sweep" / "cells.json"
    first = home / "outputs" / "lambda_sweep" / "cells" / json.loads(path.read_text())["cells"][0]["id"]
    for result in first.glob("seed=*/result.json"):
        result.unlink()
    rows = json.loads(command("status", "--format", "json").out)
    assert rows[0] == {"study": "lambda_sweep", "cells": 3, "results": 4, "running": False}


def test_the_status_of_a_study_counts_its_cells_and_names_the_process_that_runs_it(
    home: Path, command: Command
) -> None:
    said = "lambda_sweep: 3 cells (3 done); 6 of 6 seeds have a result; "
    assert command("status", "lambda_sweep").out == f"{said}not running\n"
    stopped = command("stop", "lambda_sweep")
    assert (stopped.code, "lambda_sweep is not running" in stopped.err) == (2, True)
    with locked(home / "outputs" / "lambda_sweep"):
        first = command("status", "lambda_sweep").out
        assert first.startswith(said)
        assert f"run by process {os.getpid()} on " in first
        assert json.loads(command("status", "--format", "json").out)[0]["running"]
        assert "The same command continues it." in command("stop", "lambda_sweep").out
        assert f"{said}ending after the round; run by process" in command("status", "lambda_sweep").out
        values = json.loads(command("status", "lambda_sweep", "--format", "json").out)
    assert {name: values[name] for name in ("cells", "done", "seeds", "seeds_wanted", "ending")} == {
        "cells": 3, "done": 3, "seeds": 6, "seeds_wanted": 6, "ending": True,
    }  # fmt: skip
    (home / "outputs" / "lambda_sweep" / "cells.json").write_text("[]")
    listed = command("status", "--format", "json")
    assert json.loads(listed.out)[0] == {"study": "lambda_sweep", "cells": None, "results": None, "running": False}
    assert "The list of cells of lambda_sweep cannot be read." in listed.err


def test_the_best_cell_is_exported_with_a_study_that_repeats_it(home: Path, command: Command) -> None:
    best = json.loads(command("show", "lambda_sweep", "--best", "--format", "json").out)
    done = command("export", "lambda_sweep", "out")
    assert done.code == 0, done.err
    files = [path for path in (home / "out").rglob("*") if path.is_file()]
    assert done.out.startswith(f"{best['cell']}: {len(files)} files in out; fpl-tune study out/lambda_sweep-")
    again = yaml.safe_load(command(*done.out.split("; fpl-tune ")[1].split(" repeats")[0].split(), "--cfg").out)
    assert f"lam={again['method']['lam']:g}" == best["cell"] or again["method"]["name"] == best["cell"]
    assert " in lambda_sweep; " in command("export", "lambda_sweep").out
    refused = command("export", "lambda_sweep", "--cell", "lam=0")
    assert (refused.code, refused.out) == (2, "")
    assert "An export goes into a new or empty folder, but lambda_sweep is not. Name another one." in refused.err


def test_a_plan_that_does_not_fit_is_printed_and_refused(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("plan", "lambda_sweep", "execution.executor=ray", "execution.parallel=4")
    assert command(*words).code == 0
    monkeypatch.setattr("fpl_tune.execute.plan.plan.memory", lambda: 1 << 30)
    done = command(*words)
    assert done.code == 2
    assert "4 trials in parallel would take" in done.out
    assert not json.loads(command(*words, "--format", "json").out)["feasible"]


def test_doctor_lists_the_nodes_of_a_cluster_and_what_each_lacks(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpl_tune.execute import ray
    from fpl_tune.execute.ray.nodes import Node

    def inspect(address: str, *_: object) -> list[Node]:
        if address == "away:1":
            raise EnvironmentProblem("nothing answers there")
        return [Node("fit", 8, 2, gpu_bytes=(80_000_000_000,) * 2), Node("old", 4, 0, "has torch 0.0.1. Install it")]

    monkeypatch.setattr(ray, "inspect", inspect)
    monkeypatch.setenv("RAY_ADDRESS", "away:1")

    def rows(*words: str) -> list[tuple[str, str, str, str]]:
        done = command("doctor", *words, "--format", "json")
        found = json.loads(done.out)
        assert done.code == 3
        begin = [row["what"] for row in found].index("Ray")
        return [tuple(row[name] for name in ("what", "state", "found", "remedy")) for row in found[begin:]]

    assert rows() == [("Ray", "wrong", "nothing answers there", "Start the cluster, or correct the address.")]
    assert rows("--address", "head:1") == [
        ("Ray", "fine", "2 nodes at head:1", ""),
        ("fit", "fine", "8 CPU, 2 GPU, GPU 80.0 GB, GPU 80.0 GB", ""),
        ("old", "fine", "4 CPU, 0 GPU", ""),
        ("old", "wrong", "has torch 0.0.1", "Install it"),
    ]


def test_without_results_and_without_words_the_next_step_is_said(here: Path, command: Command) -> None:
    assert "Run a study first: fpl-tune study NAME." in command("status").out
    assert json.loads(command("status", "--format", "json").out) == []
    done = command()
    assert "Usage" in done.out + done.err
    assert all(verb in done.out + done.err for verb in ("study", "show", "report"))
    assert all((done := command(group)).code == 0 and "Usage" in done.out + done.err for group in ("data", "cluster"))


def test_charts_are_files_of_their_own_on_request_alone(home: Path, command: Command) -> None:
    for words, there in (((), False), (("--figures",), True)):
        assert command("report", "lambda_sweep", "--out", "page", *words).code == 0
        assert (home / "page" / "figures").exists() == there


def test_doctor_names_what_mlflow_does_not_hold_and_mends_it(
    home: Path, command: Command, make_store: MakeStore
) -> None:
    store = make_store(root=home / "outputs")
    number = 1 + len(store.cells())

    def found(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
        done = command("doctor", *words, "--format", "json")
        return done.code, {row["what"]: row for row in json.loads(done.out) if row["what"].startswith("MLflow")}

    code, rows = found()
    assert (code, rows["MLflow of toy"]["state"]) == (3, "wrong")
    assert rows["MLflow of toy"]["found"].startswith(f"{number} runs: ")
    assert rows["MLflow of toy"]["found"].endswith("; ..."), "the first three alone"
    assert rows["MLflow of toy"]["found"].count(" missing") == 3
    assert rows["MLflow of toy"]["remedy"] == "fpl-tune doctor --fix"
    assert rows["MLflow of lambda_sweep"]["found"] == "off: tracking.enabled=false"
    for words, state in ((("--fix",), "fixed"), ((), "fine")):
        code, rows = found(*words)
        assert (code, rows["MLflow of toy"]["state"], rows["MLflow of toy"]["remedy"]) == (0, state, "")
    shutil.rmtree(store.folder)
    for words, code, state in (((), 3, "wrong"), (("--fix",), 0, "fixed")):
        ended, rows = found(*words)
        assert (ended, rows["MLflow of toy"]["state"]) == (code, state)
        assert rows["MLflow of toy"]["found"] == f"{number} runs orphaned"
    assert "MLflow of toy" not in found()[1]


def test_doctor_names_a_damaged_file_with_its_remedy_and_checks_the_others(home: Path, command: Command) -> None:
    (home / "outputs" / "lambda_sweep" / "study.yaml").write_text("name: [")
    damaged, *_ = (home / "outputs").glob("lambda_sweep_rn50/cells/*/seed=1/result.json")
    damaged.write_text("{")
    done = command("doctor", "--format", "json")
    wrong = {row["what"]: row for row in json.loads(done.out) if row["state"] == "wrong"}
    assert done.code == 3
    assert wrong.keys() == {"lambda_sweep/study.yaml", str(damaged.relative_to(home / "outputs"))}
    assert all(row["found"] and row["remedy"] for row in wrong.values())
    assert "off: tracking.enabled=false" in done.out, "the records of the readable study"


def test_doctor_says_why_a_folder_cannot_be_written(
    here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "file").touch()
    monkeypatch.setenv("FPL_TUNE_CACHE", str(here / "file" / "cache"))
    done = command("doctor", "--format", "json")
    rows = {row["what"]: row for row in json.loads(done.out)}
    assert (done.code, rows["outputs"]["state"], rows["feature cache"]["state"]) == (3, "fine", "wrong")
    assert rows["feature cache"]["found"].endswith("cannot be written (Not a directory)")
    assert not (here / "outputs").exists()
