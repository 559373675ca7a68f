"""What a study does next, on tables that the tests write down: searches and grids that run to their end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from fpl_tune.execute.decide import Ask, Confirm, Done, Pass, Start, Wait, asking, next_action, rows_of
from fpl_tune.search.cell_search import CellSearch
from fpl_tune.search.halving import spent
from fpl_tune.study.cells import Cell, Suggestion
from fpl_tune.study.results import Status
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.standing import CellState, Design, Leg, Row, Run
from fpl_tune.study.table import StudyTable

ROUNDS = 9


def noise(*key: object) -> float:
    return random.Random(repr(key)).random()


def cell(name: str, role: str = "cell") -> Cell:
    return Cell(name, 0, name, cast("Any", role), {}, {"protocol": {"eval_every": 1}}, _rounds=ROUNDS)


def table_of(design: Design, rows: dict[str, Row]) -> StudyTable:
    """A table whose study nothing reads."""
    return StudyTable(cast("StudyFile", None), design, rows)


@dataclass
class Searched:
    """Stands for a search: its trials are numbered, and every third one is hedged."""

    name: str
    trials: int
    settings = ()

    @property
    def stream(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    def holds(self, cell: Cell) -> bool:
        return cell.label.startswith(self.name) and cell.role == "trial"

    shares = holds

    def confirms(self, cell: Cell) -> bool:
        return cell.label.startswith(self.name) and cell.role == "tuned"

    def remaining(self, design: Design, rows: Sequence[Row]) -> int:
        full = ROUNDS * len(design.seeds)
        return max(0, int(self.trials - sum(spent(row) for row in rows) / full))

    def confirmed(self, rows: Sequence[Row]) -> list[Cell]:
        """The best trial that is done, on the confirming seeds."""
        done = [row for row in rows if row.standing.state is CellState.DONE]
        best = max(done, key=lambda row: noise(row.cell.id), default=None)
        return [] if best is None else [cell(f"{self.name}tuned-{best.cell.number}", "tuned")]

    def ask(self, design: Design, rows: Sequence[Row]) -> Row:
        number = len(rows)
        asked = Suggestion(number, {}, (1, 2), hedged=number % 3 == 2)
        return Row(replace(cell(f"{self.name}{number}", "trial"), number=number, suggestion=asked), design)


class Study:
    """A study in memory, with workers whose reports come in a drawn order. A kill leaves its rows alone."""

    def __init__(self, seeds: int = 2, parts: int = 1, grid: Sequence[str] = ("grid1", "grid2")) -> None:
        self.grid, self.parts = grid, [Searched(f"s{i}-", 4) for i in range(parts)]
        self.design = Design((*range(1, seeds + 1),), reduction=3, confirm=(11, 12))
        self.rows: dict[str, Row] = {}
        self.stored: dict[str, Row] = {}
        """What confirmed a search before it was started again."""
        self.handed = list[tuple[str, Leg]]()

    def run(self, draw: random.Random, *, workers: int = 1, steps: int = 10_000) -> bool:
        """Runs the study; False where it was killed after a number of steps."""
        self.stored |= {name: row for name, row in self.rows.items() if row.cell.role == "tuned"}
        self.rows = {name: row for name, row in self.rows.items() if name not in self.stored}
        for name in self.grid:
            self.rows.setdefault(name, Row(cell(name), self.design))
        self.rows = {name: self.asked(row) for name, row in self.rows.items()}
        table, parts = table_of(self.design, self.rows), cast("Sequence[CellSearch]", self.parts)
        running = dict[str, Leg]()
        for _ in range(steps):
            match next_action(table, parts, running, (), lambda row: row.cell.label):
                case Pass(rows):
                    for row in rows:
                        self.rows[row.cell.id] = replace(row, passed=row.passed | {row.standing.rung})
                case Ask(search):
                    row = cast("Searched", search).ask(self.design, rows_of(table, search))
                    self.rows[row.cell.id] = row
                case Confirm(cells):
                    for each in cells:
                        row = self.stored.get(each.id, Row(each, self.design))
                        self.rows[each.id] = self.asked(row)
                case Start(row, leg) if len(running) < workers:
                    running[row.cell.id] = leg
                    self.handed.append((row.cell.id, leg))
                case Start() | Wait():
                    name = draw.choice(sorted(running))
                    self.end(name, running.pop(name))
                case Done():
                    return True
        return False

    def asked(self, row: Row) -> Row:
        """A row of what the study asks for today."""
        return row if row.design == self.design else replace(row, design=self.design)

    def end(self, name: str, leg: Leg) -> None:
        row, dies = self.rows[name], 1 + int(ROUNDS * noise(name)) if noise(name, "bad") < 0.2 else ROUNDS + 1
        ran = min(leg.rounds, dies)
        status = Status.DIVERGED if dies <= leg.rounds else Status.DONE if ran == ROUNDS else Status.PARTIAL
        runs = {
            seed: Run(status, ran, lambda seed=seed: [
                {"round": n, "val/acc_mean": noise(name) * (1 - 0.5**n) + 0.01 * noise(name, seed, n)}
                for n in range(1, ran + 1)
            ])
            for seed in leg.seeds
        }  # fmt: skip
        self.rows[name] = replace(row, runs={**row.runs, **runs})

    @property
    def states(self) -> dict[str, str]:
        return {name: row.standing.state.value for name, row in self.rows.items()}


@pytest.mark.parametrize("seed", range(30))
def test_a_study_that_was_killed_ends_as_one_that_was_not(seed: int) -> None:
    calm, draw, killed = Study(), random.Random(seed), Study()
    assert calm.run(draw)
    while not killed.run(draw, steps=draw.randint(1, 30)):
        pass
    assert killed.states == calm.states
    assert {name: row.passed for name, row in killed.rows.items()} == {
        name: row.passed for name, row in calm.rows.items()
    }
    assert len(calm.handed) == len({*calm.handed}), "no leg is handed out twice"


@pytest.mark.parametrize("seed", range(30))
def test_a_study_that_is_edited_has_nothing_left_and_the_grid_of_a_fresh_run(seed: int) -> None:
    draw = random.Random(seed)
    study = Study(parts=draw.randint(1, 2))
    for _ in range(4):
        study.run(draw, workers=draw.randint(1, 4), steps=draw.randint(1, 200))
        seeds = tuple(sorted(draw.sample(range(1, 6), draw.randint(1, 3))))
        study.design = Design(
            seeds, reduction=draw.choice([None, 2, 3]), first_rung=draw.choice([None, 1, 4]),
            confirm=draw.choice([(), (11, 12), (12, 13, 14)]),
        )  # fmt: skip
        study.grid = draw.sample(["grid1", "grid2", "grid3"], 2)
        for part in study.parts:
            part.trials = draw.choice([2, 4, 8])
    assert study.run(draw, workers=draw.randint(1, 4))
    assert {*study.states.values()} <= {"done", "paused", "diverged"}
    fresh = Study(grid=study.grid, parts=0)
    fresh.design = study.design
    assert fresh.run(draw)
    assert {name: study.states[name] for name in fresh.states} == fresh.states
    for part in study.parts:
        states = [study.states[name] for name in study.rows if name.startswith(part.name)]
        assert "done" in states or {*states} <= {"diverged"}, "of each search a trial is done"
        tuned = [row for row in study.rows.values() if row.cell.role == "tuned" and row.cell.id.startswith(part.name)]
        assert len(tuned) == bool(study.design.confirm and "done" in states), "its choice alone is confirmed"
        assert all({*row.runs} >= {*study.design.confirm} for row in tuned), "on all fresh seeds"
    before, handed = dict(study.rows), len(study.handed)
    assert study.run(draw)
    assert (study.rows, len(study.handed)) == (before, handed), "a further start does nothing"


def test_searches_take_turns() -> None:
    study = Study(parts=2, grid=())
    table, parts = table_of(study.design, study.rows), cast("Sequence[CellSearch]", study.parts)
    asked = list[str]()
    for _ in range(4):
        search = cast("Searched", asking(table, parts, ()))
        asked.append(search.name)
        row = search.ask(study.design, rows_of(table, cast("CellSearch", search)))
        study.rows[row.cell.id] = row
    assert asked == ["s0-", "s1-", "s0-", "s1-"]
    assert asking(table, parts, ("s0-", "s1-")) is None, "their samplers have no new point"


def test_a_worker_that_is_free_waits_for_what_is_under_way() -> None:
    row = Row(cell("grid1"), Design((1,)))
    table = table_of(row.design, {"grid1": row})
    started = next_action(table, [], {}, (), lambda row: 0)
    assert started == Start(row, Leg((1,), ROUNDS))
    assert next_action(table, [], {"grid1": Leg((1,), ROUNDS)}, (), lambda row: 0) == Wait()
    assert CellState.QUEUED is row.standing.state
