"""The answer of a search with several objectives: who is ahead at which cost, by points on fresh seeds."""

import csv
import math
from collections.abc import Callable

import pytest

from fpl_tune import report
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.fronts import fronts
from fpl_tune.report import answer, charts, front
from fpl_tune.study.cells import Cell
from fpl_tune.study.export import export

from ..conftest import there
from .conftest import TRADED, Made, store_of, typeset

ALONE = TRADED.replace("axes: {method: [promptfl, coop]}", "axes: {}")
POINTS = {
    "promptfl": [(0.70, 1e6), (0.74, 2e6), (0.80, 4e6), (0.60, 4e6), (0.79, 5e6)],
    "coop": [(0.60, 0.5e6), (0.71, 2e6), (0.82, 3e6), (0.90, 8e6), (0.50, 9e6)],
}
"""Accuracy and bytes of the trials of each method by number, apart from noise."""


def made(cell: Cell, seed: int) -> Made:
    """The points above, with noise of 0.01 between seeds, and one that was lucky on the seeds that chose it."""
    if cell.role == "reference":
        return 0.4, 0.0
    accuracy, sent = POINTS[str(cell.node["method"]["name"])][cell.trial_number]
    lucky = cell.role != "trial" and cell.search == "coop" and cell.trial_number == 1
    return accuracy + 0.01 * (seed % 3 - 1) - 0.2 * lucky, sent


def sentence(findings: Findings) -> str:
    return answer.sentence(findings, compare(findings))


def test_the_sentence_says_who_is_ahead_at_which_cost_by_fresh_seeds(traded: Callable[..., Findings]) -> None:
    findings = traded(made)
    assert sentence(findings) == (
        "On 3 fresh seeds, coop reaches promptfl's best validation accuracy (80.00 ± 1.00 %) at 0.75 of its "
        "communication (3 MB); ahead are coop below 1 MB, promptfl from 1 MB to 3 MB and coop beyond. "
        "5 of 7 confirmed points are on the front of validation accuracy and communication; coop (published, "
        "trial 1) fell off the front of its search on fresh seeds."
    )
    (front_of_promptfl, front_of_coop) = fronts(findings)
    assert [cell.trial_number for cell in front_of_promptfl.points] == [2, 1, 0]
    assert [cell.trial_number for cell in front_of_coop.points] == [3, 2, 0]
    assert [cell.trial_number for cell in front_of_coop.fell] == [1]


def test_a_lead_at_every_cost_and_a_single_change_of_it_are_said(traded: Callable[..., Findings]) -> None:
    def by(better: float, cost: float) -> Callable[[Cell, int], Made]:
        def value(cell: Cell, seed: int) -> Made:
            accuracy, sent = made(cell, seed)
            return (accuracy, sent) if "coop" not in cell.search else (accuracy + better, cost * sent)

        return value

    everywhere = sentence(traded(by(0.15, 1.0)))
    assert "reaches promptfl's best validation accuracy (80.00 ± 1.00 %) at 0.75 of its communication" in everywhere
    assert ", and is ahead everywhere from 0.5 MB on. " in everywhere
    once = sentence(traded(by(0.0, 5.0)))
    assert "at 3.8 times its communication (15 MB); below 15 MB promptfl is ahead. " in once


def test_a_single_front_is_compared_with_the_published_setting(traded: Callable[..., Findings]) -> None:
    findings = traded(lambda cell, seed: made(cell, seed), body=ALONE)
    assert sentence(findings) == (
        "On 3 fresh seeds, promptfl reaches validation accuracy from 70.00 ± 1.00 % at 1 MB to 80.00 ± 1.00 % at 4 MB. "
        "3 of 3 confirmed points are on the front of validation accuracy and communication."
    )


def test_points_that_are_not_confirmed_are_said_to_be_optimistic(traded: Callable[..., Findings]) -> None:
    findings = traded(made, confirm=())
    assert sentence(findings).startswith("On the seeds that chose the points (optimistic), coop reaches ")
    assert "trials are on the front" in sentence(findings)
    assert all(cell.role == "trial" for each in fronts(findings) for cell in each.points)


def test_the_hypervolume_is_a_share_of_the_box_of_all_trials_with_an_interval(traded: Callable[..., Findings]) -> None:
    findings = traded(made)
    of_promptfl, of_coop = fronts(findings)
    assert of_promptfl.worst == pytest.approx((0.5, 9e6))
    assert of_promptfl.best == pytest.approx((0.9, 0.5e6))
    area = 0.2 * 8 + 0.04 * 7 + 0.06 * 5
    assert of_promptfl.share == pytest.approx(area / (0.4 * 8.5))
    assert 0 < of_promptfl.low < of_promptfl.share < of_promptfl.high < 1
    texts = {row.cells[0].text: row.cells[1] for row in front.volumes(findings).rows}
    assert texts["promptfl"].text == f"{of_promptfl.share:.3f} ({of_promptfl.low:.3f} to {of_promptfl.high:.3f})"
    assert [name for name, td in texts.items() if td.bold] == [
        "promptfl" if of_promptfl.share > of_coop.share else "coop"
    ]
    assert "the reference point; validation accuracy 50 % and communication 9 MB" in front.note(findings)


def test_tables_have_intervals_in_accuracy_and_none_in_bytes(traded: Callable[..., Findings], tmp_path) -> None:
    findings = traded(made)
    rows = [[td.text for td in row.cells] for row in front.points(findings).rows]
    half = 4.302653 * 0.01 / math.sqrt(3)
    named = {(row[0], row[1]): row for row in rows}
    assert named["promptfl", "2"][2] == f"80.00 ± 1.00 ({80 - 100 * half:.2f} to {80 + 100 * half:.2f})"
    assert named["promptfl", "2"][3] == "4"
    states = {key: row[5] for key, row in named.items()}
    assert (states["coop", "1"], states["coop", "3"], states["promptfl", "2"]) == ("fell off", "yes", "no")
    report.build(store_of(findings), tmp_path)
    with (tmp_path / "fronts.csv").open() as file:
        written = [*csv.DictReader(file)]
    assert len(written) == 7
    assert {row["comm/total_bytes_low"] for row in written} == {""}
    typeset(tmp_path, "fronts", "costs")
    report.build(store_of(traded(made, body=TRADED.replace(", comm/total_bytes", ""))), tmp_path)
    assert not [*tmp_path.glob("fronts.*")], "the study has one objective by now"


def test_settings_have_a_front_a_panel_and_a_column_each(traded: Callable[..., Findings]) -> None:
    split = "split: [{label: disjoint, partition: disjoint}, {label: equal, partition: iid}]"
    body = TRADED.replace("coop]", f"coop], {split}")
    shift = {"disjoint": 0.0, "equal": 0.05}
    findings = traded(
        lambda c, s: (made(c, s)[0] + (shift[c.varied["split"]["label"]] if c.searched else 0), made(c, s)[1]), body
    )
    assert [(each.method, each.setting) for each in fronts(findings)] == [
        ("promptfl", "disjoint"), ("promptfl", "equal"), ("coop", "disjoint"), ("coop", "equal")
    ]  # fmt: skip
    assert front.volumes(findings).header == ["method", "disjoint", "equal"]
    assert [row.cells[0].text for row in front.volumes(findings).rows] == ["promptfl", "coop"]
    said = sentence(findings)
    assert said.startswith("On 3 fresh seeds, in disjoint, coop reaches promptfl's best validation accuracy (80.00 ± ")
    assert ". In equal, coop reaches promptfl's best validation accuracy (85.00 ± " in said
    spec = front.scatter(findings, "comm/total_bytes")
    assert spec["facet"]["sort"] == ["disjoint", "equal"]
    assert {row["series"] for row in spec["data"]["values"]} == {"promptfl", "coop"}
    assert "history" not in answer.decided(findings, compare(findings)).charts


def test_the_chart_has_steps_intervals_and_diamonds(traded: Callable[..., Findings]) -> None:
    findings = traded(made)
    spec = front.scatter(findings, "comm/total_bytes")
    rows = spec["data"]["values"]
    steps = [(row["x"], row["y"]) for row in rows if row["kind"] == "line" and row["series"] == "promptfl"]
    assert steps == [(1e6, pytest.approx(0.70)), (2e6, pytest.approx(0.74)), (4e6, pytest.approx(0.80))]
    points = {row["label"]: row for row in rows if row["kind"] != "line"}
    cells = {findings.names.of(cell): cell for cell in findings.cells}
    for name, row in points.items():
        cell = cells[name]
        assert (row["id"], row["number"]) == (cell.id, findings.numbers[cell.id])
        assert (row["kind"] == "trial") == (cell.role == "trial")
        assert (row["kind"] == "published") == (cell.published and cell.role != "trial")
    assert any(row["kind"] == "published" for row in points.values())
    drawn = [layer["mark"].get("shape") for layer in spec["layer"] if layer["mark"]["type"] == "point"]
    assert "diamond" in drawn
    assert charts.file_name("front", "communication") in front.drawn(findings)


def test_a_point_of_the_front_is_exported_by_its_id(traded: Callable[..., Findings], tmp_path) -> None:
    findings = traded(made)
    cell = there(findings.choice).cells[1]
    files = {path.name for path in export(store_of(findings), cell, tmp_path / "out")}
    assert f"traded-{cell.id}.yaml" in files


def test_limits_are_lines_and_nothing_beyond_them_is_on_a_front(traded: Callable[..., Findings]) -> None:
    body = TRADED.replace("only: [optim.lr]", "only: [optim.lr], limits: {comm/total_bytes: 6.0e6, val/acc_mean: 0.65}")
    findings = traded(made, body=body)
    assert "on the front of validation accuracy and communication, within communication ≤ 6 MB and" in sentence(
        findings
    )
    assert [[cell.trial_number for cell in each.points] for each in fronts(findings)] == [[2, 1, 0], [2]]
    assert [len(each.fell) for each in fronts(findings)] == [0, 0], "a lucky point is outside of the limits"
    spec = front.scatter(findings, "comm/total_bytes")
    rows = [row for row in spec["data"]["values"] if row["kind"].startswith("limit")]
    assert [(row.get("x"), row.get("y")) for row in rows] == [(6e6, None), (None, 0.65)]
    rules = [each["encoding"] for each in spec["layer"] if each["mark"].get("strokeDash")]
    assert [[*encoding] for encoding in rules] == [["x"], ["y"]]
    assert "dashed: limits" in front.drawn(findings)["front_communication"][1]


def test_a_third_objective_has_a_chart_and_a_sentence_of_its_own(traded: Callable[..., Findings]) -> None:
    body = TRADED.replace("comm/total_bytes]", "comm/total_bytes, cost/client_flops]")
    findings = traded(made, body=body, flops=lambda cell: 1e9 * (1 + cell.trial_number))
    assert [*front.drawn(findings)] == ["front_communication", "front_operations_of_a_client"]
    (text,) = front.texts(findings)
    assert text.startswith("By operations of a client: coop reaches promptfl's best validation accuracy")
    assert "GFLOP" in text
    x = front.scatter(findings, "cost/client_flops")["layer"][0]["encoding"]["x"]
    assert x["title"] == "operations of a client (FLOP)"
