"""The Python interface: overrides as mappings, a study's frames, and what notebooks and terminals show."""

import base64
import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from PIL import Image

import fpl_tune
from fpl_tune import report
from fpl_tune.api import StudyResults
from fpl_tune.core.errors import ConfigError
from fpl_tune.simulation.simulation import Record

from .conftest import Compose, Heard, MakeStore, there

TINY: dict[str, Any] = {
    "method": "promptfl",
    "data": {"train_per_class": 8, "test_per_class": 2, "shots": 2, "domains": ["clipart"]},
    "partition.n_clients": 2,
    "protocol": {"rounds": 2, "epochs": 1},
}
TEXTS = (
    "method=promptfl", "data.train_per_class=8", "data.test_per_class=2", "data.shots=2", "data.domains=[clipart]",
    "partition.n_clients=2", "protocol.rounds=2", "protocol.epochs=1",
)  # fmt: skip


@pytest.fixture
def study_file(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny study of two learning rates, whose results go to a folder of their own."""
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "outputs"))
    compose("axes: {optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot}]\n")
    return str(tmp_path / "tiny.yaml")


def test_needs_no_home_and_no_entry_in_passwd(tmp_path: Path) -> None:
    """As in a container with a random user id; MLflow asks for a home when it is imported."""
    nobody = "import os, pathlib; os.getuid = lambda: 2**31 - 7"
    program = f"{nobody}; import fpl_tune, mlflow; print(pathlib.Path.home())"
    env = {name: value for name, value in os.environ.items() if name != "HOME"}
    env["PYTHONPATH"] = str(Path(fpl_tune.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{tmp_path}\n", done.stderr


def test_a_run_of_a_mapping_is_that_of_the_texts(capsys: pytest.CaptureFixture[str]) -> None:
    ours = fpl_tune.run(TINY, {"optim.lr": 0.1}, seeds=2)
    theirs = fpl_tune.run(*TEXTS, "optim.lr=0.1", "seeds=2")
    same = [name for name in theirs if not name.startswith("time/")]
    pd.testing.assert_frame_equal(ours[same], theirs[same])
    assert capsys.readouterr().err == "", "no terminal and no notebook"


def test_a_wrong_key_or_value_is_refused_as_on_the_command_line(study_file: str) -> None:
    with pytest.raises(ConfigError, match=r"^There is no field 'optim\.lrr'\. Did you mean 'optim\.lr'\?$"):
        fpl_tune.run({"optim.lrr": 1})
    with pytest.raises(ConfigError, match=r"^optim\.lr must be a number, but is '0\.5'\.$"):
        fpl_tune.run({"optim.lr": "0.5"})
    with pytest.raises(ConfigError, match=r"An axis is a list of at least one value, but axes\.optim\.lr is 0\.5"):
        fpl_tune.run_study(study_file, {"axes.optim.lr": 0.5})
    with pytest.raises(ConfigError, match="seeds"):
        fpl_tune.run_study(study_file, seeds=0)


def test_the_objective_takes_a_mapping(compose: Compose, tmp_path: Path) -> None:
    compose("search: {sampler: random}\n")
    file = str(tmp_path / "tiny.yaml")
    one = {"choices": [0.1]}
    search = fpl_tune.objective(file, {"search.space.optim.lr": one, "search.only": ["optim.lr"]}, "seeds=1")
    study = optuna.create_study(directions=search.directions)
    study.optimize(search, n_trials=1)
    assert study.best_params == {"optim.lr": 0.1}


def test_a_study_of_a_mapping_with_its_progress(study_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    given = {"axes.optim.lr": [0.1, 0.5]}
    study = fpl_tune.run_study(study_file, given, seeds=[3, 5], callbacks=[heard], progress=True)
    assert sorted(study.results["seed"].unique()) == [3, 5]
    assert set(heard.cells) == {"lr=0.1", "lr=0.5", "zeroshot"}
    seen = capsys.readouterr()
    assert seen.out == ""
    *_, last = lines = [line.rstrip() for line in re.split(r"[\r\n]+", seen.err) if line.strip()]
    assert re.fullmatch(r"tiny: 3 of 3 cells, 10 of 10 rounds, best on validation \d+\.\d % lr=0\.\d", last)
    assert re.fullmatch(r"tiny: \d of 3 cells, \d+ of 10 rounds, (starting|about .* left).*", lines[0])
    assert seen.err.endswith("\n")
    fpl_tune.run_study(study_file, given, seeds=[3, 5])
    assert capsys.readouterr().err == "", "neither a terminal nor a notebook"


def test_a_simulation_writes_its_rounds_over_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    fpl_tune.run(TINY, progress=True)
    seen = capsys.readouterr().err
    assert re.fullmatch(r"\rround 1/2 .*\rround 2/2  validation .* % .*\n", seen)

    def stop(_: Sequence[Record]) -> None:
        raise ValueError("seen enough")

    with pytest.raises(ValueError, match="seen enough"):
        fpl_tune.run(TINY, progress=True, callback=stop)
    seen = capsys.readouterr().err
    assert re.fullmatch(r"\rround 1/2 .*\n", seen), "what follows stands below"


def test_failures_stand_below_the_progress(study_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    fpl_tune.run_study(study_file, {"axes.optim.lr": [1e20], "optim.batch": 8}, seeds=1, progress=True)
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("lr=1e+20, seed 1: training diverged: loss is NaN")


def shown(study: StudyResults) -> dict[str, str]:
    """What a notebook shows."""
    return study._repr_mimebundle_(include=None, exclude=None)


def test_a_finished_study_shows_answer_chart_and_table(make_store: MakeStore) -> None:
    store = make_store()
    study = StudyResults(store)
    assert study.answer == report.sentence(store)
    text, page = repr(study), shown(study)["text/html"]
    assert text == shown(study)["text/plain"]
    assert text.splitlines()[0] == study.answer
    table = (store.folder / "table.md").read_text(encoding="utf-8")
    rows = [[field.strip(" *") for field in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    head, _, *cells = rows
    for row in (head, *cells):
        assert re.search(r"\s+".join(map(re.escape, row)), text), "the columns and texts of the page's table"
        assert all(f">{field}<" in page for field in row)
    assert page.count("<tr>") == len(cells) + 1
    assert "<script" not in page
    (picture,) = re.findall(r'<img width="(\d+)" alt="Test accuracy[^"]*" src="data:image/png;base64,([^"]+)">', page)
    drawn = Image.open(io.BytesIO(base64.b64decode(picture[1])))
    assert drawn.width // 2 == int(picture[0]) < 800
    assert len(drawn.convert("L").getcolors() or []) > 10, "something is drawn"
    (best,) = [line for line in text.splitlines() if line.startswith("* ")]
    assert best.split()[1].replace("=", " = ") in study.answer
    bold = [row for row in re.findall(r"<tr>(.*?)</tr>", page) if "<td><strong>" in row]
    assert len(bold) == 1
    assert f">{best.split()[1]}<" in bold[0]


def test_a_study_without_results_says_so_in_a_line(make_store: MakeStore) -> None:
    study = StudyResults(make_store(fill=lambda cell, seed: False))
    assert repr(study) == "toy has no results yet: none of 4 cells has run."
    assert study.answer == repr(study)
    assert shown(study)["text/html"] == f"<p><strong>{study.answer}</strong></p>"


def test_a_study_that_is_partly_done_shows_what_there_is(make_store: MakeStore) -> None:
    store = make_store(fill=lambda cell, seed: cell.number == 0)
    study = StudyResults(store)
    assert study.answer.startswith("So far, 1 of 4 cells done: ")
    assert "0 of 3" in repr(study)
    assert "data:image/png" in shown(study)["text/html"]
    assert not (store.folder / "report.html").exists(), "showing writes nothing"


def test_a_long_table_is_cut_after_twenty_rows(make_store: MakeStore) -> None:
    body = f"axes: {{method: {{n_ctx: {list(range(1, 31))}}}}}\nreferences: [{{method: zeroshot}}]\nseeds: 2\n"
    study = StudyResults(make_store(body=body, name="long", level=lambda cell: 0.9 if cell.number == 25 else 0.5))
    *lines, rest = repr(study).splitlines()
    assert rest == "and 11 more cells, which summary() lists."
    assert len(lines) == 2 + 1 + 20
    assert any(line.startswith("* n_ctx=26") for line in lines), "the best cell stays"
    assert any(line.startswith("  zeroshot") for line in lines), "and so do references"
    page = shown(study)["text/html"]
    assert page.count("<tr>") == 21
    assert f"<p>{rest}</p>" in page


def test_a_summary_refuses_a_rule_or_metric_that_is_not_there(make_store: MakeStore) -> None:
    """NaN in every row would say that nothing is done yet."""
    study = StudyResults(make_store())
    with pytest.raises(ConfigError, match=r"There is no reporting rule 'best_vall'\. Did you mean 'best_val'"):
        study.summary(rule="best_vall")
    with pytest.raises(ConfigError, match=r"metric: no run reports 'test/acc_mea'\. Did you mean 'test/acc_mean'"):
        study.summary(metric="test/acc_mea")
    assert study.summary(rule="best_val", metric="train/loss")["mean"].notna().all()


def test_a_summary_takes_any_metric_of_a_stored_round(make_store: MakeStore) -> None:
    """Also one of a method that this process has not loaded."""
    store = make_store()
    cell = store.cells()[0]
    history = [{**record, "gates_open": 0.5} for record in store.history(cell, 1)]
    store.put(cell, 1, replace(there(store.result(cell, 1)), records=lambda: history))
    assert StudyResults(store).summary(metric="gates_open")["mean"].max() == 0.5
