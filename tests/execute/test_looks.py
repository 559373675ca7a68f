"""Seeds that are added until comparisons are decided: which cells run on, how a kill is continued, what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.execute import inline
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.job import Job
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.looks import Look
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.store import Store

from ..conftest import Compose, Heard, figures_of, make_plan
from ..conftest import start_study as run_study

LEVELS = {0.1: 0.8, 0.2: 0.5, 0.3: 0.815, 0.4: 0.8}
"""By learning rate: the reference, one that is far from it, one that is near, and one that is as good."""
BODY = "axes: {optim: {lr: [0.1, 0.2, 0.3, 0.4]}}\nreport: {reference: lr=0.1, rope: 0.1}\n"
ONE = "protocol.rounds=1"
UNTIL = ("seeds=until_decided", "looks=[3,5,8]")


@pytest.fixture(autouse=True)
def _graded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies are drawn by seed around the level of a cell's learning rate."""
    step = Simulation.step

    def graded(self: Simulation) -> list[Record]:
        lr, records = self.run.optim.lr, step(self)
        for record in records:
            noise = np.random.default_rng([int(10 * lr), int(record["seed"])]).normal(0, 0.004)
            for kind in ("val", "test"):
                record |= {f"{kind}/acc_mean": LEVELS[lr] + noise, f"clients/{kind}": [LEVELS[lr] + noise] * 4}
        return records

    monkeypatch.setattr(Simulation, "step", graded)


class Looked(Heard):
    """Notes looks as well."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[tuple[Look, list[tuple[str, tuple[int, ...]]]]] = []

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        self.looks.append((look, [(job.cell.label, job.seeds) for job in jobs]))


def run(made: Any, root: Path, *callbacks: Callback) -> Any:
    return run_study(made, root=root, executor=inline.execute, callbacks=callbacks)


def seeds_of(root: Path) -> dict[str, list[int]]:
    store = Store.open(root, "tiny")
    return {cell.label: store.seeds(cell) for cell in store.cells()}


def test_cells_stop_where_their_verdict_is_there(compose: Compose, tmp_path: Path) -> None:
    log = Looked()
    made = compose(BODY, *UNTIL, ONE)
    outcome = run(made, tmp_path, log)
    assert (outcome.done, outcome.failed, outcome.pending, outcome.exit_code) == (4, 0, 0, 0)
    assert seeds_of(tmp_path) == {
        "lr=0.1": [1, 2, 3, 4, 5, 6, 7, 8],
        "lr=0.2": [1, 2, 3],
        "lr=0.3": [1, 2, 3, 4, 5],
        "lr=0.4": [1, 2, 3, 4, 5, 6, 7, 8],
    }
    assert [str(look) for look, _ in log.looks] == [
        "1 of 3 comparisons decided after 3 seeds; 3 cells run on to 5 seeds",
        "2 of 3 comparisons decided after 5 seeds; 2 cells run on to 8 seeds",
        "2 of 3 comparisons decided after 8 seeds",
    ]
    assert [sorted(jobs) for _, jobs in log.looks] == [
        [("lr=0.1", (4, 5)), ("lr=0.3", (4, 5)), ("lr=0.4", (4, 5))],
        [("lr=0.1", (6, 7, 8)), ("lr=0.4", (6, 7, 8))],
        [],
    ]
    assert len(log.rounds) == len(set(log.rounds)) == 8 + 3 + 5 + 8, "nothing ran twice"
    store = Store.open(tmp_path, "tiny")
    tests = compare(Findings(store.spec(), store.table())).frame.set_axis(["lr=0.2", "lr=0.3", "lr=0.4"])
    assert tests["verdict"].to_dict() == {"lr=0.2": "worse", "lr=0.3": "better", "lr=0.4": "undecided"}
    assert tests["look"].to_dict() == {"lr=0.2": 3, "lr=0.3": 5, "lr=0.4": 0}
    assert tests["seeds"].to_dict() == {"lr=0.2": 3, "lr=0.3": 5, "lr=0.4": 8}

    again = run(made, tmp_path, second := Looked())
    assert (again.done, again.skipped, second.rounds, second.looks) == (0, 4, [], [])


def test_seeds_are_those_of_a_study_with_a_fixed_number(compose: Compose, tmp_path: Path) -> None:
    run(compose(BODY, *UNTIL, ONE), tmp_path / "looks")
    run(compose(BODY, "seeds=8", ONE), tmp_path / "fixed")
    found, fixed = figures_of(tmp_path / "looks"), figures_of(tmp_path / "fixed")
    keys = ["cell", "seed", "rule"]
    same = fixed.set_index(keys).loc[found.set_index(keys).index].reset_index()
    pd.testing.assert_frame_equal(found.drop(columns="seeds"), same[found.columns].drop(columns="seeds"))


@pytest.mark.system
@pytest.mark.parametrize("seed", [5, 8])
def test_killed_in_a_look_and_continued_equals_undisturbed(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The process dies in the last round of the last cell that runs this seed; a checkpoint follows each round."""
    made, step = compose(BODY, *UNTIL, "execution.checkpoint_every=1"), Simulation.step
    run(made, tmp_path / "whole")
    with monkeypatch.context() as patch:

        def dying(self: Simulation) -> list[Record]:
            if seed in self.seeds and self.run.optim.lr == 0.4 and self.round == 1:
                raise KeyboardInterrupt
            return step(self)

        patch.setattr(Simulation, "step", dying)
        with pytest.raises(KeyboardInterrupt):
            run(made, tmp_path / "killed")
    stepped: list[int] = []
    monkeypatch.setattr(Simulation, "step", lambda self: (stepped.append(self.round + 1), step(self))[1])
    run(made, tmp_path / "killed")
    assert stepped == [2, *[1, 2] * {5: 2, 8: 0}[seed]], "and the jobs of later looks"
    pd.testing.assert_frame_equal(figures_of(tmp_path / "whole"), figures_of(tmp_path / "killed"))
    assert not list((tmp_path / "killed").rglob("ckpt-*"))


def test_a_cell_of_which_a_seed_diverges_is_compared_and_asked_for_no_more(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Simulation.step

    def shaky(self: Simulation) -> list[Record]:
        if self.run.optim.lr == 0.4 and 4 in self.seeds:
            raise Diverged("loss is NaN")
        return step(self)

    monkeypatch.setattr(Simulation, "step", shaky)
    outcome = run(compose(BODY, *UNTIL, "execution.retries=0", ONE), tmp_path, log := Looked())
    assert outcome.exit_code == 1
    assert [look.compared for look, _ in log.looks] == [3, 2]
    assert [[job for job in jobs if job[0] == "lr=0.4"] for _, jobs in log.looks] == [[("lr=0.4", (4, 5))], []]
    store = Store.open(tmp_path, "tiny")
    cell = store.cells()[3]
    assert [run.status for run in store.row(cell).results.values()] == [*3 * ["done"], "diverged", "done"]
    findings = Findings(store.spec(), store.table())
    assert cell.id not in compare(findings).frame.index
    assert (findings.frame.loc[cell.id, "n"], findings.frame.loc[cell.id, "status"]) == (4, "diverged")
    again = run(compose(BODY, *UNTIL, "execution.retries=0", ONE), tmp_path, second := Looked())
    assert (again.exit_code, second.rounds) == (1, []), "it is not asked for again"


def test_the_plan_counts_the_seeds_of_the_first_look(compose: Compose, tmp_path: Path) -> None:
    made = compose(BODY, *UNTIL, ONE)
    plan = make_plan(made, root=tmp_path)
    assert [row["seeds"] for row in plan.rows()] == [3] * 4
    assert " Cells of undecided comparisons get up to 8 seeds." in plan.sentence()
    run(made, tmp_path)
    assert make_plan(made, root=tmp_path).totals()["done"] == 4
    status = Store.open(tmp_path, "tiny").table().status()
    assert status["seeds_wanted"] == status["seeds"] == 24


HAS = "Looks are declared before the first result, but tiny has results with"
REFUSED = {
    "other": (
        (*UNTIL[:1], "looks=[3,5,8,12]"),
        rf"{HAS} looks=\[3, 5, 8\] and is asked for looks=\[3, 5, 8, 12\]. Run",
    ),
    "fixed": (("seeds=3",), rf"{HAS} looks=\[3, 5, 8\] and is asked for a fixed number of seeds.*name=tiny_2"),
    "halving": ((*UNTIL, "prune.rule=halving"), "runs cells whole. Set prune.rule=null, or a number of seeds."),
    "search": (
        (*UNTIL, "search.sampler=tpe"),
        "compares the cells of a grid, but tiny searches. Set a number of seeds.",
    ),
    "claims": (
        (*UNTIL, "report.claims={a: {says: A, cells: {lr: 0.1}, versus: {lr: 0.2}}}"),
        "decides comparisons with a reference, but tiny has claims",
    ),
}


def test_what_looks_cannot_be_is_refused_in_one_line_and_changes_nothing(compose: Compose, tmp_path: Path) -> None:
    run(compose(BODY.replace("0.2, 0.3, ", ""), *UNTIL, ONE), tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    for overrides, message in REFUSED.values():
        made = compose(BODY, *overrides)
        for refuse in (make_plan, run_study):
            given: dict[str, Any] = {"executor": inline.execute} if refuse is run_study else {}
            with pytest.raises(ConfigError, match=message):
                refuse(made, root=tmp_path / "out", **given)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_looks_after_results_of_fixed_seeds_are_refused(compose: Compose, tmp_path: Path) -> None:
    run(compose(BODY, "seeds=3", ONE), tmp_path)
    with pytest.raises(ConfigError, match="results with a fixed number of seeds and is asked for looks="):
        run(compose(BODY, *UNTIL, ONE), tmp_path)
    assert run(compose(BODY, "seeds=4", ONE), tmp_path).exit_code == 0
