"""Trying failures again as a person does: a plug-in that raises, losses that are no numbers, one seed of three."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Command, Done

UNLUCKY = """
import os
from dataclasses import dataclass
from pathlib import Path

from fpl_tune.method import derive
from fpl_tune.methods.promptfl import PromptFL

@dataclass(frozen=True)
class Unlucky(PromptFL):
    luck: str = "good"

    def init(self, task, rng, before=None):
        if self._has("seed") and rng.initial_seed() == derive("init", 2):
            raise RuntimeError("not this seed")
        return super().init(task, rng, before)

    def loss(self, task, local, batch):
        loss, fixed = super().loss(task, local, batch)
        if self._has("raises"):
            raise ValueError("a bug")
        return loss * float("nan") if self._has("nan") else loss, fixed

    def _has(self, luck):
        return self.luck == luck and luck in Path(os.environ["UNLUCKY"]).read_text()
"""
STUDY = """
defaults: [/study, override /method: promptfl, _self_]
method: {name: "unlucky:Unlucky", n_ctx: 2}
axes: {method: {luck: [good, raises, nan, seed]}}
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 2, epochs: 1}
seeds: 3
"""


def outside(*words: str) -> Done:
    """The command in a process of its own, whose Ray ends with it."""
    done = subprocess.run(
        [sys.executable, "-m", "fpl_tune", *words], capture_output=True, text=True, timeout=240, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def states(here: Path) -> dict[str, list[str]]:
    """Statuses of the seeds by cell; a cell without results has none."""
    store = here / "outputs" / "unlucky"
    found = {}
    for path in store.glob("cells/*/cell.json"):
        results = sorted(path.parent.glob("seed=*/result.json"))
        luck = json.loads(path.read_text())["varied"]["method.luck"]
        found[luck] = [json.loads(result.read_text())["status"] for result in results]
    return found


def written(here: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in here.glob("outputs/unlucky/cells/*/seed=*/result.json")}


def logged(here: Path) -> dict[str, list[str]]:
    """States of the runs in MLflow by their name."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{here}/outputs/mlflow.db")
    found: dict[str, list[str]] = {}
    for experiment in client.search_experiments(filter_string="name = 'unlucky'"):
        for run in client.search_runs([experiment.experiment_id]):
            found.setdefault(str(run.info.run_name), []).append(run.info.status)
    return found


@pytest.mark.parametrize(("executor", "steps"), [("inline", [[], ["--retry"]]), ("ray", [["--retry"]])])
def test_failed_seeds_and_only_they_run_again(
    executor: str, steps: list[list[str]], here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = command if executor == "inline" else outside
    cause = here / "cause"
    cause.write_text("raises nan seed")
    (here / "unlucky.py").write_text(UNLUCKY)
    (here / "studies").mkdir()
    (here / "studies" / "unlucky.yaml").write_text(STUDY)
    for name, value in {"UNLUCKY": cause, "FPL_TUNE_PLUGINS": "unlucky", "OMP_NUM_THREADS": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]))
    study = ["study", "unlucky", f"execution.executor={executor}"]

    first = call(*study)
    assert first.code == 1, first.err
    good, bad, nan = ["done"] * 3, ["failed"] * 3, ["diverged"] * 3
    assert states(here) == {"good": good, "raises": bad, "nan": nan, "seed": ["done", "failed", "done"]}
    for said in ("luck=raises, seed 3: ValueError: a bug", "luck=seed, seed 2: RuntimeError: not this seed"):
        kind = said.rpartition(": ")[2]
        line = next(number for number, text in enumerate(UNLUCKY.splitlines(), 1) if f'("{kind}")' in text)
        assert f"{said} ({here}/unlucky.py:{line})" in first.err
    assert set(map(tuple, logged(here).values())) == {("FINISHED",), ("FAILED",)}

    cause.write_text("")
    for options in steps:
        before = {path: when for path, when in written(here).items() if '"done"' in path.read_text()}
        again = call(*study, *options)
        assert again.code == (0 if options else 1), again.err
        assert ("retry luck=nan, seed 1: " in again.err) == bool(options), "only if asked for"
        after = written(here)
        assert {path: after[path] for path in before} == before, "no finished seed ran again"
        healthy = call("doctor", "--format", "json")
        rows = [row for row in json.loads(healthy.out) if row["what"] == "MLflow of unlucky"]
        assert [row["state"] for row in rows] == ["fine"]
    assert states(here) == {"good": good, "raises": good, "nan": good, "seed": good}
    runs = logged(here)
    assert len(runs) == 1 + 4
    assert set(map(tuple, runs.values())) == {("FINISHED",)}, "the study and every cell have one run"
    assert "nothing to retry" in call(*study, "--retry").err
